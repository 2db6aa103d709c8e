"""The families of published Transformers, one file each: by name, side by side, and their first weights."""

from collections.abc import Mapping
from dataclasses import fields

import torch

from regard.errors import UnsupportedError
from regard.layers.block import BlockConfig
from regard.models.families.bert import BERT
from regard.models.families.family import Family, HFConfig, Published, Weight
from regard.models.families.gemma3 import Gemma3
from regard.models.families.gpt2 import GPT2
from regard.models.families.llama import Llama
from regard.models.families.neox import GPTNeoX
from regard.models.families.qwen3 import Qwen3
from regard.models.families.t5 import T5
from regard.models.transformer import Transformer, TransformerConfig

__all__ = [
    "FAMILIES",
    "Family",
    "HFConfig",
    "Published",
    "Weight",
    "differences",
    "family_of",
    "initialise",
    "published_config",
]

FAMILIES: dict[str, Family] = {
    family.name: family for family in (GPT2(), BERT(), Llama(), T5(), Qwen3(), Gemma3(), GPTNeoX())
}


def family_of(said: Published) -> Family:
    """The family a config.json belongs to."""
    kinds = {kind: family for family in FAMILIES.values() for kind in family.architectures}
    kind = said.get("model_type")
    if not isinstance(kind, str) or kind not in kinds:
        raise UnsupportedError(
            f"config.json says model_type {kind!r}: only {', '.join(kinds)} are known here."
        )
    return kinds[kind]


def published_config(config: TransformerConfig) -> HFConfig:
    """The config.json of a config of ours; an error where its family's format cannot say it."""
    if config.family not in FAMILIES:
        raise UnsupportedError(
            f"a model of family {config.family!r} has no published format: one of {', '.join(FAMILIES)} has."
        )
    if config.kept_heads is not None:
        left = sum(map(len, config.kept_heads))
        raise UnsupportedError(
            f"this model is pruned: {left} of {len(config.kept_heads) * config.block.n_head} heads are left, "
            f"and the {config.family} format gives every layer the same heads. "
            "Use regard.experiments.save_pruned, whose folder `load` reads."
        )
    return FAMILIES[config.family].published(config)


def initialise(model: Transformer, seed: int) -> Transformer:
    """Give a model the weights that its family's training starts from.

    Args:
        model: Changed in place.
        seed: The same seed gives the same weights, on every machine.

    Returns:
        The model.
    """
    model.reset_parameters(torch.Generator().manual_seed(seed))
    return model


_NOT_COMPARED = (
    *"family block rotary_scaling local local_rotary_base initial".split(),
    *"n_kv_head qk_dim v_dim dropout out_bias window".split(),
)


def differences() -> list[tuple[str, dict[str, str]]]:
    """The fields in which the families' published models differ: (field, family -> value)."""
    configs = {name: family.config(next(iter(family.sizes.values()))) for name, family in FAMILIES.items()}
    rows: list[tuple[str, dict[str, str]]] = [
        ("what", {name: family.what for name, family in FAMILIES.items()}),
        ("stacks", {name: config.kind for name, config in configs.items()}),
    ]
    blocks = {name: config.block for name, config in configs.items()}
    levels: tuple[Mapping[str, TransformerConfig | BlockConfig], ...] = (configs, blocks)
    for level in levels:
        for field in fields(next(iter(level.values()))):
            values = {name: getattr(config, field.name) for name, config in level.items()}
            if field.name == "rotary_base":  # means nothing to the others
                values = {n: v if configs[n].positions == "rotary" else None for n, v in values.items()}
            if field.name == "scale":
                values = {n: 1 if v == 1.0 else "1/sqrt(qk_dim)" for n, v in values.items()}
            if field.name not in _NOT_COMPARED and len(set(values.values())) > 1:
                rows.append((field.name, {name: _shown(value) for name, value in values.items()}))
    heads = {name: f"{b.n_kv_head or b.n_head} of {b.n_head}" for name, b in blocks.items()}
    return [*rows, ("key/value heads", heads)]


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "none" if value is None else str(value)
