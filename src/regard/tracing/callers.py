"""Which module of a model a function was called from, and what is known of it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import FrameType

from torch import Tensor, nn

from regard.attention.scores import ScoreRule
from regard.tracing.calls import Called
from regard.tracing.changes import Change
from regard.tracing.ours import OURS
from regard.tracing.recorder import Recorder

_CROSS_WORDS = ("cross", "encoder_attn", "encdec", "multihead_attn", "multi_head_attn")
_SOURCE_WORDS = ("key_value_states", "encoder_hidden_states")
_HEAD_WORDS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "heads", "h")

Modules = dict[int, tuple[str, nn.Module]]  # of a model, by id


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """The module from which attention was called."""

    name: str
    module: nn.Module
    cross: bool
    call: int  # a number for this run of it

    @classmethod
    def find(cls, modules: Modules) -> Caller | None:
        """The innermost module of the model on the stack of calls; None where it is none, or one of ours."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            seen = frame.f_locals
            module = seen.get("self")
            if isinstance(module, (Recorder, Change, *OURS)):
                return None  # what we compute ourselves
            if isinstance(module, nn.Module) and id(module) in modules:
                cross = any(isinstance(seen.get(word), Tensor) for word in _SOURCE_WORDS)
                if isinstance(module, nn.MultiheadAttention):
                    cross = seen.get("key") is not seen.get("query")
                return cls(modules[id(module)][0] or "attention", module, cross, id(frame))
            frame = frame.f_back
        return None

    @property
    def n_head(self) -> int | None:
        """How many heads the module says it has."""
        for word in _HEAD_WORDS:
            said = getattr(self.module, word, None)
            if isinstance(said, int) and said > 0:
                return said
        return None

    def named(self, called: Called) -> Called:
        """The call with its layer's name and kind.

        Cross-attention is known by name or argument; a single query over more keys is a step with a cache.
        """
        causal = isinstance(called.rule, ScoreRule) and called.rule.visible.causal
        another = called.shape[2] not in (1, called.shape[3]) and not causal
        cross = self.cross or another or any(word in self.name.lower() for word in _CROSS_WORDS)
        return replace(called, name=self.name, kind="cross" if cross else "self")


def batch_of(modules: Modules) -> int | None:
    """How many sequences the model was given: the first dimension of its first tensor, where it has one."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        seen = frame.f_locals
        if modules.get(id(seen.get("self")), ("inner", None))[0] == "":
            for value in (*seen.values(), *(seen.get("kwargs") or {}).values()):
                if isinstance(value, Tensor) and value.dim() > 1:
                    return value.shape[0]
        frame = frame.f_back
    return None
