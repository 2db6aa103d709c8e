"""Numbers that say what each head looks at, from one pass over its weights, never query x key.

    measures = measure(trace)                    # of a trace
    measures["previous"]                         # (layer, head): mean weight on the previous token
    measures.chance["previous"]                  # (layer,): that of a head that looks everywhere alike

A mean is over the queries that have a choice (two visible keys at least) and the place in question.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.visibility import Visibility
from regard.drawing.html import tag
from regard.errors import ArgumentError
from regard.heads.frames import (
    OFFSETS,
    ROW_MEASURES,
    Cells,
    UniformLayer,
    make_frame,
    visibility_of,
)
from regard.heads.streaming import layer_sums
from regard.heads.tokens import TokenFacts, token_facts
from regard.tracing.layers import AnyLayer
from regard.tracing.traces import Trace

WHAT = {
    "entropy": "entropy of a row, in nats",
    "uniformity": "entropy over that of looking everywhere alike: 1 is uniform",
    "largest": "largest weight of a row",
    "first": "weight on the first position",
    "special": "weight on [CLS], [SEP], BOS and other special tokens",
    "punctuation": "weight on punctuation",
    "rare": "weight on the tenth of the words that is seen least, the first position apart",
    "previous": "weight on the position before",
    "next": "weight on the position after",
    "same": "weight on oneself",
    "distance": "mean distance looked over, in tokens",
    "duplicate": "weight on earlier copies of the token",
    "induction": "weight on what followed earlier copies of the token",
    "retrieval": "share of rows whose largest weight is on what followed an earlier copy of the token",
    "streaming": "weight on the first four positions and the last five, of rows that see many more",
    "positional": "share of rows whose largest weight is at one fixed distance (the best of -4 to 4)",
}


@dataclass(frozen=True, slots=True, eq=False)
class Measures:
    """Each measure of each head, and its chance level: NaN where a layer has no such head or place."""

    layers: tuple[str, ...]
    n_heads: tuple[int, ...]
    values: Mapping[str, Float[Tensor, "layer head"]]
    chance: Mapping[str, Float[Tensor, "layer"]]
    n_query: Mapping[str, Int[Tensor, "layer"]]  # how many rows each mean is over

    def __getitem__(self, name: str) -> Float[Tensor, "layer head"]:
        if name == "positional":
            return best_offset(self.values)[0]
        if name not in self.values:
            known = ", ".join([*self.values, "positional"])
            raise ArgumentError(f"there is no measure {name!r}: there are {known}.")
        return self.values[name]

    @property
    def offset(self) -> Int[Tensor, "layer head"]:
        """Key position minus query position at which a head's largest weight most often is."""
        return best_offset(self.values)[1]

    def strongest(self, name: str, n: int = 3) -> list[tuple[int, int, float]]:
        """The `n` heads that have most of a measure, as (layer, head, value)."""
        table = self[name]
        order = table.nan_to_num(-torch.inf).flatten().argsort(descending=True, stable=True)
        places = [divmod(int(index), table.shape[1]) for index in order[:n]]
        heads = [(layer, head, float(table[layer, head])) for layer, head in places]
        return [head for head in heads if not math.isnan(head[2])]  # NaN: there is no such head

    def _rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        """Every measure with what it is, its mean, its chance level and its strongest heads."""
        for name, what in WHAT.items():
            level = shown(self.chance[name].nanmean()) if name in self.chance else ""
            heads = ", ".join(f"{layer}.{head}: {value:.2f}" for layer, head, value in self.strongest(name))
            yield name, what, shown(self[name].nanmean()), level, heads

    def __repr__(self) -> str:
        lines = [
            f"{name:<11} {mean:>7} {level:>7}  {heads}".rstrip()
            for name, _, mean, level, heads in self._rows()
        ]
        title = f"Measures of {sum(self.n_heads)} heads in {len(self.layers)} layers"
        return "\n".join([title, "measure        mean  chance  strongest heads (layer.head)", *lines])

    def _repr_html_(self) -> str:
        """The measures as a notebook shows them."""
        words = ("measure", "what it is", "mean", "chance", "strongest heads (layer.head)")
        rows = [tag("tr", *(tag("td", cell) for cell in row)) for row in self._rows()]
        return tag("table", tag("tr", *(tag("th", word) for word in words)), *rows).text


def shown(value: float | Tensor) -> str:
    """Three digits, and nothing for NaN."""
    return "" if math.isnan(value) else f"{float(value):.3f}"


def best_offset(values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The largest share of argmaxes at one offset, and that offset."""
    shares = torch.stack([values[f"argmax{offset:+d}"] for offset in OFFSETS])
    # An offset that no row has (the future, in a causal layer) is never the best; all NaN stays NaN.
    best, index = shares.nan_to_num(nan=-1.0).max(0)
    best = torch.where(best < 0, torch.nan, best)
    return best, torch.tensor(OFFSETS, device=index.device)[index]


def measure(
    trace: Trace,
    *,
    batch: int | None = None,
    counts: Int[Tensor, "vocab"] | None = None,
    special_ids: Collection[int] = (),
    asked: Bool[Tensor, "query"] | None = None,
) -> Measures:
    """Every measure of every head of a trace, and the chance level of the same text.

    Each weight is made once and forgotten: memory grows with the length only. `batch` chooses one sequence,
    None takes all together. `counts` (one number for each id) says what is rare, `special_ids` what
    is special beside what is spelled like [CLS] or <s>. `asked` chooses the rows that retrieval is measured
    on, all that could retrieve something by default. Position measures are NaN in cross-attention.

    >>> measures = measure(Trace.from_weights([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    >>> measures["previous"], measures["same"]
    (tensor([[1.]], dtype=torch.float64), tensor([[0.1667]], dtype=torch.float64))
    """
    if not trace.layers:
        raise ArgumentError("this trace has no layers to measure.")
    widest = max(layer.n_head for layer in trace.layers)
    n_layer = len(trace.layers)
    sums = torch.zeros(len(ROW_MEASURES), n_layer, widest, dtype=torch.float64)
    chance, counted = torch.zeros(2, len(ROW_MEASURES), n_layer, dtype=torch.float64)
    known: dict[object, tuple[Cells, Tensor, Tensor]] = {}
    kept: list[Visibility] = []  # so that the addresses of their tensors, by which frames are looked up, stay
    for index, layer in enumerate(trace.layers):
        visible = visibility_of(layer)
        kept.append(visible)
        for sequence in range(layer.n_batch) if batch is None else [batch % layer.n_batch]:
            key = (*_signature(layer, visible), sequence)
            if key not in known:
                facts, real = _facts(trace, layer, sequence, counts, special_ids)
                sizes, device = (layer.n_batch, layer.n_query, layer.n_key), facts.special.device
                uniform = UniformLayer(visible, sizes, device, kind=layer.kind)
                cells = Cells(make_frame(uniform, facts, sequence, real, asked))
                level = layer_sums(uniform, cells, sequence, share_ties=True)[:, 0]
                known[key] = (cells, level.cpu(), cells.frame.counted.sum(-1).cpu())
            cells, level, n_row = known[key]
            sums[:, index, : layer.n_head] += layer_sums(layer, cells, sequence).cpu()
            chance[:, index] += level
            counted[:, index] += n_row
    n_heads = tuple(layer.n_head for layer in trace.layers)
    missing = torch.arange(widest) >= torch.tensor(n_heads)[:, None]
    # 0 / 0 is NaN: no row has what is asked for.
    means = (sums / counted[..., None]).masked_fill(missing, torch.nan)
    return Measures(
        trace.names,
        n_heads,
        dict(zip(ROW_MEASURES, means, strict=True)),
        dict(zip(ROW_MEASURES, chance / counted, strict=True)),
        dict(zip(ROW_MEASURES, counted.long(), strict=True)),
    )


def _signature(layer: AnyLayer, visible: Visibility) -> tuple[object, ...]:
    """What two layers that see alike have in common."""
    tensors = tuple((t.data_ptr(), t.shape, t.dtype) for t in visible.tensors)
    return (layer.kind, layer.n_query, layer.n_key, visible.causal, visible.start, visible.window, tensors)


def _facts(
    trace: Trace, layer: AnyLayer, batch: int, counts: Tensor | None, special_ids: Collection[int]
) -> tuple[TokenFacts, Tensor | None]:
    """Facts of a layer's keys, and which of its queries are real."""
    tokens = trace.key_tokens(layer.name, batch)
    device = layer.tensors[0].device
    has_ids = layer.kind == "self" and trace.ids is not None and trace.ids.shape[1] == layer.n_key
    real = None if trace.real is None else trace.real[batch].to(device)
    if has_ids and not trace._in_encoder(layer):
        assert trace.ids is not None
        ids = trace.ids[batch].to(device)
        return token_facts(tokens, ids, real=real, counts=counts, special_ids=special_ids), real
    # Copies of a source's tokens are known by their spelling: its ids are not kept.
    names = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    ids = torch.tensor([names[token] for token in tokens], device=device)
    queries = real if real is not None and real.shape[0] == layer.n_query and layer.kind == "cross" else None
    return token_facts(tokens, ids), queries
