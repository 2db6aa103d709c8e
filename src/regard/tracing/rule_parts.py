"""A score rule taken apart: its tensors listed, cut to one sequence and head, or copied for keeping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from regard.attention.scores import Bias, DenseBias, DistanceBias, ScoreRule, SlopeBias
from regard.attention.visibility import Visibility
from regard.errors import UnsupportedError


def visibility_tensors(visible: Visibility) -> dict[str, Tensor]:
    """The tensors of a visibility by the names of its fields."""
    names = ("lengths", "keys", "query_segment", "key_segment", "dense")
    return {name: tensor for name in names if (tensor := getattr(visible, name)) is not None}


def rule_tensors(rule: ScoreRule) -> dict[str, Tensor]:
    """The tensors of a score rule: its visibility's, its bias's and the additive vector."""
    found = visibility_tensors(rule.visible)
    if isinstance(rule.bias, DistanceBias | DenseBias):
        found["bias"] = rule.bias.values
    elif isinstance(rule.bias, SlopeBias):
        found["bias"] = rule.bias.slopes
    if rule.additive is not None:
        found["additive"] = rule.additive
    return found


def visible_part(visible: Visibility, batch: int | None, head: int | None) -> Visibility:
    """The visibility of one sequence and head."""
    if not (visible.by_key or visible.by_pair):
        return visible
    parts: dict[str, Any] = {
        name: one_of(tensor, 0, batch) for name, tensor in visibility_tensors(visible).items()
    }
    if "dense" in parts:
        parts["dense"] = one_of(parts["dense"], 1, head)
    return replace(visible, **parts)


def rule_part(rule: ScoreRule, batch: int | None, head: int | None) -> ScoreRule:
    """The rule of one sequence and head: a tile then costs nothing for the others."""
    bias: Bias | None = rule.bias
    if isinstance(bias, DistanceBias):
        bias = DistanceBias(one_of(bias.values, 0, head), bias.zero)
    elif isinstance(bias, SlopeBias):
        bias = SlopeBias(one_of(bias.slopes, 0, head))
    elif isinstance(bias, DenseBias):
        bias = DenseBias(one_of(one_of(bias.values, 0, batch), 1, head))
    elif bias is not None:
        raise UnsupportedError(f"a trace cannot take apart a bias of type {type(bias).__name__}.")
    return replace(rule, visible=visible_part(rule.visible, batch, head), bias=bias)


def mapped_rule(rule: ScoreRule, change: Callable[[Tensor], Tensor]) -> ScoreRule:
    """The rule with every tensor of it changed."""
    bias: Bias | None = rule.bias
    if isinstance(bias, DistanceBias | DenseBias):
        bias = replace(bias, values=change(bias.values))
    elif isinstance(bias, SlopeBias):
        bias = SlopeBias(change(bias.slopes))
    parts: dict[str, Any] = {
        name: change(tensor) for name, tensor in visibility_tensors(rule.visible).items()
    }
    additive = None if rule.additive is None else change(rule.additive)
    return replace(rule, visible=replace(rule.visible, **parts), bias=bias, additive=additive)


def one_of(tensor: Tensor, axis: int, index: int | None) -> Tensor:
    """The entry `index` along `axis`, kept as an axis of length 1; all where it is None or all share one."""
    if index is None or tensor.shape[axis] == 1:
        return tensor
    part: Tensor = tensor.narrow(axis, index, 1)
    return part
