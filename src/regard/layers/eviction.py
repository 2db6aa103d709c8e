"""A cache that forgets: which keys and values stay when there is room for `budget` positions only.

    generate(model, text, cache=Evict("streaming", budget=256))

What has been read is read in full: positions go when a layer has attended, so a query sees what was kept
and the tokens it is read with. With grouped heads, those that share keys share what is kept.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from regard.attention.columns import column_sums
from regard.attention.data import Ranges, check_fields
from regard.attention.linear import Rule
from regard.attention.scores import ScoreRule
from regard.errors import ArgumentError
from regard.layers.attention import Record, reported
from regard.layers.cache import KVCache
from regard.layers.layer_id import LayerId
from regard.layers.positions import Rotary, RotaryCosSin

Policy = Literal["streaming", "h2o", "snapkv"]


@dataclass(frozen=True, slots=True)
class Evict:
    """An eviction policy: which positions a cache keeps for each head.

    streaming  the first `sinks` positions and the latest (StreamingLLM, Xiao et al. 2024)
    h2o        the latest `recent` positions, and those with the most attention from all queries so far
               (Zhang et al. 2023)
    snapkv     the last `recent` positions of the prompt, and those with the most attention from them,
               averaged over `pool` neighbours (Li et al. 2024); everything after the prompt is kept

    Attributes:
        policy: "streaming", "h2o" or "snapkv".
        budget: Number of positions that a head keeps; for snapkv, of the prompt.
        sinks: For streaming: how many of the first positions are always kept. None: 4.
        recent: For h2o and snapkv: how many of the latest positions are always kept. None: half the budget,
            for snapkv at most 32.
        pool: For snapkv: how many neighbouring positions the attention is averaged over, an odd number.
            None: 7.
        positions: Which positions the kept keys have: those in the text ("text"), or their places in the
            cache ("cache"), so that no position exceeds the budget. None: "cache" where the policy is
            streaming and positions are rotary, else "text".

    Raises:
        ArgumentError: If a field has another type or is out of range, or does not belong to the policy.

    Example:
        >>> Evict("h2o", budget=6).recent
        3
    """

    policy: Policy
    budget: int
    sinks: int | None = None
    recent: int | None = None
    pool: int | None = None
    positions: Literal["text", "cache"] | None = None

    ranges: ClassVar[Ranges] = {"budget": (1, math.inf)}

    def __post_init__(self) -> None:
        check_fields(self)
        half = max(1, self.budget // 2)
        used = {
            "streaming": {"sinks": 4},
            "h2o": {"recent": half},
            "snapkv": {"recent": min(32, half), "pool": 7},
        }[self.policy]
        for name in ("sinks", "recent", "pool"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, used.get(name))
            elif name not in used:
                raise ArgumentError(
                    f"{self.policy} has no {name!r}: it takes {', '.join(used)} beside its budget."
                )
        if self.sinks is not None and not 0 <= self.sinks < self.budget:
            raise ArgumentError(
                "the sinks are part of the budget, and at least one position must be left for the latest. "
                f"Got sinks={self.sinks}, budget={self.budget}."
            )
        if self.recent is not None and not 1 <= self.recent <= self.budget:
            raise ArgumentError(
                "recent positions are part of the budget: at least 1, at most all of it. "
                f"Got recent={self.recent}, budget={self.budget}."
            )
        if self.pool is not None and (self.pool < 1 or self.pool % 2 == 0):
            raise ArgumentError(f"pool is a position and its neighbours: an odd number. Got {self.pool}.")

    def moves(self, rotary: bool) -> bool:
        """Return whether kept keys move to their place in the cache.

        Args:
            rotary: Whether the model's positions are rotary; only such keys can be moved.

        Raises:
            ArgumentError: If `positions` is "cache" and the model's positions are not rotary.
        """
        if self.positions == "cache" and not rotary:
            raise ArgumentError(
                "positions='cache' moves keys that are kept, and only rotary positions can be moved: this "
                "model has others. Use positions='text'."
            )
        usual = "cache" if self.policy == "streaming" else "text"
        return rotary and (self.positions or usual) == "cache"

    def counted(self, n_query: int) -> slice:
        """Return which of `n_query` queries count: those whose attention decides what is kept."""
        if self.policy == "streaming":
            return slice(0, 0)
        last = 0 if self.policy == "h2o" else max(0, n_query - (self.recent or 0))
        return slice(last, n_query)

    def kept(
        self,
        looked_at: Float[Tensor, "batch kv_head key"],
        key_mask: Bool[Tensor, "batch kv_head key"] | None = None,
    ) -> Int[Tensor, "batch kv_head kept"]:
        """Select the positions that are kept.

        Args:
            looked_at: Sum of the attention that each key received from the queries of `counted`,
                ``(batch, kv_head, key)``.
            key_mask: ``(batch, kv_head, key)``, False where a key is padding: padding is evicted first, and
                no policy counts it. Default: no padding.

        Returns:
            Indices of the kept keys in ascending order, ``(batch, kv_head, kept)``: as many as the budget,
            or all if there are no more than that.
        """
        n_key = looked_at.shape[2]
        slot = torch.arange(n_key, device=looked_at.device).expand_as(looked_at)
        if n_key <= self.budget:
            return slot
        recent, ranked = self.recent or 0, looked_at
        always = slot >= n_key - recent
        if self.policy == "streaming":
            first = slot if key_mask is None else key_mask.long().cumsum(-1) - 1
            ranked, always = slot.to(looked_at.dtype), first < (self.sinks or 0)
        elif self.policy == "snapkv":
            pool = self.pool or 1
            smooth = F.avg_pool1d(ranked[..., :-recent], pool, stride=1, padding=pool // 2)
            ranked = torch.cat([smooth, ranked[..., -recent:]], 2)
        ranked = ranked.masked_fill(always, torch.inf)
        if key_mask is not None:
            ranked = ranked.masked_fill(~key_mask, -1.0)
        return ranked.topk(self.budget, dim=-1).indices.sort(-1).values


class Evicting:
    """The eviction of one running decode: a `Record` that drops from the cache what its policy lets go."""

    def __init__(
        self, evict: Evict, cache: KVCache, rotary: Rotary | None, record: Record | None = None
    ) -> None:
        self.evict, self.cache, self.record = evict, cache, record
        self.rotary = rotary if evict.moves(rotary is not None) else None
        self.key_mask: Tensor | None = (
            None  # (batch, position): what has been read and is no padding; None: all
        )
        self._looked_at: dict[int, Tensor] = {}  # by layer, (batch, kv_head, key)

    def __call__(
        self, name: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rule: Rule
    ) -> Tensor:
        """What the layer gave, or what another record puts in its place; its cache is within the budget."""
        changed = reported(self.record, name, q, k, v, out, lse, rule)
        assert isinstance(rule, ScoreRule)  # who began the decode made sure
        index = LayerId.parse(name).index
        assert index is not None  # checked in check_evicts
        layer, n_new = self.cache[index], q.shape[2]
        before = self._looked_at.get(index)
        if self.evict.policy != "snapkv" or layer.read == n_new:  # SnapKV looks at the prompt alone
            sums = column_sums(q, k, lse, rule, self.evict.counted(n_new))
            looked_at = sums.unflatten(1, (k.shape[1], -1)).sum(2)
            if before is not None:
                looked_at = looked_at + F.pad(before, (0, n_new))
            key_mask = layer.of_held(self.key_mask)
            kept = self.evict.kept(looked_at, key_mask)
            if kept.shape[2] < k.shape[2]:
                looked_at = looked_at.gather(2, kept)
                layer.select(kept, None if self.rotary is None else self._moved(k, kept, key_mask))
            self._looked_at[index] = looked_at
        return changed

    def _moved(self, k: Tensor, kept: Tensor, key_mask: Tensor | None) -> Tensor:
        """The kept keys, each turned to its place among those that are kept."""
        assert self.rotary is not None
        here = torch.ones_like(k[..., 0], dtype=torch.bool) if key_mask is None else key_mask
        old = (here.long().cumsum(-1) - 1).clamp(min=0).gather(2, kept)
        new = (here.gather(2, kept).long().cumsum(-1) - 1).clamp(min=0)
        stay = k.gather(2, kept[..., None].expand(-1, -1, -1, k.shape[3]))
        moved: RotaryCosSin = self.rotary((new - old).flatten(0, 1))
        return moved(stay.flatten(0, 1)[:, None])[:, 0].view_as(stay)

    def positions(self, n_new: int) -> Int[Tensor, "_batch new"] | None:
        """Where the next tokens stand, where that is not their place in the text."""
        if self.rotary is None or not self.cache.read:
            return None
        held, k = self.cache[0].of_held(self.key_mask), self.cache[0].k
        assert k is not None  # something has been read
        # Padding goes first: all heads of a sequence hold as many real positions.
        start = k.new_full((1,), k.shape[2], dtype=torch.long) if held is None else held[:, 0].sum(-1)
        return start[:, None] + torch.arange(n_new, device=k.device)

    def reorder(self, sequences: Int[Tensor, "new_batch"]) -> None:
        """Go on with these sequences in this order."""
        self._looked_at = {layer: sums.index_select(0, sequences) for layer, sums in self._looked_at.items()}
