"""The four families: their configs, their published sizes and the names of their published weights.

Nothing else is here. What a family is, is what its `config` function sets; compare the four.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from regard.errors import UnsupportedError
from regard.layers.attention import BlockConfig
from regard.layers.positions import RotaryScaling
from regard.models.transformer import TransformerConfig

Published = Mapping[str, Any]  # a Hugging Face config.json


@dataclass(frozen=True, slots=True)
class Source:
    """Where a weight of ours is in a published file."""

    name: str
    transposed: bool = False  # GPT-2 keeps its matrices (in, out)
    part: int | None = None  # GPT-2 keeps query, key and value in one: 0, 1 or 2


@dataclass(frozen=True, slots=True)
class Family:
    """One family: how to read its config.json, and what its weights are called."""

    name: str
    what: str
    model_types: tuple[str, ...]  # the `model_type` of config.json
    config: Callable[[Published], TransformerConfig]
    names: Callable[[TransformerConfig], dict[str, Source]]  # ours -> theirs
    prefixes: tuple[str, ...] = ("",)  # a file may put one of these before the names
    ignored: tuple[str, ...] = ()  # endings of tensors that are buffers or copies
    renamed: tuple[tuple[str, str], ...] = ()  # endings that older files spell otherwise: (old, new)
    sizes: Mapping[str, Published] = field(default_factory=dict)  # published sizes, for random weights


_ACTIVATION = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


def _activation(name: str) -> str:
    if name not in _ACTIVATION:
        raise UnsupportedError(f"the activation {name!r} is not known: one of {', '.join(_ACTIVATION)} is.")
    return _ACTIVATION[name]


def _refuse(config: Published, **unsupported: Any) -> None:
    """Raise where a config asks for something that would give other numbers than its authors meant."""
    for key, usual in unsupported.items():
        if config.get(key, usual) not in (usual, None):
            raise UnsupportedError(f"{key}={config[key]!r} in config.json is not supported, only {usual!r}.")


# GPT-2: a decoder; norms before; learned positions; everything has a bias. Radford et al. 2019.


def _gpt2_config(c: Published) -> TransformerConfig:
    _refuse(c, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    return TransformerConfig(
        family="gpt2",
        vocab=c["vocab_size"],
        n_decoder_layer=c["n_layer"],
        positions="learned",
        n_position=c["n_positions"],
        head="none" if _headless(c) else "language",
        tied=c.get("tie_word_embeddings", True),
        block=BlockConfig(
            model_dim=c["n_embd"],
            n_head=c["n_head"],
            ff_dim=c.get("n_inner") or 4 * c["n_embd"],
            norm="layer",
            norm_first=True,
            norm_eps=c.get("layer_norm_epsilon", 1e-5),
            activation=_activation(c.get("activation_function", "gelu_new")),
        ),
    )


def _gpt2_names(config: TransformerConfig) -> dict[str, Source]:
    names = {
        "token.weight": Source("wte.weight"),
        "position.weight": Source("wpe.weight"),
        **_weight_and_bias("decoder.norm", "ln_f"),
    }
    for i in range(config.n_decoder_layer):
        ours, theirs = f"decoder.blocks.{i}", f"h.{i}"
        for part, one in enumerate(("query", "key", "value")):
            names[f"{ours}.attention.{one}.weight"] = Source(f"{theirs}.attn.c_attn.weight", True, part)
            names[f"{ours}.attention.{one}.bias"] = Source(f"{theirs}.attn.c_attn.bias", part=part)
        names |= _weight_and_bias(f"{ours}.attention.out", f"{theirs}.attn.c_proj", transposed=True)
        names |= _weight_and_bias(f"{ours}.attention_norm", f"{theirs}.ln_1")
        names |= _weight_and_bias(f"{ours}.ff.up", f"{theirs}.mlp.c_fc", transposed=True)
        names |= _weight_and_bias(f"{ours}.ff.down", f"{theirs}.mlp.c_proj", transposed=True)
        names |= _weight_and_bias(f"{ours}.ff_norm", f"{theirs}.ln_2")
    return names | _unembedding(config)


# BERT: an encoder; norms after; learned positions and token types, normed; masked words. Devlin et al. 2019.


def _bert_config(c: Published) -> TransformerConfig:
    _refuse(c, position_embedding_type="absolute", is_decoder=False)
    masked = any("MaskedLM" in name or "PreTraining" in name for name in c.get("architectures") or ())
    return TransformerConfig(
        family="bert",
        vocab=c["vocab_size"],
        n_encoder_layer=c["num_hidden_layers"],
        positions="learned",
        n_position=c["max_position_embeddings"],
        n_token_type=c.get("type_vocab_size", 2),
        embed_norm=True,
        final_norm=False,
        head="masked" if masked else "none",
        tied=c.get("tie_word_embeddings", True),
        pooler=not masked,
        block=BlockConfig(
            model_dim=c["hidden_size"],
            n_head=c["num_attention_heads"],
            ff_dim=c["intermediate_size"],
            norm="layer",
            norm_first=False,
            norm_eps=c.get("layer_norm_eps", 1e-12),
            activation=_activation(c.get("hidden_act", "gelu")),
        ),
    )


def _bert_names(config: TransformerConfig) -> dict[str, Source]:
    names = {
        "token.weight": Source("embeddings.word_embeddings.weight"),
        "position.weight": Source("embeddings.position_embeddings.weight"),
        "token_type.weight": Source("embeddings.token_type_embeddings.weight"),
        **_weight_and_bias("embed_norm", "embeddings.LayerNorm"),
    }
    for i in range(config.n_encoder_layer):
        ours, theirs = f"encoder.blocks.{i}", f"encoder.layer.{i}"
        for one in ("query", "key", "value"):
            names |= _weight_and_bias(f"{ours}.attention.{one}", f"{theirs}.attention.self.{one}")
        names |= _weight_and_bias(f"{ours}.attention.out", f"{theirs}.attention.output.dense")
        names |= _weight_and_bias(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm")
        names |= _weight_and_bias(f"{ours}.ff.up", f"{theirs}.intermediate.dense")
        names |= _weight_and_bias(f"{ours}.ff.down", f"{theirs}.output.dense")
        names |= _weight_and_bias(f"{ours}.ff_norm", f"{theirs}.output.LayerNorm")
    if config.pooler:
        names |= _weight_and_bias("pooler", "pooler.dense")
    if config.head == "masked":
        names |= _weight_and_bias("masked_head.dense", "cls.predictions.transform.dense")
        names |= _weight_and_bias("masked_head.norm", "cls.predictions.transform.LayerNorm")
        names["masked_head.bias"] = Source("cls.predictions.bias")
        if not config.tied:
            names["unembed.weight"] = Source("cls.predictions.decoder.weight")
    return names


# Llama: a decoder; RMS norms before; rotary positions; grouped heads; gated feed-forward; no bias.
# Touvron et al. 2023; Mistral (a window) and Qwen2 (biases of query, key and value) are of this type too.


def _llama_config(c: Published) -> TransformerConfig:
    _refuse(c, partial_rotary_factor=1.0)
    qwen = c.get("model_type") == "qwen2"
    window = c.get("sliding_window")
    if qwen:
        # Its lower layers, as many as this says, see everything.
        full = (
            c.get("max_window_layers", 28) if c.get("use_sliding_window", False) else c["num_hidden_layers"]
        )
        if full >= c["num_hidden_layers"]:
            window = None
        elif full > 0 and window is not None:
            raise UnsupportedError(
                f"max_window_layers={full} of {c['num_hidden_layers']} in config.json is not supported: a "
                "window here is of all layers or of none."
            )
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    return TransformerConfig(
        family="llama",
        vocab=c["vocab_size"],
        n_decoder_layer=c["num_hidden_layers"],
        positions="rotary",
        n_position=c.get("max_position_embeddings", 2048),
        rotary_base=float(rope.get("rope_theta") or c.get("rope_theta") or 10_000.0),
        rotary_scaling=_rotary_scaling(rope, c.get("max_position_embeddings", 2048)),
        head="none" if _headless(c) else "language",
        tied=c.get("tie_word_embeddings", False),
        block=BlockConfig(
            model_dim=c["hidden_size"],
            n_head=c["num_attention_heads"],
            n_kv_head=c.get("num_key_value_heads") or c["num_attention_heads"],
            qk_dim=c.get("head_dim"),
            v_dim=c.get("head_dim"),
            ff_dim=c["intermediate_size"],
            norm="rms",
            norm_first=True,
            norm_eps=c.get("rms_norm_eps", 1e-6),
            activation=_activation(c.get("hidden_act", "silu")),
            gated=True,
            attention_bias=qwen or c.get("attention_bias", False),
            out_bias=False if qwen else None,
            ff_bias=c.get("mlp_bias", False),
            window=window,
        ),
    )


def _rotary_scaling(rope: Published, n_position: int) -> RotaryScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind not in ("linear", "llama3"):
        raise UnsupportedError(f"rotary scaling {kind!r} is not supported, only 'linear' and 'llama3'.")
    return RotaryScaling(
        kind=kind,
        factor=float(rope["factor"]),
        low_freq_factor=float(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=float(rope.get("high_freq_factor", 4.0)),
        original_positions=int(rope.get("original_max_position_embeddings", n_position)),
    )


def _llama_names(config: TransformerConfig) -> dict[str, Source]:
    names = {
        "token.weight": Source("embed_tokens.weight"),
        "decoder.norm.weight": Source("norm.weight"),
    }
    block = config.block
    for i in range(config.n_decoder_layer):
        ours, theirs = f"decoder.blocks.{i}", f"layers.{i}"
        names[f"{ours}.attention_norm.weight"] = Source(f"{theirs}.input_layernorm.weight")
        names[f"{ours}.ff_norm.weight"] = Source(f"{theirs}.post_attention_layernorm.weight")
        for one, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
            names[f"{ours}.attention.{one}.weight"] = Source(f"{theirs}.self_attn.{letter}_proj.weight")
            if block.attention_bias and not (one == "out" and block.out_bias is False):
                names[f"{ours}.attention.{one}.bias"] = Source(f"{theirs}.self_attn.{letter}_proj.bias")
        for one in ("up", "gate", "down"):
            names[f"{ours}.ff.{one}.weight"] = Source(f"{theirs}.mlp.{one}_proj.weight")
            if block.ff_bias:
                names[f"{ours}.ff.{one}.bias"] = Source(f"{theirs}.mlp.{one}_proj.bias")
    return names | _unembedding(config)


# T5: both; RMS norms before; relative positions as a bias; no scale, no bias. Raffel et al. 2020.


def _t5_config(c: Published) -> TransformerConfig:
    feed_forward = c.get("feed_forward_proj", "relu")
    gated = feed_forward.startswith("gated-")
    activation = "gelu_new" if feed_forward == "gated-gelu" else feed_forward.removeprefix("gated-")
    tied = c.get("tie_word_embeddings", True)
    return TransformerConfig(
        family="t5",
        vocab=c["vocab_size"],
        n_encoder_layer=c["num_layers"],
        n_decoder_layer=c.get("num_decoder_layers") or c["num_layers"],
        positions="relative",
        n_position=None,
        n_bucket=c.get("relative_attention_num_buckets", 32),
        max_distance=c.get("relative_attention_max_distance", 128),
        head="none" if _headless(c) else "language",
        tied=tied,
        head_scale=c["d_model"] ** -0.5 if c.get("scale_decoder_outputs", tied) else 1.0,
        block=BlockConfig(
            model_dim=c["d_model"],
            n_head=c["num_heads"],
            qk_dim=c["d_kv"],
            v_dim=c["d_kv"],
            ff_dim=c["d_ff"],
            norm="rms",
            norm_first=True,
            norm_eps=c.get("layer_norm_epsilon", 1e-6),
            activation=_activation(activation),
            gated=gated,
            attention_bias=False,
            ff_bias=False,
            scale=1.0,
        ),
    )


def _t5_names(config: TransformerConfig) -> dict[str, Source]:
    names = {"token.weight": Source("shared.weight")}
    for stack, n_layer in (("encoder", config.n_encoder_layer), ("decoder", config.n_decoder_layer)):
        relative = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        names[f"{stack}.relative.weight"] = Source(relative)
        names[f"{stack}.norm.weight"] = Source(f"{stack}.final_layer_norm.weight")
        last = 1 if stack == "encoder" else 2  # the feed-forward comes after the cross-attention
        for i in range(n_layer):
            ours, theirs = f"{stack}.blocks.{i}", f"{stack}.block.{i}.layer"
            kinds = [("attention", f"{theirs}.0", "SelfAttention")]
            if stack == "decoder":
                kinds.append(("cross", f"{theirs}.1", "EncDecAttention"))
            for kind, place, attention in kinds:
                for one, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
                    names[f"{ours}.{kind}.{one}.weight"] = Source(f"{place}.{attention}.{letter}.weight")
                names[f"{ours}.{kind}_norm.weight"] = Source(f"{place}.layer_norm.weight")
            up = {"up": "wi_1", "gate": "wi_0"} if config.block.gated else {"up": "wi"}
            for one, theirs_ff in {**up, "down": "wo"}.items():
                names[f"{ours}.ff.{one}.weight"] = Source(
                    f"{theirs}.{last}.DenseReluDense.{theirs_ff}.weight"
                )
            names[f"{ours}.ff_norm.weight"] = Source(f"{theirs}.{last}.layer_norm.weight")
    return names | _unembedding(config)


def _weight_and_bias(ours: str, theirs: str, *, transposed: bool = False) -> dict[str, Source]:
    return {
        f"{ours}.weight": Source(f"{theirs}.weight", transposed),
        f"{ours}.bias": Source(f"{theirs}.bias"),
    }


def _unembedding(config: TransformerConfig) -> dict[str, Source]:
    """The head of a language model, outside of what a prefix names."""
    if config.head == "none" or config.tied:
        return {}
    return {"unembed.weight": Source("lm_head.weight")}


def _headless(c: Published) -> bool:
    """Whether the file is of a bare model: `GPT2Model`, not `GPT2LMHeadModel`."""
    architectures = c.get("architectures") or ()
    return any(name.endswith("Model") and "LMHead" not in name for name in architectures)


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "gpt2",
            "decoder: predicts the next token",
            ("gpt2",),
            _gpt2_config,
            _gpt2_names,
            prefixes=("transformer.", ""),
            ignored=(".attn.bias", ".attn.masked_bias", "lm_head.weight"),
            sizes={
                "gpt2": {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
            },
        ),
        Family(
            "bert",
            "encoder: every token sees every other",
            ("bert",),
            _bert_config,
            _bert_names,
            prefixes=("bert.", ""),
            ignored=(
                "position_ids",
                "cls.predictions.decoder.weight",
                "cls.predictions.decoder.bias",
                "cls.seq_relationship.weight",
                "cls.seq_relationship.bias",
                "pooler.dense.weight",
                "pooler.dense.bias",
            ),
            renamed=(("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")),
            sizes={
                "bert": {
                    "vocab_size": 30522,
                    "num_hidden_layers": 12,
                    "max_position_embeddings": 512,
                    "hidden_size": 768,
                    "num_attention_heads": 12,
                    "intermediate_size": 3072,
                    "architectures": ["BertForMaskedLM"],
                },
                "minilm": {
                    "vocab_size": 30522,
                    "num_hidden_layers": 6,
                    "max_position_embeddings": 512,
                    "hidden_size": 384,
                    "num_attention_heads": 12,
                    "intermediate_size": 1536,
                    "architectures": ["BertModel"],
                },
            },
        ),
        Family(
            "llama",
            "decoder: predicts the next token",
            ("llama", "mistral", "qwen2"),
            _llama_config,
            _llama_names,
            prefixes=("model.", ""),
            ignored=("rotary_emb.inv_freq", "lm_head.weight"),
            sizes={
                name: {
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
                for name in ("llama", "smollm2")
            },
        ),
        Family(
            "t5",
            "encoder and decoder: rewrites one text as another",
            ("t5",),
            _t5_config,
            _t5_names,
            ignored=(
                "embed_tokens.weight",
                "lm_head.weight",
                "EncDecAttention.relative_attention_bias.weight",
            ),
            sizes={
                "t5": {
                    "vocab_size": 32128,
                    "d_model": 512,
                    "d_kv": 64,
                    "d_ff": 2048,
                    "num_layers": 6,
                    "num_heads": 8,
                }
            },
        ),
    )
}


def family_of(config: Published) -> Family:
    """The family a config.json belongs to."""
    kind = config.get("model_type")
    for family in FAMILIES.values():
        if kind in family.model_types:
            return family
    known = ", ".join(kind for family in FAMILIES.values() for kind in family.model_types)
    raise UnsupportedError(f"config.json says model_type {kind!r}: only {known} are known here.")
