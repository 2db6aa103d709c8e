"""GPT-NeoX: attention and feed-forward side by side; part of a head turns. Black et al. 2022.

Pythia (Biderman et al. 2023), of which many training steps are published, is of this type.
"""

import math
from collections.abc import Container, Mapping
from typing import Any

from regard.errors import UnsupportedError
from regard.models.families.family import (
    COMMON_KEYS,
    Family,
    HFConfig,
    Published,
    first,
    gguf_number,
    published_rope,
)
from regard.models.transformer import TransformerConfig


class GPTNeoX(Family):
    """GPT-NeoX and Pythia. Checkpoints keep query, key and value as one matrix, head by head."""

    name = "gpt_neox"
    architectures = {"gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXModel")}
    keys = {
        **COMMON_KEYS,
        "num_hidden_layers": "n_decoder_layer",
        "layer_norm_eps": "block.norm_eps",
        "attention_bias": "block.attention_bias",
        "use_parallel_residual": "block.parallel",
    }
    usual = {
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "attention_bias": True,
        "use_parallel_residual": True,
        "tie_word_embeddings": False,
    }
    rotary_base = 10_000.0
    weights = {"token": "embed_in", "decoder.norm": "final_layer_norm", "unembed": "embed_out"}
    block = {
        "attention_norm": "input_layernorm",
        **dict.fromkeys(("attention.query", "attention.key", "attention.value"), "attention.query_key_value"),
        "attention.out": "attention.dense",
        "ff_norm": "post_attention_layernorm",
        "ff.up": "mlp.dense_h_to_4h",
        "ff.down": "mlp.dense_4h_to_h",
    }
    joined = by_head = True
    prefixes = ("gpt_neox.", "")
    ignored = ("rotary_emb.inv_freq", "attention.bias", "attention.masked_bias", "embed_out.weight")
    renamed = (("lm_head.weight", "embed_out.weight"),)
    sizes = {
        "pythia": {
            "vocab_size": 50_304,
            "num_hidden_layers": 6,
            "max_position_embeddings": 2048,
            "hidden_size": 512,
            "num_attention_heads": 8,
            "intermediate_size": 2048,
        }
    }
    gguf = "gptneox"

    def rope(self, said: Published) -> Published:
        """By the newer names."""
        older = {"rope_theta": said.get("rotary_emb_base"), "partial_rotary_factor": said.get("rotary_pct")}
        return {**older, **super().rope(said)}

    def derived(self, said: Published) -> HFConfig:
        head_dim = said["hidden_size"] // said["num_attention_heads"]
        turned = int(head_dim * first(self.rope(said)["partial_rotary_factor"], 0.25))
        if turned % 2:
            raise UnsupportedError(f"{turned} of {head_dim} dimensions turn: they turn in pairs here.")
        return {
            "positions": "rotary" if turned else "none",
            "rotary_dim": None if turned in (0, head_dim) else turned,
        }

    def extra_hf_fields(self, config: TransformerConfig) -> HFConfig:
        head_dim = config.block.model_dim // config.block.n_head
        turned = 0 if config.positions == "none" else first(config.rotary_dim, head_dim)
        share = turned / head_dim
        if int(head_dim * share) < turned:  # rounding, which whoever reads it cuts off
            share = math.nextafter(share, 1)
        rope = {**published_rope(config.rotary_base, config.rotary_scaling), "partial_rotary_factor": share}
        return {"rope_parameters": rope, "rotary_pct": share, "rotary_emb_base": config.rotary_base}

    def gguf_config(self, values: Mapping[str, Any], tensors: Container[str]) -> HFConfig:
        said = super().gguf_config(values, tensors)
        head_dim = said["hidden_size"] // said["num_attention_heads"]
        turned = gguf_number(values, "rope.dimension_count", int, head_dim)
        parallel = values.get("use_parallel_residual", True) is True
        return {
            **said,
            "rotary_pct": math.nextafter(turned / head_dim, 2),
            "use_parallel_residual": parallel,
        }
