"""A config of ours as the config.json of its family, and the families side by side."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from regard.errors import UnsupportedError
from regard.models.families import FAMILIES
from regard.models.transformer import TransformerConfig

# config.json key -> where it is in ours
_KEYS: dict[str, dict[str, str]] = {
    "gpt2": {
        "vocab_size": "vocab",
        "n_layer": "n_decoder_layer",
        "n_positions": "n_position",
        "n_embd": "block.model_dim",
        "n_head": "block.n_head",
        "n_inner": "block.ff_dim",
        "layer_norm_epsilon": "block.norm_eps",
        "activation_function": "block.activation",
        "tie_word_embeddings": "tied",
    },
    "bert": {
        "vocab_size": "vocab",
        "num_hidden_layers": "n_encoder_layer",
        "max_position_embeddings": "n_position",
        "type_vocab_size": "n_token_type",
        "hidden_size": "block.model_dim",
        "num_attention_heads": "block.n_head",
        "intermediate_size": "block.ff_dim",
        "layer_norm_eps": "block.norm_eps",
        "hidden_act": "block.activation",
        "tie_word_embeddings": "tied",
    },
    "llama": {
        "vocab_size": "vocab",
        "num_hidden_layers": "n_decoder_layer",
        "max_position_embeddings": "n_position",
        "hidden_size": "block.model_dim",
        "num_attention_heads": "block.n_head",
        "num_key_value_heads": "block.n_kv_head",
        "head_dim": "block.qk_dim",
        "intermediate_size": "block.ff_dim",
        "rms_norm_eps": "block.norm_eps",
        "hidden_act": "block.activation",
        "attention_bias": "block.attention_bias",
        "mlp_bias": "block.ff_bias",
        "sliding_window": "block.window",
        "tie_word_embeddings": "tied",
    },
    "t5": {
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
    },
}
_ARCHITECTURES = {  # with a head, without
    "gpt2": ("GPT2LMHeadModel", "GPT2Model"),
    "bert": ("BertForMaskedLM", "BertModel"),
    "llama": ("LlamaForCausalLM", "LlamaModel"),
    "mistral": ("MistralForCausalLM", "MistralModel"),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Model"),
    "t5": ("T5ForConditionalGeneration", "T5Model"),
}
_ACTIVATION = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}


def published_config(config: TransformerConfig) -> dict[str, Any]:
    """The config.json from which `families.py` reads `config` again; an error where it cannot say it."""
    if config.family not in FAMILIES:
        raise UnsupportedError(
            f"a model of family {config.family!r} has no published format: one of {', '.join(FAMILIES)} has."
        )
    if config.kept_heads is not None:
        left = sum(map(len, config.kept_heads))
        raise UnsupportedError(
            f"this model is pruned: {left} of {len(config.kept_heads) * config.block.n_head} heads are left, "
            f"and the {config.family} format gives every layer the same heads. "
            "Use regard.heads.pruning.save_pruned, whose folder `load` reads."
        )
    block, family = config.block, FAMILIES[config.family]
    kind = config.family
    if kind == "llama" and block.attention_bias and block.out_bias is False:
        kind = "qwen2"
    elif kind == "llama" and block.window is not None:
        kind = "mistral"
    published: dict[str, Any] = {
        "model_type": kind,
        "architectures": [_ARCHITECTURES[kind][config.head == "none"]],
    }
    for key, path in _KEYS[config.family].items():
        value: Any = config
        for step in path.split("."):
            value = getattr(value, step)
        if value is not None:  # left out, it means what None means to us
            published[key] = _ACTIVATION[value] if path == "block.activation" else value
    if config.family == "llama":
        scaling = config.rotary_scaling
        rope: dict[str, Any] = {"rope_theta": config.rotary_base, "rope_type": "default"}
        if scaling is not None:
            rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
            rope |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
            rope |= {"original_max_position_embeddings": scaling.original_positions}
        published |= {"rope_theta": config.rotary_base, "rope_parameters": rope}
        published |= {"use_sliding_window": block.window is not None, "max_window_layers": 0}
    if config.family == "t5":
        activation = (
            "gelu" if block.gated and block.activation == "gelu_tanh" else _ACTIVATION[block.activation]
        )
        published |= {
            "is_encoder_decoder": True,
            "feed_forward_proj": f"gated-{activation}" if block.gated else activation,
            "scale_decoder_outputs": config.head_scale != 1.0,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        }
    if family.config(published) != config:
        raise UnsupportedError(f"the {family.name} format cannot say all of this config: {config}.")
    return published


def differences() -> list[tuple[str, dict[str, str]]]:
    """The fields in which the families' published models differ: (field, family -> value)."""
    configs = {name: family.config(next(iter(family.sizes.values()))) for name, family in FAMILIES.items()}
    rows: list[tuple[str, dict[str, str]]] = [
        ("what", {name: family.what for name, family in FAMILIES.items()}),
        ("stacks", {name: config.kind for name, config in configs.items()}),
    ]
    skipped = {
        "family",
        "block",
        "rotary_scaling",
        "n_kv_head",
        "qk_dim",
        "v_dim",
        "dropout",
        "out_bias",
        "window",
    }
    blocks = {name: config.block for name, config in configs.items()}
    for level in (configs, blocks):
        for each in fields(level["gpt2"]):
            values = {name: getattr(config, each.name) for name, config in level.items()}
            if each.name == "rotary_base":  # means nothing to the others
                values = {n: v if configs[n].positions == "rotary" else None for n, v in values.items()}
            if each.name not in skipped and len(set(values.values())) > 1:
                rows.append((each.name, {name: _shown(value) for name, value in values.items()}))
    heads = {
        name: f"{c.block.n_kv_head or c.block.n_head} of {c.block.n_head}" for name, c in configs.items()
    }
    rows.append(("key/value heads", heads))
    scales = {name: "1" if c.block.scale == 1.0 else "1/sqrt(qk_dim)" for name, c in configs.items()}
    return [(name, scales if name == "scale" else values) for name, values in rows]


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "none" if value is None else str(value)
