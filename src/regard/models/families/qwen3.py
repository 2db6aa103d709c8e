"""Qwen3: Llama's blocks with a norm on each head's queries and keys. Yang et al. 2025."""

from __future__ import annotations

from torch import Tensor

from regard.models.families.family import (
    GGUFValues,
    Published,
    Said,
    Weight,
    first,
    language_head,
    local_layers,
    published_layers,
    published_rope,
    refuse,
    rotary_scaling,
)
from regard.models.families.llama import BLOCK, LAYER, Llama
from regard.models.transformer import TransformerConfig


class Qwen3(Llama):
    """Qwen3, whose upper layers may have a window."""

    name = "qwen3"
    architectures = {"qwen3": ("Qwen3ForCausalLM", "Qwen3Model")}
    keys = {key: path for key, path in Llama.keys.items() if key != "mlp_bias"}
    weights = {
        **Llama.weights,
        f"{BLOCK}.attention.query_norm": Weight(f"{LAYER}.self_attn.q_norm", "blk.{}.attn_q_norm"),
        f"{BLOCK}.attention.key_norm": Weight(f"{LAYER}.self_attn.k_norm", "blk.{}.attn_k_norm"),
    }
    sizes = {
        "qwen3": {
            "vocab_size": 151_936,
            "num_hidden_layers": 28,
            "max_position_embeddings": 40_960,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": True,
        }
    }
    gguf = "qwen3"

    def config(self, said: Published) -> TransformerConfig:
        refuse(said, partial_rotary_factor=1.0)
        n_layer = said["num_hidden_layers"]
        window = said.get("sliding_window", 4096) if said.get("use_sliding_window") else None
        first_local = n_layer if window is None else said.get("max_window_layers", 28)
        usual = ["full_attention"] * first_local + ["sliding_attention"] * max(0, n_layer - first_local)
        local = local_layers(first(said.get("layer_types"), usual[:n_layer])) if window else None
        rope = said.get("rope_parameters") or said.get("rope_scaling") or {}
        n_position = first(said.get("max_position_embeddings"), 32_768)
        said = {**said, "sliding_window": window if local else None}
        return self.filled(
            said,
            {
                "positions": "rotary",
                "n_position": n_position,
                "rotary_base": first(rope.get("rope_theta"), said.get("rope_theta"), 10_000.0),
                "rotary_scaling": rotary_scaling(rope, n_position),
                "local": local,
                "head": language_head(said),
                "tied": False,
                "block.n_kv_head": said["num_attention_heads"],
                "block.qk_dim": 128,
                "block.v_dim": said.get("head_dim", 128),
                "block.norm": "rms",
                "block.norm_first": True,
                "block.norm_eps": 1e-6,
                "block.activation": "silu",
                "block.gated": True,
                "block.attention_bias": False,
                "block.ff_bias": False,
                "block.qk_norm": True,
                "block.window": None,
            },
        )

    def model_type(self, config: TransformerConfig) -> str:
        return "qwen3"

    def more(self, config: TransformerConfig) -> Said:
        return {
            "rope_theta": config.rotary_base,
            "rope_parameters": published_rope(config.rotary_base, config.rotary_scaling),
            "use_sliding_window": config.block.window is not None,
            "layer_types": published_layers(config),
        }

    def gguf_config(self, file: GGUFValues) -> Said:
        said = super().gguf_config(file)
        return {key: value for key, value in said.items() if key != "mlp_bias"}

    def from_gguf(self, where: Weight, tensor: Tensor, said: Published) -> Tensor:
        """Rotary pairs are where Hugging Face has them."""
        return tensor
