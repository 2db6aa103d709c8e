"""T5: both stacks; RMS norms before; relative positions as a bias; no scale, no bias. Raffel et al. 2020."""

from dataclasses import replace

from regard.models.families.family import Family, HFConfig, Published, Weight, first, published_activation
from regard.models.transformer import Transformer, TransformerConfig

_RELATIVE = "block.0.layer.0.SelfAttention.relative_attention_bias"


class T5(Family):
    """T5, with a plain feed-forward (2020) or a gated one (v1.1)."""

    name = "t5"
    what = "encoder and decoder: rewrites one text as another"
    architectures = {"t5": ("T5ForConditionalGeneration", "T5Model")}
    keys = {
        "vocab_size": "vocab",
        "num_layers": "n_encoder_layer",
        "num_decoder_layers": "n_decoder_layer",
        "relative_attention_num_buckets": "n_bucket",
        "relative_attention_max_distance": "max_distance",
        "d_model": "block.model_dim",
        "num_heads": "block.n_head",
        "d_kv": "block.qk_dim",
        "d_ff": "block.ff_dim",
        "layer_norm_epsilon": "block.norm_eps",
        "tie_word_embeddings": "tied",
    }
    usual = {
        "num_decoder_layers": None,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "tie_word_embeddings": True,
    }
    fields = {
        "positions": "relative",
        "n_position": None,
        "block.norm": "rms",
        "block.scale": 1.0,
        "block.attention_bias": False,
        "block.ff_bias": False,
        "initial": "fan_in",
    }
    weights = {
        "token": "shared",
        "unembed": "lm_head",
        **{f"{stack}.norm": f"{stack}.final_layer_norm" for stack in ("encoder", "decoder")},
        **{f"{stack}.relative": f"{stack}.{_RELATIVE}" for stack in ("encoder", "decoder")},
    }
    block = {
        "attention_norm": "0.layer_norm",
        **{f"attention.{part}": f"0.SelfAttention.{part[0]}" for part in ("query", "key", "value", "out")},
        "cross_norm": "1.layer_norm",
        **{f"cross.{part}": f"1.EncDecAttention.{part[0]}" for part in ("query", "key", "value", "out")},
        "ff_norm": "2.layer_norm",
        "ff.up": "2.DenseReluDense.wi_1",
        "ff.gate": "2.DenseReluDense.wi_0",
        "ff.down": "2.DenseReluDense.wo",
    }
    layer = "{stack}.block.{layer}.layer"
    ignored = ("embed_tokens.weight", "lm_head.weight", "EncDecAttention.relative_attention_bias.weight")
    start_token = 0  # its padding
    around = (None, "eos")
    sizes = {
        "t5": {
            "vocab_size": 32128,
            "d_model": 512,
            "d_kv": 64,
            "d_ff": 2048,
            "num_layers": 6,
            "num_heads": 8,
        }
    }

    def derived(self, said: Published) -> HFConfig:
        feed_forward = said.get("feed_forward_proj", "relu")
        scaled = said.get("scale_decoder_outputs", said.get("tie_word_embeddings", True))
        gated_gelu = feed_forward == "gated-gelu"
        return {
            "n_decoder_layer": first(said.get("num_decoder_layers"), said["num_layers"]),
            "lm_head_scale": said["d_model"] ** -0.5 if scaled else 1.0,
            "block.activation": "gelu_new" if gated_gelu else feed_forward.removeprefix("gated-"),
            "block.gated": feed_forward.startswith("gated-"),
        }

    def extra_hf_fields(self, config: TransformerConfig) -> HFConfig:
        activation = published_activation(config.block.activation)
        if config.block.gated:
            activation = f"gated-{'gelu' if activation == 'gelu_new' else activation}"
        return {
            "is_encoder_decoder": True,
            "feed_forward_proj": activation,
            "scale_decoder_outputs": config.lm_head_scale != 1.0,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        }

    def hf_name(self, module: str) -> str:
        """An encoder's blocks have no cross-attention to count."""
        name = super().hf_name(module)
        return name.replace(".layer.2.", ".layer.1.") if module.startswith("encoder") else name

    def names(self, model: Transformer) -> dict[str, Weight]:
        """Without a gate, the one matrix upwards has a name of its own."""
        names = super().names(model)
        if not model.config.block.gated:
            names = {ours: replace(w, name=w.name.replace(".wi_1.", ".wi.")) for ours, w in names.items()}
        return names
