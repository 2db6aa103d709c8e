"""Qwen3: Llama's blocks with a norm on each head's queries and keys. Yang et al. 2025."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from regard.models.families.family import (
    GGUFValues,
    Published,
    Said,
    Weight,
    first,
    local_layers,
    published_layers,
    published_rope,
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
        n_layer = said["num_hidden_layers"]
        window = said.get("sliding_window", 4096) if said.get("use_sliding_window") else None
        first_local = n_layer if window is None else said.get("max_window_layers", 28)
        usual = ["full_attention"] * first_local + ["sliding_attention"] * max(0, n_layer - first_local)
        local = local_layers(first(said.get("layer_types"), usual[:n_layer])) if window else None
        stated = {key: value for key, value in said.items() if value is not None}
        usually = {"max_position_embeddings": 32_768, "head_dim": 128}
        config = super().config({**usually, **stated, "sliding_window": window if local else None})
        return replace(config, local=local, block=replace(config.block, qk_norm=True))

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
