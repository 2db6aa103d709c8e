"""GPT-NeoX: attention and feed-forward side by side; part of a head turns. Black et al. 2022.

Pythia (Biderman et al. 2023), of which many training steps are published, is of this type.
"""

from __future__ import annotations

import math

from torch import Tensor

from regard.errors import UnsupportedError
from regard.models.families.family import (
    Family,
    GGUFValues,
    Published,
    Said,
    Weight,
    first,
    gguf_scaling,
    language_head,
    published_rope,
    rotary_scaling,
)
from regard.models.transformer import TransformerConfig

_BLOCK, _LAYER = "decoder.blocks.{}", "layers.{}"


def _joined(part: int) -> Weight:
    return Weight(f"{_LAYER}.attention.query_key_value", "blk.{}.attn_qkv", part=part, by_head=True)


class GPTNeoX(Family):
    """GPT-NeoX and Pythia. Checkpoints keep query, key and value as one matrix, head by head."""

    name = "gpt_neox"
    what = "decoder: predicts the next token"
    architectures = {"gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXModel")}
    keys = {
        "vocab_size": "vocab",
        "num_hidden_layers": "n_decoder_layer",
        "max_position_embeddings": "n_position",
        "hidden_size": "block.model_dim",
        "num_attention_heads": "block.n_head",
        "intermediate_size": "block.ff_dim",
        "layer_norm_eps": "block.norm_eps",
        "hidden_act": "block.activation",
        "attention_bias": "block.attention_bias",
        "use_parallel_residual": "block.parallel",
        "tie_word_embeddings": "tied",
    }
    weights = {
        "token": Weight("embed_in", "token_embd"),
        "decoder.norm": Weight("final_layer_norm", "output_norm"),
        "unembed": Weight("embed_out", "output"),
        f"{_BLOCK}.attention_norm": Weight(f"{_LAYER}.input_layernorm", "blk.{}.attn_norm"),
        f"{_BLOCK}.attention.query": _joined(0),
        f"{_BLOCK}.attention.key": _joined(1),
        f"{_BLOCK}.attention.value": _joined(2),
        f"{_BLOCK}.attention.out": Weight(f"{_LAYER}.attention.dense", "blk.{}.attn_output"),
        f"{_BLOCK}.ff_norm": Weight(f"{_LAYER}.post_attention_layernorm", "blk.{}.ffn_norm"),
        f"{_BLOCK}.ff.up": Weight(f"{_LAYER}.mlp.dense_h_to_4h", "blk.{}.ffn_up"),
        f"{_BLOCK}.ff.down": Weight(f"{_LAYER}.mlp.dense_4h_to_h", "blk.{}.ffn_down"),
    }
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

    def config(self, said: Published) -> TransformerConfig:
        rope = said.get("rope_parameters") or said.get("rope_scaling") or {}
        n_position, head_dim = first(said.get("max_position_embeddings"), 2048), _head_dim(said)
        turned = int(head_dim * first(rope.get("partial_rotary_factor"), said.get("rotary_pct"), 0.25))
        if turned % 2:
            raise UnsupportedError(f"{turned} of {head_dim} dimensions turn: they turn in pairs here.")
        return self.filled(
            said,
            {
                "positions": "rotary" if turned else "none",
                "n_position": n_position,
                "rotary_base": first(rope.get("rope_theta"), said.get("rotary_emb_base"), 10_000.0),
                "rotary_scaling": rotary_scaling(rope, n_position),
                "rotary_dim": None if turned in (0, head_dim) else turned,
                "head": language_head(said),
                "tied": False,
                "block.norm": "layer",
                "block.norm_first": True,
                "block.norm_eps": 1e-5,
                "block.parallel": True,
                "block.activation": "gelu",
                "block.attention_bias": True,
                "block.ff_bias": True,
            },
        )

    def more(self, config: TransformerConfig) -> Said:
        head_dim = config.block.model_dim // config.block.n_head
        turned = 0 if config.positions == "none" else first(config.rotary_dim, head_dim)
        share = turned / head_dim
        if int(head_dim * share) < turned:  # rounding, which whoever reads it cuts off
            share = math.nextafter(share, 1)
        rope = {**published_rope(config.rotary_base, config.rotary_scaling), "partial_rotary_factor": share}
        return {"rope_parameters": rope, "rotary_pct": share, "rotary_emb_base": config.rotary_base}

    def gguf_config(self, file: GGUFValues) -> Said:
        n_head, model_dim = file.count("attention.head_count"), file.count("embedding_length")
        turned = file.count("rope.dimension_count", model_dim // n_head)
        return {
            "hidden_size": model_dim,
            "intermediate_size": file.count("feed_forward_length"),
            "num_hidden_layers": file.count("block_count"),
            "num_attention_heads": n_head,
            "max_position_embeddings": file.count("context_length"),
            "layer_norm_eps": file.real("attention.layer_norm_epsilon"),
            "rotary_pct": math.nextafter(turned / (model_dim // n_head), 2),
            "rotary_emb_base": file.real("rope.freq_base", 10_000.0),
            "rope_scaling": gguf_scaling(file),
            "use_parallel_residual": file.flag("use_parallel_residual", True),
            "hidden_act": "gelu",
            "attention_bias": file.has("blk.0.attn_qkv.bias"),
        }

    def from_gguf(self, where: Weight, tensor: Tensor, said: Published) -> Tensor:
        """A GGUF file has all queries, then all keys, then all values; Hugging Face's go head by head."""
        if not where.by_head:
            return tensor
        parts: Tensor = tensor.unflatten(0, (3, said["num_attention_heads"], -1))
        return parts.transpose(0, 1).flatten(0, 2)


def _head_dim(said: Published) -> int:
    return int(said["hidden_size"] // said["num_attention_heads"])
