"""From measures to the names people use for heads, each with its score and the rule that gave it.

A head gets a label when its score reaches the label's threshold and lies clearly above what a head that
looks everywhere alike would score on the same text. Most heads get none, and "none" is a label.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO

from jaxtyping import Float
from torch import Tensor

from regard.drawing.html import picture, table, tag
from regard.errors import ArgumentError
from regard.heads.measures import Measures, shown
from regard.registry import LABELLED, LABELS


@dataclass(frozen=True, slots=True)
class LabelRule:
    """One label: its measure, its threshold and where that comes from.

    Attributes:
        label: What such a head is called.
        measure: The measure that it has much of.
        threshold: The score that a head must reach.
        source: Where the threshold comes from.
        tier: Of several labels that a head reaches, the one of the lowest tier says most about it.
    """

    label: str
    measure: str
    threshold: float
    source: str
    tier: int = 0


# The registry's rules. Of several labels that a head reaches, the lowest tier wins, then the one furthest
# above chance.
RULES = tuple(
    LabelRule(info.label.name, info.name, info.label.threshold, info.label.source, info.label.tier)
    for info in LABELLED
    if info.label is not None
)
# How far above chance: this share of the way from chance to 1.
LEAST_LIFT = 0.2
# A head that reaches no threshold, but comes this share of the way from chance to two of them, is mixed.
MIXED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class HeadLabel:
    """What one head is called, and why."""

    layer: str
    head: int
    label: str
    score: float  # of the label's measure; NaN for mixed and none
    chance: float
    low: float  # confidence interval of the score over texts; NaN from one text
    high: float
    rule: str  # what gave the label
    also: tuple[str, ...] = ()  # other labels whose rules the head meets


def label(
    measures: Measures,
    *,
    low: Mapping[str, Float[Tensor, "layer head"]] | None = None,
    high: Mapping[str, Float[Tensor, "layer head"]] | None = None,
) -> list[HeadLabel]:
    """A label for every head. With the ends of a survey's confidence intervals, `low` must be above chance.

    >>> import torch
    >>> from regard.tracing.traces import Trace
    >>> from regard.heads.measures import measure
    >>> weights = torch.eye(9).roll(-1, 1).tril()  # everyone looks at the one before
    >>> weights[0, 0] = 1
    >>> label(measure(Trace.from_weights(weights)))[0].label
    'previous-token'
    """
    if (low is None) != (high is None):
        raise ArgumentError("low and high are the ends of one interval: give both or neither.")
    labels, nothing, offsets = [], (math.nan,) * 4, measures.offset
    for layer, head in ((layer, head) for layer, n in enumerate(measures.n_heads) for head in range(n)):
        name, offset = measures.layers[layer], int(offsets[layer, head])
        met: list[tuple[int, float, HeadLabel]] = []
        near = []
        for rule in RULES:
            # Positional is the share of argmaxes at this head's best offset.
            measure = f"argmax{offset:+d}" if rule.measure == "positional" else rule.measure
            score = float(measures[measure][layer, head])
            chance = 0.0 if measure == "uniformity" else float(measures.chance[measure][layer])
            least, most = (float(end[measure][layer, head]) if end else math.nan for end in (low, high))
            lift = (score - chance) / max(1e-9, 1 - chance)
            # Of NaN, where a layer has no such place, neither holds; a low end of NaN is that of one text.
            if score >= rule.threshold and lift >= LEAST_LIFT and not least <= chance:
                because = f"{rule.measure} {score:.2f} >= {rule.threshold} and above chance {chance:.2f}"
                labelled = HeadLabel(name, head, rule.label, score, chance, least, most, because)
                met.append((rule.tier, -lift, labelled))
            elif measure != "uniformity" and score - chance >= MIXED_SHARE * (rule.threshold - chance) > 0:
                near.append(f"{rule.label} {score:.2f}")
        if met:
            (_, _, best), *others = sorted(met, key=lambda reached: reached[:2])
            labels.append(replace(best, also=tuple(other.label for _, _, other in others)))
        elif len(near) >= 2:
            labels.append(HeadLabel(name, head, "mixed", *nothing, f"near several: {', '.join(near)}"))
        else:
            labels.append(HeadLabel(name, head, "none", *nothing, "no rule is met"))
    return labels


def share_labelled(labels: Sequence[HeadLabel]) -> dict[str, float]:
    """The share of heads that have each label."""
    times = Counter(head.label for head in labels)
    return {name: times[name] / max(1, len(labels)) for name in LABELS}


def grid(labels: Sequence[HeadLabel], layers: Sequence[str]) -> list[list[str]]:
    """Labels as rows of layers, for a picture."""
    return [[head.label for head in labels if head.layer == layer] for layer in layers]


def heads_html(labels: Sequence[HeadLabel], layers: Sequence[str], of: str) -> str:
    """Labelled heads for a notebook: a picture of layers x heads, and a table of those that have a label."""
    from regard.drawing.figures import head_grid  # matplotlib is slow to import, and this is seldom shown

    drawn, title = BytesIO(), f"labels of heads, {of}"
    head_grid(grid(labels, layers), LABELS, title=title).savefig(drawn, format="png", dpi=90)
    named = [head for head in labels if head.label != "none"]
    words = ("layer", "head", "label", "score", "chance", "rule")
    rows = [(h.layer, h.head, h.label, shown(h.score), shown(h.chance), h.rule) for h in named]
    summary = tag("summary", f"{len(named)} of {len(labels)} heads have a label")
    return (picture(drawn.getvalue(), title) + tag("details", summary, table(words, rows))).text
