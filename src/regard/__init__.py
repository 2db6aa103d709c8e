"""Regard: a workbench for attention. Build it, see it, check it, measure it.

    attend, weights, masked_softmax, attend_hard     attention on tensors, with a ScoreRule and a Visibility
    attend_linear, feature_map                       kernelised attention, with a FeatureMap
    MultiHeadAttention, AdditiveAttention, Block     layers; KVCache keeps what they have read
    Transformer, TransformerConfig                   a whole model
    load, save, generate, fill_mask                  models from files and back, and what they write
    trace, show, to_html                             every weight of a forward pass, and its page
    watch, intervene                                 around any call: see, change
    effects, why                                     a prediction without each head, edge, position or layer
    check                                            an answer to an exercise; `%load_ext regard`

The rest is in packages: `regard.attention`, `regard.layers`, `regard.models`, `regard.recurrent`,
`regard.tracing`, `regard.heads`, `regard.experiments`, `regard.costs`, `regard.drawing`, `regard.train`.

The names load on first use, so that `import regard` and `regard --help` answer at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_NAMES = {
    "allocation": "keep_freed_memory",
    "attention.feature_maps": "FeatureMap feature_map",
    "attention.linear": "attend_linear",
    "attention.scores": "ScoreRule",
    "attention.softmax": "Attended attend attend_hard masked_softmax weights",
    "attention.visibility": "Visibility",
    "checking.session": "check",
    "decoding.loop": "generate",
    "decoding.masked": "fill_mask",
    "errors": "RegardError",
    "experiments.exact": "effects",
    "experiments.explain": "why",
    "files.loading": "Loaded load save",
    "layers.attention": "AdditiveAttention MultiHeadAttention",
    "layers.block": "Block BlockConfig",
    "layers.cache": "KVCache",
    "layers.eviction": "Evict",
    "models.transformer": "Transformer TransformerConfig",
    "tracing.generation": "watch",
    "tracing.interventions": "intervene",
    "tracing.take": "trace",
    "tracing.traces": "Trace",
    "view.page": "to_html",
    "view.widget": "show",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOME)  # derived, so that the two cannot differ


def __getattr__(name: str) -> object:
    """Import the module of a public name when it is first used (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    value = getattr(import_module(f"regard.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: object) -> None:
    """Register `%%check`, `%quiz` and `%lab` in a notebook, for `%load_ext regard`."""
    import_module("regard.commands.notebook").load(shell)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


if TYPE_CHECKING:
    from regard.allocation import keep_freed_memory
    from regard.attention.feature_maps import FeatureMap, feature_map
    from regard.attention.linear import attend_linear
    from regard.attention.scores import ScoreRule
    from regard.attention.softmax import Attended, attend, attend_hard, masked_softmax, weights
    from regard.attention.visibility import Visibility
    from regard.checking.session import check
    from regard.decoding.loop import generate
    from regard.decoding.masked import fill_mask
    from regard.errors import RegardError
    from regard.experiments.exact import effects
    from regard.experiments.explain import why
    from regard.files.loading import Loaded, load, save
    from regard.layers.attention import AdditiveAttention, MultiHeadAttention
    from regard.layers.block import Block, BlockConfig
    from regard.layers.cache import KVCache
    from regard.layers.eviction import Evict
    from regard.models.transformer import Transformer, TransformerConfig
    from regard.tracing.generation import watch
    from regard.tracing.interventions import intervene
    from regard.tracing.take import trace
    from regard.tracing.traces import Trace
    from regard.view.page import to_html
    from regard.view.widget import show
