"""Who may look at whom.

`Visibility` keeps the answer compact (a flag, a length, a row of booleans), so that any tile of the
query x key table can be drawn on its own and nothing of size query x key need exist. True always means
"may look", as in `torch.nn.functional.scaled_dot_product_attention`.

>>> Visibility(causal=True).tile(slice(0, 3), slice(0, 3))[0, 0].int().tolist()
[[1, 0, 0], [1, 1, 0], [1, 1, 1]]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.data import Data
from regard.attention.shapes import check_divides, check_sizes, chosen, row_blocks
from regard.errors import ArgumentError, ShapeError

_WORDS = {
    "lengths": ("batch", "query"),  # or for the whole sequence: ("batch",)
    "key_mask": ("batch", "key"),
    "query_segment": ("batch", "query"),
    "key_segment": ("batch", "key"),
    "dense": ("batch", "head", "query", "key"),
}
# exp() of this is 0 in every dtype; of a number below it too, whatever scores of some size are added.
_EXP_IS_ZERO = -104.0
_SURELY_MASKED = -1e9
_FEW_NUMBERS = 8  # a mask has one or two numbers for what it masks; a bias that falls with distance has many
_FAR = 1 << 30  # beyond any position


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Visibility(Data):
    """Which keys each query may look at; every part given must allow it.

    Key `j` is at absolute position `j`, query `i` at `start + i`: with a cache, `start` is the number of
    positions already in it. `&` combines two.

    Attributes:
        causal: A query sees keys up to its own position.
        start: Absolute position of the first query.
        window: A query sees keys less than this many positions away, itself included. None: any distance.
        lengths: ``(batch,)`` or ``(batch, query)``: only keys before this one are seen.
        key_mask: ``(batch or 1, key)``: False where a key is padding.
        query_segment: ``(batch, query)``: a query sees the keys of its own segment.
        key_segment: ``(batch, key)``: the segment of each key; goes with `query_segment`.
        dense: ``(batch or 1, head or 1, query, key)``: whatever nothing above can say, True = may look.

    Raises:
        ArgumentError: If `start` or `window` is out of range, or one segment is given without the other.
        ShapeError: If a tensor has another rank or dtype.
    """

    causal: bool = False  # key_pos <= query_pos
    start: int = 0  # absolute position of the first query
    window: int | None = None  # |query_pos - key_pos| < window
    lengths: Int[Tensor, "batch"] | Int[Tensor, "batch query"] | None = None  # keys before this one
    key_mask: Bool[Tensor, "_batch key"] | None = None  # False: padding
    query_segment: Int[Tensor, "batch query"] | None = None  # a query sees the keys of its own segment
    key_segment: Int[Tensor, "batch key"] | None = None
    dense: Bool[Tensor, "_batch _head query key"] | None = None  # whatever nothing above can say
    older_names: ClassVar[Mapping[str, str]] = {"keys": "key_mask"}

    def __post_init__(self) -> None:
        if not 0 <= self.start < _FAR:
            raise ArgumentError(f"start is the position of the first query, from 0 on. Got {self.start}.")
        if self.window is not None and self.window < 1:
            raise ArgumentError(
                f"window counts the positions seen, with oneself: at least 1. Got {self.window}."
            )
        if (self.query_segment is None) != (self.key_segment is None):
            raise ArgumentError("query_segment and key_segment go together: give both or neither.")
        for name, words in _WORDS.items():
            tensor: Tensor | None = getattr(self, name)
            if tensor is None:
                continue
            boolean = name in ("key_mask", "dense")
            if tensor.is_floating_point() or (tensor.dtype == torch.bool) != boolean:
                wanted = "boolean, True = may look" if boolean else "whole numbers"
                raise ShapeError(f"{name} must be {wanted}. Got dtype {tensor.dtype}.")
            if tensor.dim() != len(words) and not (name == "lengths" and tensor.dim() == 1):
                either = "(batch,) or " if name == "lengths" else ""
                raise ShapeError(
                    f"{name} must be {either}({', '.join(words)}). Got shape {tuple(tensor.shape)}."
                )

    @property
    def everything(self) -> bool:
        """Whether every query sees every key."""
        return self.future_only and not self.causal

    @property
    def future_only(self) -> bool:
        """Whether nothing is hidden but, if causal, the future."""
        return self.window is None and not self.by_key and not self.by_pair

    @property
    def by_key(self) -> bool:
        """Whether some keys are hidden from all queries of a sequence alike."""
        return self.key_mask is not None or (self.lengths is not None and self.lengths.dim() == 1)

    @property
    def by_pair(self) -> bool:
        """Whether a part needs query and key together and is no simple function of their distance."""
        return (
            self.dense is not None
            or self.query_segment is not None
            or (self.lengths is not None and self.lengths.dim() == 2)
        )

    def __and__(self, other: Visibility) -> Visibility:
        """Visible where both are."""
        positional = [v for v in (self, other) if v.causal or v.window is not None or v.start]
        if len({v.start for v in positional}) > 1:
            raise ArgumentError(
                "two visibilities that speak of positions must agree on where the queries start. "
                f"Got start={self.start} and start={other.start}."
            )
        windows = [v.window for v in (self, other) if v.window is not None]
        first, second = (self, other) if self.query_segment is not None else (other, self)
        dense = _both(torch.logical_and, self.dense, other.dense)
        if second.query_segment is not None and second.key_segment is not None:
            same = second.query_segment[:, :, None] == second.key_segment[:, None]
            dense = _both(torch.logical_and, dense, same[:, None])
        lengths = [v.lengths for v in (self, other)]
        if {t.dim() for t in lengths if t is not None} == {1, 2}:
            lengths = [t if t is None or t.dim() == 2 else t[:, None] for t in lengths]
        return Visibility(
            causal=self.causal or other.causal,
            start=positional[0].start if positional else 0,
            window=min(windows, default=None),
            lengths=_both(torch.minimum, *lengths),
            key_mask=_both(torch.logical_and, self.key_mask, other.key_mask),
            query_segment=first.query_segment,
            key_segment=first.key_segment,
            dense=dense,
        )

    def tile(
        self, rows: slice, cols: slice, device: torch.device | str | None = None
    ) -> Bool[Tensor, "_batch _head rows cols"]:
        """Return the block `rows` x `cols` of the table; batch and head may be 1."""
        device = self.device or device
        query_pos = torch.arange(rows.start + self.start, rows.stop + self.start, device=device)[:, None]
        key_pos = torch.arange(cols.start, cols.stop, device=device)[None, :]
        if self.causal:
            visible = (key_pos <= query_pos)[None, None]
        else:
            visible = torch.ones(1, 1, query_pos.shape[0], key_pos.shape[1], dtype=torch.bool, device=device)
        if self.window is not None:
            visible = visible & ((query_pos - key_pos).abs() < self.window)
        if self.lengths is not None:
            lengths = self.lengths[:, None] if self.lengths.dim() == 1 else self.lengths[:, rows]
            visible = visible & (key_pos < lengths[:, None, :, None])
        if self.key_mask is not None:
            visible = visible & self.key_mask[:, None, None, cols]
        if self.query_segment is not None and self.key_segment is not None:
            same = self.query_segment[:, rows, None] == self.key_segment[:, None, cols]
            visible = visible & same[:, None]
        if self.dense is not None:
            visible = visible & self.dense[:, :, rows, cols]
        return visible

    def part(self, head: int | Sequence[int] | None, batch: int | Sequence[int] | None) -> Visibility:
        """Return the visibility of one sequence (None: all), and of one head, some or all."""
        if not (self.by_key or self.by_pair):
            return self
        part = self.mapped(lambda tensor: chosen(tensor, 0, batch))
        return part if part.dense is None else replace(part, dense=chosen(part.dense, 1, head))

    @property
    def device(self) -> torch.device | None:
        """Where the tensors are; None where there are none."""
        tensors = (self.lengths, self.key_mask, self.key_segment, self.dense)
        return next((tensor.device for tensor in tensors if tensor is not None), None)

    def sees_all(self, rows: slice, cols: slice) -> bool:
        """Return whether positions alone tell that every query of `rows` sees every key of `cols`.

        >>> causal = Visibility(causal=True)
        >>> causal.sees_all(slice(3, 5), slice(0, 4)), causal.sees_all(slice(3, 5), slice(0, 5))
        (True, False)
        """
        first, last = self.start + rows.start, self.start + rows.stop - 1
        behind = not self.causal or cols.stop - 1 <= first
        near = self.window is None or max(last - cols.start, cols.stop - 1 - first) < self.window
        return behind and near and not self.by_key and not self.by_pair

    def key_range(self, rows: slice, n_key: int) -> slice:
        """Return the keys that positions alone let some query of `rows` see."""
        first, last = self.start + rows.start, self.start + rows.stop - 1
        stop = min(n_key, last + 1) if self.causal else n_key
        begin = 0
        if self.window is not None:
            begin = max(0, first - self.window + 1)
            stop = min(stop, last + self.window)
        return slice(min(begin, n_key), max(stop, min(begin, n_key)))

    def combined_key_mask(self, n_key: int) -> Bool[Tensor, "_batch key"] | None:
        """Return `key_mask` and one-dimensional `lengths` as one row of booleans for each sequence."""
        visible = self.key_mask
        if self.lengths is not None and self.lengths.dim() == 1:
            within = torch.arange(n_key, device=self.lengths.device) < self.lengths[:, None]
            visible = within if visible is None else visible & within
        return visible

    def rows_that_see(
        self, n_query: int, n_key: int, device: torch.device | str | None = None
    ) -> Bool[Tensor, "_batch _head query"] | None:
        """Return which queries see any key at all; None where all surely do."""
        near = self.window is None or self.start + n_query - n_key < self.window
        if n_query == 0 or (n_key and near and not self.by_key and not self.by_pair):
            return None
        every_key = torch.ones(1, 1, n_key, dtype=torch.bool, device=self.device or device)
        return self.rows_seeing(every_key, n_query)

    def rows_seeing(
        self, flags: Bool[Tensor, "_batch _head key"], n_query: int
    ) -> Bool[Tensor, "_batch _head query"]:
        """Return which queries see a key that has its flag set."""
        n_key = flags.shape[2]
        if not n_key:
            return flags.new_zeros(*flags.shape[:2], n_query)
        if not self.by_pair and self.window is None:
            keys = self.combined_key_mask(n_key)
            so_far = (flags if keys is None else flags & keys[:, None]).cumsum(-1) > 0
            last_seen = torch.full((n_query,), n_key - 1, device=flags.device)
            if self.causal:
                last_seen = torch.arange(n_query, device=flags.device).add(self.start).clamp(max=n_key - 1)
            return so_far[:, :, last_seen]
        blocks = []
        for rows in row_blocks(slice(0, n_query), flags.numel()):
            cols = self.key_range(rows, n_key)
            blocks.append((self.tile(rows, cols, flags.device) & flags[:, :, None, cols]).any(-1))
        return torch.cat(blocks, dim=-1)

    def simplified(self, n_query: int, n_key: int) -> Visibility:
        """Return the same table without the parts that mask nothing at these sizes."""
        last = self.start + n_query - 1
        # `if` makes a Python bool of a size that is still a symbol when compiling.
        causal = True if self.causal and self.start < n_key - 1 else False  # noqa: SIM210
        reach = max(last, n_key - 1 - self.start if not causal else 0)
        window = self.window if self.window is not None and reach >= self.window else None
        if causal == self.causal and window == self.window:
            return self
        return replace(self, causal=causal, window=window)

    def check(self, batch: int, n_head: int, n_query: int, n_key: int) -> None:
        """Raise `ShapeError` or `ArgumentError` unless this fits attention of these sizes."""
        wanted = {"batch": batch, "head": n_head, "query": n_query, "key": n_key}
        for name, words in _WORDS.items():
            tensor: Tensor | None = getattr(self, name)
            if tensor is None:
                continue
            words = words[: tensor.dim()]
            for axis, word in enumerate(words):
                may_be_one = name in ("dense", "key_mask") and word in ("batch", "head")
                if tensor.shape[axis] != wanted[word] and not (may_be_one and tensor.shape[axis] == 1):
                    raise ShapeError(
                        f"{name} has {word} {tensor.shape[axis]}, attention has {wanted[word]}: "
                        f"{name} must be ({', '.join(words)}). Got shape {tuple(tensor.shape)}."
                    )
        if self.lengths is not None and self.lengths.numel() and not torch.compiler.is_compiling():
            low, high = self.lengths.aminmax()
            if low < 0 or high > n_key:
                raise ArgumentError(
                    f"lengths must lie between 0 and the number of keys, {n_key}. "
                    f"Got values from {int(low)} to {int(high)}."
                )

    @classmethod
    def from_dense(cls, visible: Bool[Tensor, "*shape query key"]) -> Visibility:
        """Return the most compact visibility equal to a boolean table of 2 to 4 dimensions, True = may look.

        Causal, windowed and padded tables are recognised, because a kernel is twice as fast with a flag.
        """
        table = _four_dimensional(visible)
        return _recognise(table) or cls(dense=table)

    @classmethod
    def from_torch_masks(
        cls, attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, n_head: int = 1
    ) -> tuple[Visibility, Float[Tensor, "_batch _head _query key"] | None]:
        """Convert the masks of `nn.MultiheadAttention` (True = masked); return the bias of a float mask too.

        The bias is for `DenseBias`; its query is 1 where only a float `key_padding_mask` adds something.
        """
        check_sizes(n_head=n_head)
        visible, bias = cls(), None
        if attn_mask is not None:
            if attn_mask.dim() == 3:
                check_divides("attn_mask's batch * head", attn_mask.shape[0], "n_head", n_head)
                attn_mask = attn_mask.unflatten(0, (-1, n_head))
            if attn_mask.dtype == torch.bool:
                visible = cls.from_dense(~attn_mask)
            else:
                visible, bias = cls.from_additive(attn_mask)
        if key_padding_mask is not None:
            hidden, key_bias = key_padding_mask, None
            if hidden.dtype != torch.bool:
                hidden, key_bias = _taken_apart(key_padding_mask)
            visible = visible & cls(key_mask=~hidden)
            bias = _both(torch.add, bias, None if key_bias is None else key_bias[:, None, None])
        return visible, bias

    @classmethod
    def from_additive(
        cls, mask: Float[Tensor, "*shape query key"]
    ) -> tuple[Visibility, Float[Tensor, "_batch _head query key"] | None]:
        """Split a float mask that is added to the scores, as transformers' 4-D masks are, into mask and bias.

        -inf, and numbers so low that the weight is 0 for every score, mask; what remains is a bias, or None.
        A row that such a mask hides wholly sees nothing here; softmax over equal low numbers is uniform.
        """
        hidden, bias = _taken_apart(mask)
        return cls.from_dense(~hidden), None if bias is None else _four_dimensional(bias)


def _taken_apart(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Where a float mask hides, and what else it adds, if anything."""
    hidden = hidden_by(mask)
    bias = mask.masked_fill(hidden, 0.0)
    return hidden, bias if bias.any() else None


def hidden_by(mask: Tensor, score_size: float = 0.0) -> Tensor:
    """Return where a float mask that is added to the scores masks a key.

    A key is masked when its weight is 0 in every dtype for every score that occurs: when the mask is below
    the logarithm of the smallest number by more than scores can make up for. A bias that falls with distance,
    as ALiBi's, may reach as low and is told by its many different numbers: it stays a bias.

    Args:
        mask: What is added to the scores, of any shape.
        score_size: The largest absolute score.

    Returns:
        A Bool of the mask's shape, True where a key is masked.
    """
    if not mask.is_floating_point():
        raise ShapeError(f"a mask must be boolean, or floating where it is added. Got dtype {mask.dtype}.")
    # Rounded up to a power of two, so that the layers of a model mostly share what was read of their mask.
    limit = -(2.0 ** math.ceil(math.log2(2 * score_size - _EXP_IS_ZERO))) if score_size < 1e30 else -math.inf
    low = mask <= max(limit, torch.finfo(mask.dtype).min / 2)
    numbers = mask[low & (mask > -math.inf)][: 1 << 16]
    if numbers.numel() and (numbers.double().abs().log2() * 64).round().unique().numel() > _FEW_NUMBERS:
        return mask <= max(_SURELY_MASKED, torch.finfo(mask.dtype).min / 2)
    return low


def _four_dimensional(table: Tensor) -> Tensor:
    """A table of 2, 3 or 4 dimensions as (batch, head, query, key)."""
    if table.dim() not in (2, 3, 4):
        raise ShapeError(
            "a table must be (query, key), (batch, query, key) or (batch, head, query, key). "
            f"Got shape {tuple(table.shape)}."
        )
    return {2: table[None, None], 3: table[:, None], 4: table}[table.dim()]


def _both(join: Callable[[Tensor, Tensor], Tensor], a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """What two parts say together; a part that is not given allows all."""
    if a is None or b is None:
        return b if a is None else a
    return join(a, b)


def _recognise(table: Tensor) -> Visibility | None:
    """A compact visibility that equals `table` (batch, head, query, key), or None."""
    n_query, n_key = table.shape[-2:]
    if not table.any() or (table.shape[1] > 1 and not bool((table == table[:, :1]).all())):
        return None
    one = table[:, 0]
    union = one.any(0)  # (query, key): seen in some sequence
    query_index = torch.arange(n_query, device=table.device)
    first = union.to(torch.int8).argmax(-1)
    last = n_key - 1 - union.flip(-1).to(torch.int8).argmax(-1)  # the last key each query sees
    candidate = Visibility()
    seeing = union.any(-1)
    if not bool((last[seeing] == last[seeing][0]).all()):
        first_seeing = int(seeing.int().argmax())
        start = int(last[first_seeing]) - first_seeing
        if start < 0:
            return None
        reaches_back = int((start + query_index - first)[seeing].max())
        windowed = reaches_back < start + n_query - 1
        candidate = Visibility(causal=True, start=start, window=reaches_back + 1 if windowed else None)
    # Padding on the left also shortens how far back a query sees, so first without a window.
    for window in dict.fromkeys((None, candidate.window)):
        attempt = replace(candidate, window=window)
        drawn = attempt.tile(slice(0, n_query), slice(0, n_key), table.device)
        unseen = drawn.any(2)[:, 0] & ~one.any(1)
        if bool(unseen.any()):
            attempt = replace(attempt, key_mask=~unseen)
            drawn = drawn & attempt.tile(slice(0, n_query), slice(0, n_key))
        if bool((drawn == one[:, None]).all()):
            return attempt
    return None
