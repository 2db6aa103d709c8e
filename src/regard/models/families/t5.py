"""T5: both stacks; RMS norms before; relative positions as a bias; no scale, no bias. Raffel et al. 2020."""

from __future__ import annotations

import math
from dataclasses import replace

from regard.models.families.family import Family, Published, Said, Weight, language_head, published_activation
from regard.models.transformer import Transformer, TransformerConfig


def _stack(stack: str) -> dict[str, Weight]:
    block, layer = f"{stack}.blocks.{{}}", f"{stack}.block.{{}}.layer"
    looks = [("attention", f"{layer}.0", "SelfAttention"), ("cross", f"{layer}.1", "EncDecAttention")]
    looks, ff = (looks[:1], f"{layer}.1") if stack == "encoder" else (looks, f"{layer}.2")
    weights = {
        f"{stack}.relative": Weight(f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"),
        f"{stack}.norm": Weight(f"{stack}.final_layer_norm"),
        f"{block}.ff_norm": Weight(f"{ff}.layer_norm"),
        f"{block}.ff.up": Weight(f"{ff}.DenseReluDense.wi_1"),
        f"{block}.ff.gate": Weight(f"{ff}.DenseReluDense.wi_0"),
        f"{block}.ff.down": Weight(f"{ff}.DenseReluDense.wo"),
    }
    for kind, place, attention in looks:
        weights[f"{block}.{kind}_norm"] = Weight(f"{place}.layer_norm")
        for part in ("query", "key", "value", "out"):
            weights[f"{block}.{kind}.{part}"] = Weight(f"{place}.{attention}.{part[0]}")
    return weights


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
    weights = {
        "token": Weight("shared"),
        "unembed": Weight("lm_head"),
        **_stack("encoder"),
        **_stack("decoder"),
    }
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

    def config(self, said: Published) -> TransformerConfig:
        feed_forward = said.get("feed_forward_proj", "relu")
        tied = said.get("tie_word_embeddings", True)
        gated_gelu = feed_forward == "gated-gelu"
        return self.filled(
            said,
            {
                "n_decoder_layer": said["num_layers"],
                "positions": "relative",
                "n_position": None,
                "n_bucket": 32,
                "max_distance": 128,
                "head": language_head(said),
                "tied": True,
                "head_scale": said["d_model"] ** -0.5 if said.get("scale_decoder_outputs", tied) else 1.0,
                "block.v_dim": said["d_kv"],
                "block.norm": "rms",
                "block.norm_first": True,
                "block.norm_eps": 1e-6,
                "block.activation": "gelu_new" if gated_gelu else feed_forward.removeprefix("gated-"),
                "block.gated": feed_forward.startswith("gated-"),
                "block.attention_bias": False,
                "block.ff_bias": False,
                "block.scale": 1.0,
            },
        )

    def more(self, config: TransformerConfig) -> Said:
        block = config.block
        activation = published_activation(block.activation)
        if block.gated:
            activation = f"gated-{'gelu' if activation == 'gelu_new' else activation}"
        return {
            "is_encoder_decoder": True,
            "feed_forward_proj": activation,
            "scale_decoder_outputs": config.head_scale != 1.0,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        }

    def names(self, model: Transformer) -> dict[str, Weight]:
        """Without a gate, the one matrix upwards has a name of its own."""
        names = super().names(model)
        if not model.config.block.gated:
            names = {ours: replace(w, name=w.name.replace(".wi_1.", ".wi.")) for ours, w in names.items()}
        return names

    def initial_std(self, name: str, config: TransformerConfig) -> float:
        """Attention without a scale needs smaller queries (Raffel et al. 2020, code)."""
        block = config.block
        qk_dim = block.qk_dim or block.model_dim // block.n_head
        if name == "token.weight":
            return 1.0
        n_in = block.model_dim
        if name.endswith("query.weight"):
            n_in *= qk_dim
        elif name.endswith("out.weight"):
            n_in = block.n_head * qk_dim
        elif name.endswith("down.weight"):
            n_in = block.ff_dim
        return math.pow(n_in, -0.5)
