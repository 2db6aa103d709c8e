"""Gemma 3: windows and rotary bases by layer, norms before and after, on queries and keys too; token vectors
scaled up. Gemma Team 2025. Gemma 2 (2024) has no norm on queries and keys but softcaps, and is read too.
"""

from collections.abc import Container, Mapping
from typing import Any

from regard.models.families.family import (
    HFConfig,
    Published,
    first,
    gguf_number,
    local_layers,
    published_layers,
    published_rope,
    refuse,
)
from regard.models.families.llama import Llama
from regard.models.transformer import TransformerConfig


class Gemma3(Llama):
    """Gemma 3's text models, and Gemma 2."""

    name = "gemma3"
    architectures = {
        "gemma3_text": ("Gemma3ForCausalLM", "Gemma3TextModel"),
        "gemma2": ("Gemma2ForCausalLM", "Gemma2Model"),
    }
    keys = {
        **{key: path for key, path in Llama.keys.items() if key not in ("hidden_act", "mlp_bias")},
        "hidden_activation": "block.activation",
        "attn_logit_softcapping": "block.softcap",
        "final_logit_softcapping": "lm_head_softcap",
    }
    usual = {
        **Llama.usual,
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    }
    fields = {**Llama.fields, "block.norm_after": True, "block.ff_bias": False}
    refused = {"use_bidirectional_attention": False}
    rotary_base = 1_000_000.0
    block = {
        **Llama.block,
        "attention_norm_after": "post_attention_layernorm",
        "ff_norm": "pre_feedforward_layernorm",
        "ff_norm_after": "post_feedforward_layernorm",
        "attention.query_norm": "self_attn.q_norm",
        "attention.key_norm": "self_attn.k_norm",
    }
    offset = 1.0
    around = ("bos", None)
    sizes = {
        "gemma3": {
            "vocab_size": 262_144,
            "num_hidden_layers": 18,
            "max_position_embeddings": 32_768,
            "hidden_size": 640,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "intermediate_size": 2048,
            "sliding_window": 512,
        }
    }
    gguf = "gemma3"
    gguf_pairs = False

    def config(self, said: Published) -> TransformerConfig:
        if _older(said):
            theirs = {"max_position_embeddings": 8192, "rope_theta": 10_000.0}
            said = {**said, **{key: first(said.get(key), usual) for key, usual in theirs.items()}}
        else:
            refuse(said, {"attn_logit_softcapping": None})  # which transformers reads and does not apply
        return super().config(said)

    def rope(self, said: Published) -> Published:
        """Of the layers that see everything."""
        rope: Published = said.get("rope_parameters") or {}
        return rope if _older(said) else rope.get("full_attention") or said.get("rope_scaling") or {}

    def derived(self, said: Published) -> HFConfig:
        older, n_layer = _older(said), said["num_hidden_layers"]
        pattern = said.get("sliding_window_pattern", 2 if older else 6)
        usual = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(n_layer)]
        local = local_layers(first(said.get("layer_types"), usual))
        near: Published = {} if older else (said.get("rope_parameters") or {}).get("sliding_attention") or {}
        refuse(near, {"rope_type": "default"})
        near_base = first(near.get("rope_theta"), said.get("rope_local_base_freq"), 10_000.0)
        return {
            "local": local,
            "local_rotary_base": None if older or local is None else near_base,
            "embed_scale": said["hidden_size"] ** 0.5,
            "lm_head_softcap": said.get("final_logit_softcapping", 30.0 if older else None),
            "block.softcap": said.get("attn_logit_softcapping", 50.0 if older else None),
            "block.scale": first(said.get("query_pre_attn_scalar"), 256) ** -0.5,
            "block.qk_norm": not older,
            "block.window": first(said.get("sliding_window"), 4096) if local else None,
        }

    def model_type(self, config: TransformerConfig) -> str:
        return "gemma3_text" if config.block.qk_norm else "gemma2"

    def extra_hf_fields(self, config: TransformerConfig) -> HFConfig:
        full = published_rope(config.rotary_base, config.rotary_scaling)
        near = published_rope(first(config.local_rotary_base, 10_000.0))
        both = {"full_attention": full, "sliding_attention": near}
        said = {
            "rope_parameters": both if config.block.qk_norm else full,
            "query_pre_attn_scalar": round(first(config.block.scale, 1.0) ** -2),
            "layer_types": published_layers(config),
        }
        if not config.block.qk_norm:  # Gemma 2's are on where nothing is said
            said |= {"attn_logit_softcapping": config.block.softcap}
            said |= {"final_logit_softcapping": config.lm_head_softcap}
        return said

    def gguf_config(self, values: Mapping[str, Any], tensors: Container[str]) -> HFConfig:
        said = super().gguf_config({"attention.key_length": 256, **values}, tensors)
        # Not in the file: of the sizes there are, only the one of 62 layers has another.
        odd = said["num_hidden_layers"] == 62
        scalar = said["hidden_size"] // said["num_attention_heads"] if odd else said["head_dim"]
        window = gguf_number(values, "attention.sliding_window", int, 4096)
        return {**said, "query_pre_attn_scalar": scalar, "sliding_window": window}


def _older(said: Published) -> bool:
    return said.get("model_type") == "gemma2"
