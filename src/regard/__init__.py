"""Regard: a workbench for attention. Build it, see it, check it, measure it.

The public names load on first use, so that `import regard` and `regard --help` answer at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOME = {
    "AdditiveAttention": "layers.attention",
    "Attended": "attention.softmax",
    "KVCache": "layers.cache",
    "MultiHeadAttention": "layers.attention",
    "RegardError": "errors",
    "ScoreRule": "attention.scores",
    "Trace": "tracing.traces",
    "Visibility": "attention.visibility",
    "attend": "attention.softmax",
    "attend_hard": "attention.softmax",
    "attend_linear": "attention.linear",
    "fill_mask": "decoding.masked",
    "generate": "decoding.loop",
    "gru_forward": "recurrent.cells",
    "gru_step": "recurrent.cells",
    "keep_freed_memory": "attention.allocation",
    "load": "files.loading",
    "lstm_forward": "recurrent.cells",
    "lstm_step": "recurrent.cells",
    "masked_softmax": "attention.softmax",
    "rnn_forward": "recurrent.cells",
    "rnn_step": "recurrent.cells",
    "show": "view.widget",
    "trace": "tracing.take",
    "watch": "tracing.around",
    "weights": "attention.softmax",
}

__all__ = sorted(_HOME)  # derived, so that the two cannot differ


def __getattr__(name: str) -> object:
    """PEP 562: import the module a public name lives in when it is first asked for."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    value = getattr(import_module(f"regard.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


if TYPE_CHECKING:
    from regard.attention.allocation import keep_freed_memory
    from regard.attention.linear import attend_linear
    from regard.attention.scores import ScoreRule
    from regard.attention.softmax import Attended, attend, attend_hard, masked_softmax, weights
    from regard.attention.visibility import Visibility
    from regard.decoding.loop import generate
    from regard.decoding.masked import fill_mask
    from regard.errors import RegardError
    from regard.files.loading import load
    from regard.layers.attention import AdditiveAttention, MultiHeadAttention
    from regard.layers.cache import KVCache
    from regard.recurrent.cells import gru_forward, gru_step, lstm_forward, lstm_step, rnn_forward, rnn_step
    from regard.tracing.around import watch
    from regard.tracing.take import trace
    from regard.tracing.traces import Trace
    from regard.view.widget import show
