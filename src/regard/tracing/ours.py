"""Attention layers of this library, which report themselves, in our models and inside anybody's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.layers.attention import AdditiveAttention, MultiHeadAttention, Record
from regard.layers.latent import LatentAttention
from regard.models.model import Model
from regard.models.seq2seq import DotAttention
from regard.tracing.calls import Called, Rule
from regard.tracing.layers import Kind
from regard.tracing.recorder import Recorder

OURS = (MultiHeadAttention, LatentAttention, AdditiveAttention, DotAttention)

# Given a call of attention and the outputs of its heads; answers with those that take their place.
Put = Callable[[Called, Tensor], Tensor]


def refuse_dropout(dropout: float) -> None:
    """Raise where attention drops weights: they would differ from run to run."""
    if dropout:
        raise ArgumentError(
            f"attention has dropout {dropout}, and its weights differ from run to run: "
            "call model.eval() before tracing."
        )


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The attention layers of this library in a model, by name; raises where one drops weights."""
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, OURS):
            refuse_dropout(module.dropout if module.training else 0.0)
            layers[name or "attention"] = module
    return layers


@contextmanager
def reporting(model: nn.Module, recorder: Recorder | None, change: Put | None = None) -> Iterator[None]:
    """A block in which attention layers of ours inside `model` report to `recorder` and pass `change`.

    A layer that is given a `record` already reports to that too. Whoever records sees what was computed,
    before any change of it.
    """
    thread = threading.get_ident()
    names = {id(module): name for name, module in attention_layers(model).items()}

    def ask(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        if threading.get_ident() != thread:
            return None
        elsewhere = not isinstance(module, MultiHeadAttention | LatentAttention) or len(args) > 1
        kind: Kind = "cross" if elsewhere or kwargs.get("memory") is not None else "self"
        given: Record | None = kwargs.get("record")

        def record(
            name: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rule: Rule
        ) -> Tensor | None:
            known = name if isinstance(model, Model) else names[id(module)]
            called = Called(known, kind, v, out, q=q, k=k, rule=rule, lse=lse)
            if recorder is not None:
                recorder.add(called)
            changed = None if given is None else given(name, q, k, v, out, lse, rule)
            return changed if change is None else change(called, out if changed is None else changed)

        return args, {**kwargs, "record": record}

    handles = [
        module.register_forward_pre_hook(ask, with_kwargs=True)
        for module in model.modules()
        if id(module) in names
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
