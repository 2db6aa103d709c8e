"""Regard: a workbench for attention. Build it, see it, check it, measure it.

The public names load on first use, so that `import regard` and `regard --help` answer at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOME = {
    "AdditiveAttention": "layers",
    "Attended": "attention",
    "KVCache": "cache",
    "MultiHeadAttention": "layers",
    "RegardError": "errors",
    "ScoreRule": "scores",
    "Trace": "tracing",
    "Visibility": "visibility",
    "attend": "attention",
    "attend_hard": "attention",
    "attend_linear": "linear",
    "fill_mask": "decode",
    "generate": "decode",
    "gru_forward": "recurrent",
    "gru_step": "recurrent",
    "load": "loading",
    "lstm_forward": "recurrent",
    "lstm_step": "recurrent",
    "masked_softmax": "attention",
    "rnn_forward": "recurrent",
    "rnn_step": "recurrent",
    "show": "view.widget",
    "trace": "capture",
    "weights": "attention",
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
    from regard.attention import Attended, attend, attend_hard, masked_softmax, weights
    from regard.cache import KVCache
    from regard.capture import trace
    from regard.decode import fill_mask, generate
    from regard.errors import RegardError
    from regard.layers import AdditiveAttention, MultiHeadAttention
    from regard.linear import attend_linear
    from regard.loading import load
    from regard.recurrent import gru_forward, gru_step, lstm_forward, lstm_step, rnn_forward, rnn_step
    from regard.scores import ScoreRule
    from regard.tracing import Trace
    from regard.view.widget import show
    from regard.visibility import Visibility
