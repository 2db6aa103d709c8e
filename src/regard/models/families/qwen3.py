"""Qwen3: Llama's blocks with a norm on each head's queries and keys. Yang et al. 2025."""

from regard.models.families.family import HFConfig, Published, first, local_layers, published_layers
from regard.models.families.llama import Llama
from regard.models.transformer import TransformerConfig


class Qwen3(Llama):
    """Qwen3, whose upper layers may have a window."""

    name = "qwen3"
    architectures = {"qwen3": ("Qwen3ForCausalLM", "Qwen3Model")}
    keys = {key: path for key, path in Llama.keys.items() if key != "mlp_bias"}
    usual = {**Llama.usual, "max_position_embeddings": 32_768, "head_dim": 128}
    fields = {**Llama.fields, "block.qk_norm": True, "block.ff_bias": False}
    block = {
        **Llama.block,
        "attention.query_norm": "self_attn.q_norm",
        "attention.key_norm": "self_attn.k_norm",
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
    gguf_pairs = False

    def derived(self, said: Published) -> HFConfig:
        n_layer = said["num_hidden_layers"]
        window = said.get("sliding_window", 4096) if said.get("use_sliding_window") else None
        first_local = n_layer if window is None else said.get("max_window_layers", 28)
        usual = ["full_attention"] * first_local + ["sliding_attention"] * max(0, n_layer - first_local)
        local = local_layers(first(said.get("layer_types"), usual[:n_layer])) if window else None
        return {**super().derived(said), "local": local, "block.window": window if local else None}

    def model_type(self, config: TransformerConfig) -> str:
        return "qwen3"

    def extra_hf_fields(self, config: TransformerConfig) -> HFConfig:
        return {
            "use_sliding_window": config.block.window is not None,
            "layer_types": published_layers(config),
        }
