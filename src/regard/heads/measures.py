"""Numbers that say what each head looks at, from one pass over its weights, never query x key.

    measures = measure(trace)                    # of a trace
    measures["previous"]                         # (layer, head): mean weight on the previous token
    measures.chance["previous"]                  # (layer,): that of a head that looks everywhere alike

A mean is over the queries that have a choice (two visible keys at least) and the place in question.

A layer is read once, in blocks of rows. A block's weights are exp(z) with z = score - lse. One product gives
z (`log_product` of the layer), and a second, narrow one sums the weights over kinds of keys. What looks at
fixed distances, at copies or at the first key reads single cells.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from regard.attention.scores import ScoreRule, no_autocast
from regard.attention.visibility import Visibility
from regard.drawing.html import table
from regard.errors import ArgumentError, ShapeError
from regard.heads.chance import largest_permuted
from regard.heads.model import strongest
from regard.registry import LABELLED, MEASURES, SPECIAL_TOKEN
from regard.tracing.layers import AnyLayer, LayerTrace
from regard.tracing.traces import Trace

OFFSETS = tuple(range(-4, 5))  # key position minus query position, of which the argmax is counted
ARGMAXES = tuple(f"argmax{offset:+d}" for offset in OFFSETS)
ROW_MEASURES = (*(name for name in MEASURES if name != "positional"), *ARGMAXES)
_OF = [MEASURES.get(name, MEASURES["positional"]).of for name in ROW_MEASURES]
_OF_ARGMAX = torch.tensor([of == "argmax" for of in _OF])[:, None]
_OF_ROW = torch.tensor([of == "row" for of in _OF])[:, None]
SINKS, RECENT = 4, 5  # first and last positions that a cache for streaming keeps: offsets -4 to 0
_HEADS = "strongest heads (layer.head)"  # a column of a table
_HIDDEN = -87.0  # exp of it is the smallest float32 with all its digits: 0 to every sum, and no NaN times it
_SPECIAL = re.compile(SPECIAL_TOKEN)


@dataclass(frozen=True, slots=True, eq=False)
class Measures:
    """Each measure of each head, with what chance gives: NaN where a layer has no such head or place.

    Attributes:
        layers: The names of the layers.
        n_heads: How many heads each layer has.
        values: The means by name, ``(layer, head)``; ``argmax-4`` to ``argmax+4`` are the parts of
            positional.
        chance: The score of a head that looks at every visible key alike, ``(layer,)``.
        n_query: How many rows each mean is over, ``(layer,)``.
        variance: Of each mean if every row's weights were permuted over the keys it may look at,
            ``(layer, head)``; NaN for what permuting does not change.
        step: How much a single row can change each mean, ``(layer,)``.
    """

    layers: tuple[str, ...]
    n_heads: tuple[int, ...]
    values: Mapping[str, Float[Tensor, "layer head"]]
    chance: Mapping[str, Float[Tensor, "layer"]]
    n_query: Mapping[str, Int[Tensor, "layer"]]
    variance: Mapping[str, Float[Tensor, "layer head"]]
    step: Mapping[str, Float[Tensor, "layer"]]

    @property
    def n_row(self) -> Int[Tensor, "layer"]:
        """Return how many rows of each layer have a choice where to look."""
        return self.n_query["entropy"]

    def largest_by_chance(self, name: str) -> Float[Tensor, "layer head"]:
        """Return the level that hardly any head exceeds if each row's weights are permuted over its keys.

        All heads and all labels together exceed it once in twenty times at most. NaN for a measure that
        permuting does not change.
        """
        n_looked = sum(self.n_heads) * (len(LABELLED) + len(OFFSETS))
        beyond = largest_permuted(self.variance[name], self.step[name][:, None], n_looked)
        return self.chance[name][:, None] + beyond

    def __getitem__(self, name: str) -> Float[Tensor, "layer head"]:
        if name == "positional":
            return self._best_offset()[0]
        if name not in self.values:
            known = ", ".join(MEASURES)
            raise ArgumentError(f"there is no measure {name!r}: there are {known}.")
        return self.values[name]

    @property
    def offset(self) -> Int[Tensor, "layer head"]:
        """Key position minus query position at which a head's largest weight most often is."""
        return self._best_offset()[1]

    def _best_offset(self) -> tuple[Tensor, Tensor]:
        """The largest share of argmaxes at one offset, and that offset."""
        shares = torch.stack([self.values[name] for name in ARGMAXES])
        # An offset that no row has (the future, in a causal layer) is never the best; all NaN stays NaN.
        best, index = shares.nan_to_num(nan=-1.0).max(0)
        return torch.where(best < 0, torch.nan, best), torch.tensor(OFFSETS, device=index.device)[index]

    def strongest(self, name: str, n: int = 3) -> list[tuple[int, int, float]]:
        """Return the `n` heads that have most of a measure, as (layer, head, value)."""
        values = self[name]
        return [(layer, head, float(values[layer, head])) for layer, head in strongest(values, n)]

    def _rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        """Every measure with what it is, its mean, its chance level and its strongest heads."""
        for name, info in MEASURES.items():
            level = shown(self.chance[name].nanmean()) if name in self.chance else ""
            heads = ", ".join(f"{layer}.{head}: {value:.2f}" for layer, head, value in self.strongest(name))
            yield name, info.sentence, shown(self[name].nanmean()), level, heads

    def __repr__(self) -> str:
        lines = [f"Measures of {sum(self.n_heads)} heads in {len(self.layers)} layers"]
        for name, _, mean, level, heads in [("measure", "", "mean", "chance", _HEADS), *self._rows()]:
            lines.append(f"{name:<11} {mean:>7} {level:>7}  {heads}".rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The measures as a notebook shows them."""
        return table(("measure", "what it is", "mean", "chance", _HEADS), self._rows()).text


def shown(value: float | Tensor) -> str:
    """Three digits, and nothing for NaN."""
    return "" if math.isnan(value) else f"{float(value):.3f}"


@dataclass(frozen=True, slots=True, eq=False)
class TokenFacts:
    """Facts about the keys of one sequence, as rows of booleans, and its ids where copies matter."""

    special: Bool[Tensor, "key"]  # [CLS], [SEP], BOS and the like
    punctuation: Bool[Tensor, "key"]
    rare: Bool[Tensor, "key"]
    ids: Int[Tensor, "key"] | None = None
    key_mask: Bool[Tensor, "key"] | None = None  # False: padding; None: no token is


def token_facts(
    tokens: Sequence[str],
    ids: Int[Tensor, "key"] | None = None,
    *,
    key_mask: Bool[Tensor, "key"] | None = None,
    counts: Int[Tensor, "vocab"] | None = None,
    special_ids: Collection[int] = (),
) -> TokenFacts:
    """Facts about a line of tokens, from how they are spelled and how often they come.

    Rare are the tenth of the words that `counts` (a corpus's, or this text's own) has least of; of equals
    the one with the higher id, since vocabularies list what is frequent first. The first position does not
    count: heads rest there, whatever the word.

    >>> facts = token_facts(["[CLS]", "hi", ",", "Zanzibar", "[SEP]"])
    >>> facts.special.int().tolist(), facts.punctuation.int().tolist()
    ([1, 0, 0, 0, 1], [0, 0, 1, 0, 0])
    """
    n_key = len(tokens)
    if ids is not None and ids.shape != (n_key,):
        raise ShapeError(f"there are {n_key} tokens: ids must be as many. Got shape {tuple(ids.shape)}.")
    names: list[Any] = list(tokens) if ids is None else ids.tolist()
    highest = -1 if ids is None else max(names, default=-1)
    if counts is not None and (ids is None or highest >= counts.shape[0]):
        known = f"one number for each id of the vocabulary, {counts.shape[0]}"
        raise ArgumentError(f"counts has {known}: ids below that are needed. Got ids up to {highest}.")
    spelled = [_SPECIAL.fullmatch(token.strip()) is not None for token in tokens]
    special = [known or name in special_ids for known, name in zip(spelled, names, strict=True)]
    punctuation = [is_punctuation(token) and not s for token, s in zip(tokens, special, strict=True)]
    exists = [True] * n_key if key_mask is None else key_mask.tolist()
    words = [at for at in range(n_key) if exists[at] and not special[at] and not punctuation[at]]
    if len(words) > 1 and words[0] == exists.index(True):
        # Heads rest at the first position whatever stands there, and what stands there is often rare.
        words = words[1:]
    often = Counter(names[at] for at in words) if counts is None else counts.tolist()
    words.sort(key=lambda at: (often[names[at]], 0 if ids is None else -names[at]))
    least = set(words[: math.ceil(len(words) / 10)])
    rare = [at in least for at in range(n_key)]
    where = None if ids is None else ids.device
    kinds = torch.tensor([special, punctuation, rare], dtype=torch.bool, device=where)
    return TokenFacts(kinds[0], kinds[1], kinds[2], ids, key_mask)


def is_punctuation(token: str) -> bool:
    """Whether a token is made of punctuation and symbols alone.

    >>> is_punctuation(" ."), is_punctuation("##ing"), is_punctuation("a.")
    (True, False, False)
    """
    bare = token.strip().removeprefix("##")
    return bool(bare) and all(unicodedata.category(character)[0] in "PS" for character in bare)


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """For each query the keys that hold an earlier copy of its token, shifted by `shift`, as a sparse list.

    Those of query i are `sorted_keys[first[i] : first[i] + count[i]] + shift`.
    """

    sorted_keys: Int[Tensor, "key"]
    first: Int[Tensor, "query"]
    count: Int[Tensor, "query"]
    shift: int  # 0: the copy itself (duplicate); 1: what followed it (induction)

    def pairs(self, rows: slice) -> tuple[Int[Tensor, "pair"], Int[Tensor, "pair"]]:
        """Rows, counted from the first of `rows`, and keys of all pairs of these rows."""
        count = self.count[rows]
        row = torch.arange(len(count), device=count.device).repeat_interleave(count)
        before = (count.cumsum(0) - count)[row]
        within = torch.arange(row.shape[0], device=count.device) - before
        return row, self.sorted_keys[self.first[rows][row] + within] + self.shift


def copies(facts: TokenFacts, shift: int) -> Copies:
    """Earlier copies of each token (`shift` 0), or what followed them (1). Special tokens have none.

    >>> facts = token_facts(list("abcab"), torch.tensor([1, 2, 3, 1, 2]))
    >>> [keys.tolist() for keys in copies(facts, 1).pairs(slice(0, 5))]
    [[3, 4], [1, 2]]
    """
    if facts.ids is None:
        raise ArgumentError("copies of tokens are found by their ids: these facts have none.")
    places = torch.arange(len(facts.ids), device=facts.ids.device)
    left_out = facts.special if facts.key_mask is None else facts.special | ~facts.key_mask
    # What is left out gets an id that no other has, so that nothing is its copy.
    ids = torch.where(left_out, -1 - places, facts.ids.long())
    order = torch.argsort(ids, stable=True)
    starts = torch.searchsorted(ids[order], ids)
    count = order.argsort() - starts  # copies before this one
    if shift:
        # The copy right before a token, the last of its list, is followed by that token itself.
        count[1:] -= (ids[1:] == ids[:-1]).long()
    return Copies(order, starts, count, shift)


@torch.no_grad()
def measure(
    trace: Trace,
    *,
    batch: int | None = None,
    counts: Int[Tensor, "vocab"] | None = None,
    special_ids: Collection[int] = (),
    asked: Bool[Tensor, "query"] | None = None,
) -> Measures:
    """Measure every head of a trace, with the chance level of the same text.

    Each weight is made once and forgotten: memory grows with the length only.

    Args:
        trace: A trace of softmax attention, or weights that were given.
        batch: The sequence to measure; None takes all together.
        counts: How often each id of the vocabulary comes in a corpus, ``(vocab,)``: what is rare. Default: in
            this text.
        special_ids: Ids that are special, beside what is spelled like [CLS] or <s>.
        asked: The rows that retrieval is measured on, ``(query,)``. Default: all that could retrieve.

    Returns:
        Every measure of every head. Measures of positions are NaN in cross-attention.

    Raises:
        ArgumentError: If the trace has no layers.

    >>> measures = measure(Trace.from_weights([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    >>> measures["previous"], measures["same"]
    (tensor([[1.]], dtype=torch.float64), tensor([[0.1667]], dtype=torch.float64))
    """
    if not trace.layers:
        raise ArgumentError("this trace has no layers to measure.")
    n_heads = tuple(layer.n_head for layer in trace.layers)
    sums, spread = torch.zeros(2, len(ROW_MEASURES), len(n_heads), max(n_heads), dtype=torch.float64)
    chance, counted = torch.zeros(2, len(ROW_MEASURES), len(n_heads), dtype=torch.float64)
    frames: dict[object, _Frame] = {}
    for index, layer in enumerate(trace.layers):
        visible = layer.visibility
        if visible is None:  # weights that were given are causal if none is on the future
            future = layer.n_query != layer.n_key or bool(layer.tensors[0].triu(1).any())
            visible = Visibility(causal=not future)
        for sequence in range(layer.n_batch) if batch is None else [batch % layer.n_batch]:
            # Layers that see alike share a frame, and with it the chance level.
            tensors = tuple((tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in visible.tensors)
            flags = (visible.causal, visible.start, visible.window)
            key = (sequence, layer.kind, layer.n_query, layer.n_key, flags, tensors)
            if key not in frames:
                known = {"counts": counts, "special_ids": special_ids}
                frames[key] = _Frame(trace, layer, visible, sequence, asked, known)
            frame = frames[key]
            of_values, of_variances = _sums(layer, frame, sequence)
            sums[:, index, : layer.n_head] += of_values
            spread[:, index, : layer.n_head] += of_variances
            chance[:, index] += frame.chance
            counted[:, index] += frame.counted.sum(-1).cpu()
    missing = torch.arange(max(n_heads)) >= torch.tensor(n_heads)[:, None]
    # 0 / 0 is NaN: no row has what is asked for.
    means = (sums / counted[..., None]).masked_fill(missing, torch.nan)
    variance = (spread / counted[..., None] ** 2).masked_fill(missing, torch.nan)
    tables = (means, chance / counted, counted.long(), variance, 1 / counted)
    return Measures(trace.names, n_heads, *(dict(zip(ROW_MEASURES, t, strict=True)) for t in tables))


class _Frame:
    """What layers that see alike share on one text: which rows count for which measure, where they look, and
    the sums of a head that looks everywhere alike.
    """

    def __init__(
        self,
        trace: Trace,
        layer: AnyLayer,
        visible: Visibility,
        batch: int,
        asked: Bool[Tensor, "query"] | None,
        known: dict[str, Any],
    ) -> None:
        tokens, device = trace.key_tokens(layer.name, batch), layer.tensors[0].device
        key_mask = None if trace.key_mask is None else trace.key_mask[batch].to(device)
        of_keys = layer.kind == "self" and not trace._in_encoder(layer)
        if of_keys and trace.ids is not None and trace.ids.shape[1] == layer.n_key:
            facts = token_facts(tokens, trace.ids[batch].to(device), key_mask=key_mask, **known)
        else:  # copies of a source's tokens are known by their spelling: its ids are not kept
            names = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
            facts = token_facts(tokens, torch.tensor([names[token] for token in tokens], device=device))
            key_mask = (
                key_mask
                if layer.kind == "cross" and key_mask is not None and len(key_mask) == layer.n_query
                else None
            )
        n_query, n_key = layer.n_query, layer.n_key
        q, k = (torch.zeros(1, 1, n, 1, device=device) for n in (n_query, n_key))
        rule = ScoreRule(visible=visible.part(0, batch))
        uniform = LayerTrace("uniform", q, k, q[..., 0], rule, kind=layer.kind)
        has_positions = layer.kind == "self" and n_key >= n_query
        start = visible.start if has_positions else 0
        n_visible = torch.zeros(n_query, dtype=torch.long, device=device)
        key_mask = torch.ones_like(n_visible, dtype=torch.bool) if key_mask is None else key_mask
        reached = torch.zeros(n_key, dtype=torch.bool, device=device)
        sees = torch.zeros(len(OFFSETS), n_query, dtype=torch.bool, device=device)  # a key at that offset
        for rows, cols in uniform.row_blocks(1):
            seen = uniform.visible(0, rows, cols)
            n_visible[rows] = seen.sum(-1)
            reached[cols] |= seen[key_mask[rows]].any(0)
            if has_positions:
                at, is_there = _beside(rows, cols, start, device)
                sees[:, rows] = (seen.gather(1, at) & is_there).T
        choice = (n_visible >= 2) & key_mask
        none = torch.zeros_like(choice)
        first = int(reached.int().argmax()) if n_key else 0
        sees_first = uniform.visible(0, slice(0, n_query), slice(first, first + 1)).any(-1)
        after_first = torch.arange(n_query, device=device) + start > (first if has_positions else 0)
        listed: tuple[Copies, ...] = ()
        if has_positions and start == 0 and n_query == n_key:
            places = (copies(facts, shift) for shift in (0, 1))
            listed = tuple(replace(of_shift, count=of_shift.count * choice) for of_shift in places)
        copied, followed = (places.count > 0 for places in listed) if listed else (none, none)
        at_offset = dict(zip(OFFSETS, choice & sees, strict=True))
        rules = {
            "first": choice & sees_first & after_first,
            "previous": at_offset[-1],
            "same": at_offset[0],
            "next": at_offset[1],
            "distance": choice if has_positions else none,
            "duplicate": copied,
            "induction": followed,
            "retrieval": followed if asked is None else followed & asked.to(device),
            # Where these positions are no more than half of what may be seen.
            "streaming": choice & (n_visible >= 2 * (SINKS + RECENT)) & (visible.causal and has_positions),
            **dict(zip(ARGMAXES, at_offset.values(), strict=True)),
        }
        # 1 where a row counts, in the order of ROW_MEASURES.
        self.counted = torch.stack([rules.get(name, choice) for name in ROW_MEASURES]).double()
        sinks = torch.zeros_like(facts.special)
        sinks[first : first + SINKS] = True
        self.kinds = torch.stack([facts.special, facts.punctuation, facts.rare, sinks]).float()
        self.visible = visible  # held: no other tensor may get the addresses by which a frame is looked up
        self.n_visible, self.start = n_visible, start
        self.first = first  # the first key that a query sees: padding may stand before it
        self.copies = listed  # of tokens, and what followed them; none where positions say nothing
        uniform = replace(uniform, lse=n_visible.log()[None, None])
        self.places = torch.zeros_like(self.counted)  # how many keys count for a measure in each row
        self.chance = torch.zeros(len(ROW_MEASURES), dtype=torch.float64)
        for rows, cols, z, w in _blocks(uniform, self, 0):
            of_rows = _row_values(z, w, self, rows, cols, share_ties=True)
            values = torch.stack([of_rows[name][0] for name in ROW_MEASURES]).double()
            self.chance += (values * self.counted[:, rows]).sum(-1).cpu()
            self.places[:, rows] = values * n_visible[rows]


def _beside(rows: slice, cols: slice, start: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The columns of a block at OFFSETS from each row's own, and whether there are such; else the nearest."""
    own = torch.arange(rows.start, rows.stop, device=device) + start - cols.start
    at = own[:, None] + torch.tensor(OFFSETS, device=device)
    nearest = at.clamp(0, cols.stop - cols.start - 1)
    return nearest, at == nearest


def _blocks(
    layer: AnyLayer, frame: _Frame, batch: int
) -> Iterator[tuple[slice, slice, Float[Tensor, "head row col"], Float[Tensor, "head row col"]]]:
    """Yield blocks of rows as (rows, columns, z, w): w are weights, z their logarithms, very low for 0."""
    device = layer.tensors[0].device
    dtype = torch.promote_types(layer.tensors[0].dtype, torch.float32)
    visible = frame.visible
    product = layer.log_product(batch=batch) if visible.future_only else None
    with no_autocast(device):
        for rows, cols in layer.row_blocks(layer.n_head):
            if product is None:
                w = layer.block(None, rows, cols, batch)[0].to(dtype).contiguous()
                z = w.clamp(min=math.exp(_HIDDEN)).log_()
            else:
                q, k = product
                together = q[:, rows].reshape(k.shape[0], -1, q.shape[2])  # heads that share a key head
                z = (together @ k[:, cols].mT).unflatten(1, (-1, rows.stop - rows.start)).flatten(0, 1)
                if visible.causal:  # before `first` every row sees every key
                    first = max(0, rows.start + visible.start + 1 - cols.start)
                    seen = visible.tile(rows, slice(cols.start + first, cols.stop), device)[0]
                    z[:, :, first:].masked_fill_(~seen, _HIDDEN)
                w = z.exp()
            yield rows, cols, z, w


def _sums(
    layer: AnyLayer, frame: _Frame, batch: int
) -> tuple[Float64[Tensor, "measure head"], Float64[Tensor, "measure head"]]:
    """Return sums over the counted rows of each measure, and of its variance under permuted keys.

    Memory is O(N), and each weight is made once. Of a row of n weights, m of which count, a random
    permutation has the variance m (n - m) / (n - 1) times that of the weights themselves: they are drawn
    without replacement. Where the largest weight lands is right with probability m / n.
    """
    device = layer.tensors[0].device
    sums, spread = torch.zeros(2, len(ROW_MEASURES), layer.n_head, dtype=torch.float64, device=device)
    for rows, cols, z, w in _blocks(layer, frame, batch):
        counted, n, m = (
            frame.counted[:, rows],
            frame.n_visible[rows].clamp(min=2).double(),
            frame.places[:, rows],
        )
        of_weights = (
            torch.linalg.vector_norm(w, dim=-1).double().square() / n - (w.sum(-1).double() / n).square()
        )
        of_rows = _row_values(z, w, frame, rows, cols, share_ties=False)  # writes over z
        values = torch.stack([of_rows[name] for name in ROW_MEASURES])
        sums += torch.einsum("mhr,mr->mh", values.double(), counted)
        drawn = (counted * m * (n - m) / (n - 1)) @ of_weights.mT
        landed = (counted * (m / n) * (1 - m / n)).sum(-1, keepdim=True).expand_as(drawn)
        spread += torch.where(_OF_ARGMAX.to(device), landed, drawn)
    return sums.cpu(), spread.masked_fill(_OF_ROW.to(device), torch.nan).cpu()


def _row_values(
    z: Float[Tensor, "head row col"],
    w: Float[Tensor, "head row col"],
    frame: _Frame,
    rows: slice,
    cols: slice,
    share_ties: bool,
) -> dict[str, Float[Tensor, "head row"]]:
    """Every measure of every row of a block of weights w = exp(z); z is written over.

    A row of equal weights has no argmax; with `share_ties`, which is for the chance level, it falls on all
    of them alike.
    """
    (_, n_row, n_col), single, row = w.shape, w.flatten(1), torch.arange(w.shape[1], device=w.device)
    n_visible, largest = frame.n_visible[rows], w.amax(-1)
    beside, _ = _beside(rows, cols, frame.start, w.device)
    first = torch.full_like(beside[:, :1], min(max(0, frame.first - cols.start), n_col - 1))
    # Rows that have no such key read another, and do not count.
    near = (row[:, None] * n_col + torch.cat([beside, first], 1)).flatten()
    *at_offsets, at_first = single.index_select(1, near).view(-1, n_row, len(OFFSETS) + 1).unbind(-1)
    argmaxes, retrieved = at_offsets, torch.zeros_like(largest)
    on_copies = [retrieved, retrieved]
    for index, copied in enumerate(frame.copies):
        of_row, key = copied.pairs(rows)
        inside = (key >= cols.start) & (key < cols.stop)
        of_row, key = of_row[inside], key[inside] - cols.start
        weights = single.index_select(1, of_row * n_col + key)
        on_copies[index] = torch.zeros_like(largest).index_add(1, of_row, weights)
        if copied.shift and not share_ties:
            weights = (weights >= largest[:, of_row]).to(w.dtype)
            retrieved = retrieved.index_add(1, of_row, weights).clamp(max=1.0)
    if share_ties:
        retrieved = on_copies[1]
    else:  # a row of equal weights has no largest: rounding alone would choose it
        peaked = largest * n_visible > 1.001
        argmaxes = [((weights >= largest) & peaked).to(w.dtype) for weights in at_offsets]
        retrieved = retrieved * peaked
    entropy = -z.mul_(w).sum(-1)
    # From the block's first position: sums over keys that are far from 0 would lose digits.
    before = frame.start + rows.start - torch.arange(cols.start, cols.stop, device=w.device, dtype=w.dtype)
    of_keys = torch.stack([*frame.kinds[:, cols].to(w.dtype), torch.ones_like(before), before])
    *on_kinds, on_sinks, whole, back = (of_keys @ w.view(-1, n_col).T).view(-1, *w.shape[:2])
    if frame.visible.causal:  # weight on the left only: a row's distances are its place and that of its keys
        distance = whole * row + back
    else:
        distance = torch.mul(w, (row[:, None] + before).abs(), out=z).sum(-1)
    return {
        "entropy": entropy,
        "uniformity": entropy / n_visible.clamp(min=2).to(w.dtype).log(),
        "largest": largest,
        "first": at_first,
        **dict(zip(("special", "punctuation", "rare"), on_kinds, strict=True)),
        **dict(zip(("previous", "same", "next"), at_offsets[OFFSETS.index(-1) :], strict=False)),
        "distance": distance,
        **dict(zip(("duplicate", "induction"), on_copies, strict=True)),
        "retrieval": retrieved,
        "streaming": on_sinks + torch.stack(at_offsets[:RECENT]).sum(0),
        **dict(zip(ARGMAXES, argmaxes, strict=True)),
    }
