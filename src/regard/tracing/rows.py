"""One layer as it grows: each step of a text that is written, or of a recurrent decoder, adds its rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.scores import ScoreRule, SlopeBias
from regard.tracing.layers import DenseLayerTrace, LayerTrace, LinearLayerTrace
from regard.tracing.masks import compact_bias, read_visible

Recorded = LayerTrace | LinearLayerTrace | DenseLayerTrace


class _Step(NamedTuple):
    """What is kept of a step when the next has come: nothing as long as its keys."""

    rows: Tensor  # its queries, or its weights where only they are known
    sums: Tensor | None
    rule: ScoreRule | None
    first: int  # where its keys begin among all
    n_key: int


class Rows:
    """The rows of all steps, and all keys and values so far."""

    def __init__(self, layer: Recorded) -> None:
        self.last = layer  # the newest step, whole
        self.keys, self.values, self.n_key = layer.k, layer.v, 0
        self.alike = layer.alike if isinstance(layer, LayerTrace) else None
        self._steps: list[_Step] = []
        self._note(layer, 0)

    @property
    def n_query(self) -> int:
        return sum(step.rows.shape[2] for step in self._steps)

    def goes_on_with(self, layer: Recorded) -> bool:
        """Whether `layer` has the same keys, or some of those and as many new ones as it has queries."""
        last, first = self.last, self._first(layer)
        if type(last) is not type(layer) or last.shape[:2] != layer.shape[:2]:
            return False
        if self.keys is None or layer.k is None:
            return first == 0
        if layer.k.shape[1] != self.keys.shape[1] or not 0 <= first < self.n_key:  # then no key is known
            return False
        return torch.equal(self.keys[:, :, first:], layer.k[:, :, : self.n_key - first])

    def append(self, layer: Recorded) -> None:
        """Take the next step."""
        first = self._first(layer)
        new = slice(self.n_key - first, None)
        if self.keys is not None and layer.k is not None:
            self.keys = torch.cat([self.keys, layer.k[:, :, new]], 2)
        if self.values is not None and layer.v is not None:
            self.values = torch.cat([self.values, layer.v[:, :, new]], 2)
        self.last = layer
        self._note(layer, first)

    def _first(self, layer: Recorded) -> int:
        n_new = 0 if layer.kind == "cross" else layer.n_query
        return self.n_key + n_new - layer.n_key  # above 0 where a window's cache has forgotten the oldest

    def _note(self, layer: Recorded, first: int) -> None:
        rows = layer.values if isinstance(layer, DenseLayerTrace) else layer.q
        sums = layer.lse if isinstance(layer, LayerTrace) else getattr(layer, "normaliser", None)
        self._steps.append(_Step(rows, sums, layer.rule, first, layer.n_key))
        self.n_key = first + layer.n_key

    def whole(self) -> Recorded:
        """All steps as one layer."""
        last = self.last
        if len(self._steps) == 1:
            return last
        if isinstance(last, DenseLayerTrace):
            return replace(last, values=self._table([step.rows for step in self._steps], 0.0))
        assert self.keys is not None  # only weights come without
        q = torch.cat([step.rows for step in self._steps], 2)
        sums = torch.cat([step.sums for step in self._steps if step.sums is not None], 2)
        if isinstance(last, LinearLayerTrace):
            return replace(last, q=q, k=self.keys, normaliser=sums, v=self.values)
        alike = self.alike  # later steps have keys of their own: none of their rows is kept so
        if alike is not None:
            alike = F.pad(alike.expand(*q.shape[:2], -1), (0, q.shape[2] - alike.shape[2]))
        rule = self._rule(last.rule, q.device)
        return replace(last, q=q, k=self.keys, lse=sums, rule=rule, v=self.values, alike=alike)

    def _rule(self, last: ScoreRule, device: torch.device) -> ScoreRule:
        """The rule of all steps, of which `last` is the newest."""
        rules = [step.rule for step in self._steps if step.rule is not None]
        sizes = [(slice(0, step.rows.shape[2]), slice(0, step.n_key)) for step in self._steps]
        starts = accumulate((rows.stop for rows, _ in sizes[:-1]), initial=rules[0].visible.start)
        if all(
            rule.visible.causal
            and rule.visible.start == start
            and not (rule.visible.by_key or rule.visible.by_pair)
            and rule.visible.window == last.visible.window
            and isinstance(rule.bias, SlopeBias | None)
            for rule, start in zip(rules, starts, strict=True)
        ):
            return replace(last, visible=replace(last.visible, start=rules[0].visible.start))
        tiles = [rule.visible.tile(*size, device) for rule, size in zip(rules, sizes, strict=True)]
        visible = self._table(tiles, False)
        read = read_visible(visible)
        if not any(rule.bias is not None for rule in rules):
            return replace(last, visible=read)
        zero = torch.zeros(1, 1, 1, 1, device=device)
        biases = [rule.bias_tile(*size) for rule, size in zip(rules, sizes, strict=True)]
        filled = [
            zero.expand(-1, -1, *tile.shape[2:]) if bias is None else bias
            for tile, bias in zip(tiles, biases, strict=True)
        ]
        return replace(last, visible=read, bias=compact_bias(self._table(filled, 0.0), ~visible, read.start))

    def _table(self, tiles: list[Tensor], empty: float | bool) -> Tensor:
        """The tiles of the steps as rows of one table (batch, head, query, key)."""
        n_batch, n_head = (max(tile.shape[axis] for tile in tiles) for axis in (0, 1))
        table = tiles[0].new_full((n_batch, n_head, self.n_query, self.n_key), empty)
        row = 0
        for tile, step in zip(tiles, self._steps, strict=True):
            table[:, :, row : row + tile.shape[2], step.first : step.first + tile.shape[3]] = tile
            row += tile.shape[2]
        return table
