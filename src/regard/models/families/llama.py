"""Llama: a decoder; RMS norms before; rotary positions; grouped heads; gated feed-forward; no bias.

Touvron et al. 2023; Mistral (a window) and Qwen2 (biases of query, key and value) are of this type too.
"""

from collections.abc import Container, Mapping
from typing import Any

from regard.errors import LoadError, UnsupportedError
from regard.models.families.family import COMMON_KEYS, Family, HFConfig, Published, first, gguf_number
from regard.models.transformer import TransformerConfig

_SMOLLM2 = {
    "vocab_size": 49152,
    "num_hidden_layers": 30,
    "max_position_embeddings": 8192,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "tie_word_embeddings": True,
}


class Llama(Family):
    """Llama, Mistral and Qwen2."""

    name = "llama"
    architectures = {
        "llama": ("LlamaForCausalLM", "LlamaModel"),
        "mistral": ("MistralForCausalLM", "MistralModel"),
        "qwen2": ("Qwen2ForCausalLM", "Qwen2Model"),
    }
    keys = {
        **COMMON_KEYS,
        "num_hidden_layers": "n_decoder_layer",
        "num_key_value_heads": "block.n_kv_head",
        "head_dim": "block.qk_dim",
        "rms_norm_eps": "block.norm_eps",
        "attention_bias": "block.attention_bias",
        "mlp_bias": "block.ff_bias",
        "sliding_window": "block.window",
    }
    usual = {
        "max_position_embeddings": 2048,
        "num_key_value_heads": None,
        "head_dim": None,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "sliding_window": None,
        "tie_word_embeddings": False,
    }
    fields = {"block.norm": "rms", "block.gated": True}
    refused = {"partial_rotary_factor": 1.0}
    rotary_base = 10_000.0
    weights = {"token": "embed_tokens", "decoder.norm": "norm", "unembed": "lm_head"}
    block = {
        "attention_norm": "input_layernorm",
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.out": "self_attn.o_proj",
        "ff_norm": "post_attention_layernorm",
        "ff.gate": "mlp.gate_proj",
        "ff.up": "mlp.up_proj",
        "ff.down": "mlp.down_proj",
    }
    prefixes = ("model.", "")
    ignored = ("rotary_emb.inv_freq", "lm_head.weight")
    sizes: Mapping[str, Published] = {"llama": _SMOLLM2, "smollm2": _SMOLLM2}
    gguf = "llama"
    gguf_pairs = True

    def derived(self, said: Published) -> HFConfig:
        fields = {"block.n_kv_head": first(said.get("num_key_value_heads"), said["num_attention_heads"])}
        if said.get("model_type") != "qwen2":
            return fields
        window, n_layer = said.get("sliding_window"), said["num_hidden_layers"]
        # Its lower layers, as many as this says, see everything.
        full = said.get("max_window_layers", 28) if said.get("use_sliding_window") else n_layer
        if 0 < full < n_layer and window is not None:
            raise UnsupportedError(
                f"max_window_layers={full} of {n_layer} in config.json is not supported: a window here "
                "is of all layers or of none."
            )
        window = None if full >= n_layer else window
        return {**fields, "block.attention_bias": True, "block.out_bias": False, "block.window": window}

    def model_type(self, config: TransformerConfig) -> str:
        if config.block.attention_bias and config.block.out_bias is False:
            return "qwen2"
        return "llama" if config.block.window is None else "mistral"

    def extra_hf_fields(self, config: TransformerConfig) -> HFConfig:
        return {"use_sliding_window": config.block.window is not None, "max_window_layers": 0}

    def gguf_config(self, values: Mapping[str, Any], tensors: Container[str]) -> HFConfig:
        said = super().gguf_config(values, tensors)
        head_dim = said.setdefault("head_dim", said["hidden_size"] // said["num_attention_heads"])
        turned = gguf_number(values, "rope.dimension_count", int, head_dim)
        if turned != head_dim:
            raise LoadError(
                f"it rotates {turned} of {head_dim} numbers of a head: {self.name} models rotate all."
            )
        return said
