"""What can be changed in a run, as data: each kind of edit says what it touches and how it is asked for.

    HeadGate(layer, heads, by=0.0)        heads switched off, or moved to their mean
    KnockOut(layer, heads, rows, cols)    edges, rows and columns cut
    PatchOutputs(layer, heads, source)    what heads gave in another run
    PatchWeights(layer, heads, source)    where heads looked in another run
    PatchModule(module, source)           the output of any module in another run

A `Change` is a tuple of edits that are made together. The engine runs each change as one row of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from jaxtyping import Float
from torch import Tensor

from regard.tracing.interventions import InterventionRun
from regard.tracing.traces import Trace

Places = tuple[int, ...] | None  # some of them, or all


def _all_or(places: Places) -> list[int] | None:
    return None if places is None else list(places)


def _place(edit: HeadGate | PatchOutputs | PatchWeights, batch: list[int] | None) -> dict[str, Any]:
    """Where an edit is made, as `Run` calls it."""
    return {"layer": edit.layer, "head": _all_or(edit.heads), "query": _all_or(edit.rows), "batch": batch}


def _rows(source: Tensor, n_batch: int) -> Tensor:
    """What examples are given, once for each row of a batch, unless one stands for all."""
    return source if len(source) == 1 else source.repeat(n_batch // len(source), *(1,) * (source.dim() - 1))


@dataclass(frozen=True, slots=True, eq=False)
class HeadGate:
    """Multiply the outputs of heads by a number, and fill what that takes away.

    Attributes:
        layer: The attention layer's name.
        heads: Places among the heads that the layer has; None: all.
        by: The factor; 0 switches off.
        toward: What fills the rest, ``(v_dim,)`` or ``(head, v_dim)``, such as their mean; None: nothing.
        rows: Query positions; None: all.
    """

    layer: str
    heads: Places = None
    by: float = 0.0
    toward: Float[Tensor, "*head v_dim"] | None = None
    rows: Places = None

    def ask(self, run: InterventionRun, batch: list[int] | None, n_batch: int) -> None:
        """Ask for the edit in these sequences (None: all) of a run that has `n_batch`."""
        run.gate(**_place(self, batch), by=self.by, toward=self.toward)


@dataclass(frozen=True, slots=True, eq=False)
class KnockOut:
    """Cut edges: these rows do not see these columns, and share the weight among the others.

    Attributes:
        layer: The attention layer's name.
        heads: Places among the heads that the layer has; None: all.
        rows: Query positions; None: all.
        cols: Key positions; None: all, so that the rows give 0.
    """

    layer: str
    heads: Places = None
    rows: Places = None
    cols: Places = None

    def ask(self, run: InterventionRun, batch: list[int] | None, n_batch: int) -> None:
        """Ask for the edit in these sequences (None: all) of a run that has `n_batch`."""
        run.knock_out(
            layer=self.layer,
            head=_all_or(self.heads),
            query=_all_or(self.rows),
            key=_all_or(self.cols),
            batch=batch,
        )


@dataclass(frozen=True, slots=True, eq=False)
class PatchOutputs:
    """Put what heads gave in another run in the place of what they give in this one.

    Attributes:
        layer: The attention layer's name.
        heads: Places among the heads that the layer has; None: all.
        source: The outputs of all heads there, ``(example or 1, head, query, v_dim)``.
        rows: Query positions; None: all.
    """

    layer: str
    heads: Places
    source: Float[Tensor, "example head query v_dim"]
    rows: Places = None

    def ask(self, run: InterventionRun, batch: list[int] | None, n_batch: int) -> None:
        """Ask for the edit in these sequences (None: all) of a run that has `n_batch`."""
        run.patch(**_place(self, batch), source=_rows(self.source, n_batch))


@dataclass(frozen=True, slots=True, eq=False)
class PatchWeights:
    """Let heads look where they looked in another run, at the values of this one.

    Attributes:
        layer: The attention layer's name.
        heads: Places among the heads that the layer has; None: all.
        source: A trace of the other run, of one sequence.
        rows: Query positions; None: all.
    """

    layer: str
    heads: Places
    source: Trace
    rows: Places = None

    def ask(self, run: InterventionRun, batch: list[int] | None, n_batch: int) -> None:
        """Ask for the edit in these sequences (None: all) of a run that has `n_batch`."""
        run.patch(**_place(self, batch), source=self.source, what="weights")


@dataclass(frozen=True, slots=True, eq=False)
class PatchModule:
    """Put the output of a module in another run in the place of its output in this one.

    Attributes:
        module: The module's name in the model.
        source: Its output in the other run, ``(example or 1, position, ...)``.
        rows: Positions; None: all.
    """

    module: str
    source: Float[Tensor, "example position ..."]
    rows: Places = None

    def ask(self, run: InterventionRun, batch: list[int] | None, n_batch: int) -> None:
        """Ask for the edit in these sequences (None: all) of a run that has `n_batch`."""
        run.patch(self.module, source=_rows(self.source, n_batch), query=_all_or(self.rows), batch=batch)


Edit: TypeAlias = HeadGate | KnockOut | PatchOutputs | PatchWeights | PatchModule
Change = tuple[Edit, ...]
