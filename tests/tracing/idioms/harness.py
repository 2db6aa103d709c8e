"""What an idiom is, and how it is judged: against its own weights, and against changes made in its own code.

An idiom is a module that keeps its weights by hand in `self.kept`, a list of (batch, head, query, key), and
whose code has switches of its own: `scores` for a score of -inf, `weights` for rows of 0, `met` for other
weights, `gate` for the output of a head.
"""

import math
import warnings
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import nn

import regard
from regard.errors import RegardError

BATCH, N, DIM, HEAD = 2, 5, 12, 3


class Idiom(nn.Module):
    """A small model of attention with its own notes and its own switches."""

    n_head = HEAD
    switches = True  # whether its code has the switches below

    def __init__(self):
        super().__init__()
        self.kept, self.cut, self.gated, self.silent, self.put = [], None, None, None, None
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.more()

    def more(self):
        """Further parameters."""

    def given(self):
        """What it is called with: sequences, positions, numbers."""
        return (torch.randn(BATCH, N, DIM),)

    def heads(self, x):
        """Queries, keys and values, (batch, head, position, dim)."""
        parts = self.qkv(x).chunk(3, -1)
        return [part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in parts]

    def merge(self, x):
        return self.out(x.transpose(1, 2).flatten(-2))

    # The switches, as somebody who edits the model's code would write them.
    def scores(self, s, layer=0):
        """Scores (batch, head, query, key), after the change asked for."""
        if self.cut is not None and self.cut[0] == layer:
            _, b, h, q, k = self.cut
            hide = torch.zeros(s.shape, dtype=torch.bool)
            every = slice(None)
            hide[b, every if h is None else h, every if q is None else q, k] = True
            s = s.masked_fill(hide, -math.inf)
        return s

    def weights(self, w, layer=0):
        """Weights (batch, head, query, key) that a softmax gave, after the change asked for."""
        if self.silent is not None and self.silent[0] == layer:
            _, b, h, q = self.silent
            hide = torch.zeros(w.shape, dtype=torch.bool)
            every = slice(None)
            hide[every if b is None else b, every if h is None else h, every if q is None else q] = True
            w = w.masked_fill(hide, 0.0)
        return w

    def met(self, w, layer=0):
        """Weights as they meet values: noted, and exchanged where that is asked."""
        while len(self.kept) <= layer:
            self.kept.append(None)
        self.kept[layer] = w.detach()
        if self.put is not None and self.put[0] == layer:
            w = self.put[1]
        return w

    def note(self, weights):
        """Keep what weights would be, worked out where nobody looks on."""
        with torch._C.DisableTorchFunction():
            self.kept = [weights().detach()]

    def gate(self, o, layer=0):
        """The outputs of heads (batch, head, query, dim), after the change asked for."""
        if self.gated is not None and self.gated[0] == layer:
            _, head, by = self.gated
            factor = torch.ones(o.shape[1])
            factor[head] = by
            o = o * factor[:, None, None]
        return o


@dataclass
class Verdict:
    """What came of one idiom."""

    said: str  # equal, marked, refused, WRONG
    why: str = ""
    changes: dict = field(default_factory=dict)

    @property
    def wrong(self):
        return [
            name for name, said in {"trace": self.said, **self.changes}.items() if said.startswith("WRONG")
        ]


def judge(kind):
    """Trace an idiom and change it, and compare with its own notes and its own switches."""
    torch.manual_seed(7)
    model = kind().eval()
    given = model.given()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = model(*given)
        kept = list(model.kept)
        try:
            found = regard.trace(model, given, keep_v=True)
        except RegardError as error:
            return Verdict("refused", str(error))
        weights = [
            layer.block(None, slice(0, layer.n_query), slice(0, layer.n_key)) for layer in found.layers
        ]
        marks = {
            name: words for name, words in found.marks.items() if name not in ("changed", "other softmax")
        }
        same = len(weights) == len(kept) and all(
            mine.shape == other.shape and torch.allclose(mine.to(other.dtype), other, atol=3e-6)
            for mine, other in zip(weights, kept, strict=True)
        )
        if not same:
            seen, noted = ([None if w is None else tuple(w.shape) for w in some] for some in (weights, kept))
            shapes = f"{seen} for {noted}"
            if marks:
                return Verdict("marked", f"{shapes}; {marks}")
            return Verdict("WRONG", f"{found!r} {shapes}")
        verdict = Verdict("equal", repr(found))
        if kind.switches:
            verdict.changes = dict(_changes(model, given, plain, kept))
    return verdict


def _changes(model, given, plain, kept):
    layer = len(kept) - 1
    n_batch, n_head, n_query, _ = kept[layer].shape
    at = {"batch": n_batch - 1, "head": n_head - 1, "query": n_query - 1}
    # An edge that matters.
    key = int(kept[layer][at["batch"], at["head"], at["query"]].argmax())

    def own(**switch):
        for name, value in switch.items():
            setattr(model, name, value)
        out = model(*given)
        for name in switch:
            setattr(model, name, None)
        return out

    def theirs(change):
        with regard.intervene(model) as run:
            change(run)
            return model(*given)

    other = tuple(t.flip(0) if isinstance(t, torch.Tensor) and t.dim() > 2 else t for t in given)
    source = None
    with torch.no_grad(), suppress(RegardError):
        source = regard.trace(model, other, keep_v=True)
    model(*other)
    new = model.kept[layer].clone()
    model(*given)
    places = (at["batch"], at["head"], at["query"])
    tries = {
        "gate": (
            lambda: own(gated=(layer, at["head"], 0.3)),
            lambda run: run.gate(layer=layer, head=at["head"], by=0.3),
        ),
        "edge": (
            lambda: own(cut=(layer, *places, key)),
            lambda run: run.knock_out(layer=layer, key=key, **at),
        ),
        "row": (
            lambda: own(silent=(layer, *places)),
            lambda run: run.knock_out(layer=layer, **at),
        ),
        "head": (
            lambda: own(silent=(layer, None, at["head"], None)),
            lambda run: run.knock_out(layer=layer, head=at["head"]),
        ),
        "patch": (
            lambda: own(put=(layer, new)),
            lambda run: run.patch(layer=layer, source=source, what="weights"),
        ),
    }
    for name, (mine, change) in tries.items():
        if name == "patch" and source is None:
            continue
        wanted = mine()
        try:
            got = theirs(change)
        except RegardError as error:
            yield name, f"refused: {error}"
            continue
        close = torch.allclose(got, wanted, atol=2e-5, equal_nan=True)
        moved = not torch.allclose(wanted, plain, atol=1e-6, equal_nan=True)
        if close:
            yield name, "equal" if moved else "equal, without effect"
        else:
            yield name, f"WRONG by {float((got - wanted).abs().max()):.3g}"
