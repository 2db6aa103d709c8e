"""The experiments, in the order in which a course meets them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from regard.errors import ArgumentError, no_such

if TYPE_CHECKING:
    from regard.lab.spec import Experiment

# id -> its claim in a few words, for a list that imports no torch
EXPERIMENTS: dict[str, str] = {
    "variance": "dividing by the root of the dimension keeps the variance of scores at 1",
    "temperature": "without that division softmax saturates",
    "gradient": "without that division the gradient is smaller at every size, and dies as 1/d (refuted)",
    "argmax": "hard attention cannot be trained: queries and keys get no gradient",
    "memory": "recurrence forgets with distance, attention does not",
    "bottleneck": "a fixed context fails on long inputs, attention does not",
    "heads": "several heads look in several places at once; one head cannot",
    "order": "without positions a model cannot tell order (refuted: a causal one can)",
    "causal": "without the causal rule a model cheats by reading the next token",
    "nonlinear": "attention without softmax is cubic, not linear",
    "decoding": "multi-query divides the cache, and the bytes of a step, by the heads",
    "windows": "a stack of windows sees layers times window back, and not one token further",
    "sinks": "a head with nothing to say rests on the first token; a sink or a gate frees it",
    "qk norm": "norms on queries and keys bound the scores, whatever the weights",
    "latent": "a latent cache does not grow with the heads, and needs no keys made from it",
    "linear": "kernels make the cost linear in length, and cost quality",
    "delta": "the delta rule knows which value came last, where a sum can only guess",
    "trained": "trained heads look at something; random ones look everywhere",
    "context": "a word's vector depends on its sentence, more with every layer",
    "wide values": "values may be wider than keys: what must change, and what it costs",
    "pruning": "many heads can go, if the right ones go first",
    "eviction": "a cache may forget most of a text, and not the fact that is asked for",
    "families": "GPT, BERT and T5 differ in where they may look and how they know positions",
}


def find(name: str) -> Experiment:
    """The experiment of that id; a hyphen or underscore does for a space.

    >>> find("wide-values").id
    'wide values'
    """
    wanted = name.replace("-", " ").replace("_", " ")
    if wanted not in EXPERIMENTS:
        raise ArgumentError(no_such("experiment", name, EXPERIMENTS))
    from regard.lab.spec import Experiment

    file = import_module(f"regard.lab.{wanted.replace(' ', '_')}")
    texts = (file.CLAIM, file.PREDICTION, file.__doc__ or "")
    claim, prediction, note = (" ".join(text.split()) for text in texts)
    return Experiment(wanted, claim, prediction, file.run, note)
