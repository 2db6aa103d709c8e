"""Path patching: what one head does through one later head's queries, keys or values, and nothing else.

    path_effects(model, clean, corrupted, sender=(2, 5), answer=" Mary", against=" John").strongest(3)

The sender gives what it gave on the corrupted text. All other heads, and the feed-forward layers, keep their
clean outputs, so that the change reaches a later layer through the residual stream alone. There one head, the
receiver, computes with the changed queries (or keys, or values) and everything else as it was. Then the clean
run goes on with that head's new output, and everything after it reacts (Wang et al. 2023; Goldowsky-Dill et
al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.attention.data import Data
from regard.attention.scores import ScoreRule
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.experiments.changes import Change, HeadGate, PatchOutputs
from regard.experiments.engine import OurRows, RowEngine
from regard.experiments.exact import known_layers, say_rows
from regard.experiments.explain import frozen_parts
from regard.experiments.targets import PredictionTarget, Token, layer_words, progress_bar
from regard.files.loading import Loaded
from regard.heads.model import checked_heads
from regard.tracing.calls import AttentionCall

PathSide = Literal["q", "k", "v"]
_WORDS = {"q": "queries", "k": "keys", "v": "values"}


@dataclass(frozen=True, slots=True)
class PathEffect:
    """What one path does.

    Attributes:
        layer: The receiver's layer, by its place among all.
        head: The receiver.
        side: Which of its inputs the path ends in: "q", "k" or "v".
        change: Of the score, when the path alone carries the corrupted output.
        words: The path as people say it.
    """

    layer: int
    head: int
    side: PathSide
    change: float
    words: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PathEffects(Data):
    """The paths from one head to all later ones. Every number was run.

    Attributes:
        sender: The head that gives what it gave on the corrupted text, as people say it.
        score: Of the clean run.
        direct: The change of the score by the sender's output itself, through no other head or layer.
        paths: To each later head, through its queries, keys and values.
    """

    sender: str
    score: float
    direct: float
    paths: tuple[PathEffect, ...]

    def strongest(self, n: int = 10) -> list[PathEffect]:
        """Return the paths that change the score most, either way."""
        return sorted(self.paths, key=lambda path: -abs(path.change))[:n]

    def __repr__(self) -> str:
        strong = "; ".join(f"{path.words}: {path.change:+.3g}" for path in self.strongest(3))
        return f"PathEffects(from {self.sender}, direct {self.direct:+.3g}; {strong})"


@torch.no_grad()
def path_effects(
    model: Loaded | nn.Module,
    clean: Any,
    corrupted: Any = None,
    *,
    sender: tuple[int | str, int],
    answer: Token | None = None,
    against: Token | None = None,
    receivers: Sequence[tuple[int | str, int]] | None = None,
    sides: str = "qkv",
    feed_forward: Literal["frozen", "recomputed"] = "frozen",
    progress: bool = False,
    tokenizer: Any = None,
) -> PathEffects:
    """Return what one head does to a prediction through each later head's queries, keys or values alone.

    Args:
        model: A model of this library.
        clean: A text or ids, whose prediction is read after the last token.
        corrupted: Another with as many tokens, whose output the sender gives; None: the sender gives zero.
        sender: The head whose output is changed, (layer, head).
        answer: The token whose score is read, or its text; None: the likeliest after the clean text.
        against: Another token, whose score is subtracted; None: the log-probability is read.
        receivers: Later heads, (layer, head); None: all.
        sides: Which of "q", "k" and "v".
        feed_forward: "frozen": a path leads through the residual stream alone. "recomputed": feed-forward
            layers between sender and receiver react, as in Wang et al. 2023.
        progress: Print what is going to run, and draw a bar, on stderr.
        tokenizer: Where the model has none.

    Returns:
        One change of the score for each receiver and side, and the direct effect.

    Raises:
        UnsupportedError: The model is not of this library, or a layer has no queries and keys.
        ArgumentError: There is no such head, or a receiver does not come after the sender.
        ShapeError: The texts differ in length.
    """
    if not sides or set(sides) - set("qkv"):
        raise ArgumentError(f"sides are letters of 'qkv'. Got {sides!r}.")
    asked = PredictionTarget.about(model, clean, answer, against, None, tokenizer)
    engine = RowEngine(asked.loaded, asked.given, asked.reading)
    rows = engine.rows
    frozen = frozen_parts(engine)
    if not isinstance(rows, OurRows) or frozen is None:
        raise UnsupportedError("path patching is for models of this library: regard.load opens many as such.")
    known = known_layers(asked, engine)
    names, words = list(known), list(layer_words(known).values())
    ((from_layer, from_head),) = checked_heads(known, [sender])
    later = [(layer, head) for layer in range(from_layer + 1, len(names)) for head in known[names[layer]]]
    chosen = later if receivers is None else checked_heads(known, receivers)
    for layer, head in chosen:
        if layer <= from_layer:
            raise ArgumentError(f"{words[layer]} head {head} does not come after {words[from_layer]}.")
    name, at = names[from_layer], known[names[from_layer]].index(from_head)
    if corrupted is None:
        change: Change = (HeadGate(name, (at,)),)
    else:
        other = PredictionTarget.about(model, corrupted, asked.token, asked.against, None, tokenizer)
        source = RowEngine(other.loaded, other.given, other.reading)
        if source.outputs[name].shape != engine.outputs[name].shape:
            raise ShapeError(
                "the texts must have equally many tokens, so that positions correspond. Got "
                f"{len(asked.tokens)} (clean) and {len(other.tokens)} (corrupted)."
            )
        change = (PatchOutputs(name, (at,), source.outputs[name]),)
    # All later heads keep their outputs, so one run has what every later layer reads off the stream.
    seen: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    rows.observe = lambda layer, q, k, v: seen.__setitem__(layer, (q, k, v))
    try:
        sent = engine.run([(*change, *frozen.after(name, feed_forward=feed_forward == "frozen"))])
    finally:
        rows.observe = None
    direct = sent.scores
    if feed_forward != "frozen":
        direct = engine.run([(*change, *frozen.after(name))]).scores
    ends = [(layer, head, side) for layer, head in chosen for side in sides]
    changes = [
        (_received(rows, names[layer], known[names[layer]].index(head), side, seen[names[layer]]),)
        for layer, head, side in ends
    ]
    if progress:
        say_rows(len(changes), len(changes), "paths", engine.seconds_of(changes))
    with progress_bar("patching paths", progress) as bar:
        ran = engine.run(changes, progress=bar)
    moved = (ran.scores[:, 0] - engine.unchanged[0]).tolist()
    return PathEffects(
        f"{words[from_layer]} head {from_head}",
        float(engine.unchanged[0]),
        float(direct[0, 0] - engine.unchanged[0]),
        tuple(
            PathEffect(layer, head, side, score, f"{_WORDS[side]} of {words[layer]} head {head}")  # type: ignore[arg-type]
            for (layer, head, side), score in zip(ends, moved, strict=True)
        ),
    )


def _received(
    rows: OurRows, name: str, head: int, side: str, changed: tuple[Tensor, Tensor, Tensor]
) -> PatchOutputs:
    """What a head gives with changed queries, keys or values, and the others as they were."""
    rule = rows.rules[name]
    if not isinstance(rule, ScoreRule):
        raise UnsupportedError(
            f"{name} is linear attention: its heads have no queries and keys of their own."
        )
    k, v = rows.keys_values[name]
    parts = {"q": rows.queries[name], "k": k, "v": v}
    parts[side] = changed["qkv".index(side)]
    call = AttentionCall(name, "self", parts["v"], None, q=parts["q"], k=parts["k"], rule=rule)
    everything = slice(0, call.shape[2])
    new = rows.outputs[name].clone()
    new[:, [head]] = call.attended(call.softmax(call.scores_of([head], everything), [head]), [head]).to(new)
    return PatchOutputs(name, (head,), new)
