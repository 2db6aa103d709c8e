"""From measures to the names people use for heads, each with its score and the rule that gave it.

A head gets a label when its score reaches the label's threshold and lies clearly above what a head that
looks everywhere alike would score on the same text. Most heads get none, and "none" is a label.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO

from jaxtyping import Float
from torch import Tensor

from regard.drawing.html import picture, tag
from regard.errors import ArgumentError
from regard.heads.frames import OFFSETS
from regard.heads.measures import Measures, shown


@dataclass(frozen=True, slots=True)
class Rule:
    """One label: its measure, its threshold and where that comes from."""

    label: str
    measure: str
    threshold: float
    source: str
    tier: int = 0  # of several labels a head reaches, the one of the lowest tier says most


# The one table of thresholds. Of several labels that a head reaches, the lowest tier wins, then the one
# furthest above chance. Delimiters and the first token are where a head rests when it has nothing to do
# (Clark et al. 2019): an induction head rests there on text without repetition, and is one all the same.
RULES = (
    Rule("previous-token", "previous", 0.5, "Clark et al. 2019: over half of the attention"),
    Rule("next-token", "next", 0.5, "Clark et al. 2019: over half of the attention"),
    Rule("diagonal", "same", 0.5, "ours, as for the tokens before and after"),
    Rule("positional", "positional", 0.9, "Voita et al. 2019: the argmax at one distance in 90 %", 3),
    Rule("delimiter", "special", 0.5, "Clark et al. 2019: over half of the attention", 1),
    Rule("punctuation", "punctuation", 0.5, "ours, as for delimiters"),
    Rule("sink", "first", 0.3, "Gu et al. 2025: mean weight above 0.3 on the first token", 2),
    Rule("duplicate-token", "duplicate", 0.4, "ours; Wang et al. 2022 name the heads, give no number"),
    Rule("induction", "induction", 0.4, "ours; Olsson et al. 2022 define the score, give no number"),
    Rule("rare-word", "rare", 0.5, "ours; Voita et al. 2019 count argmaxes"),
    Rule("broadcast", "uniformity", 0.9, "ours; Clark et al. 2019 call high entropy broad", 3),
)
# How far above chance: this share of the way from chance to 1.
LEAST_LIFT = 0.2
# A head that reaches no threshold, but comes this share of the way from chance to two of them, is mixed.
MIXED_SHARE = 0.5
LABELS = (*(rule.label for rule in RULES), "mixed", "none")


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
    rules: Sequence[Rule] = RULES,
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
    return [
        _label_one(measures, index, layer, head, low, high, rules)
        for index, layer in enumerate(measures.layers)
        for head in range(measures.n_heads[index])
    ]


def _label_one(
    measures: Measures,
    index: int,
    layer: str,
    head: int,
    low: Mapping[str, Tensor] | None,
    high: Mapping[str, Tensor] | None,
    rules: Sequence[Rule],
) -> HeadLabel:
    met: list[tuple[float, Rule, float, float, float, float]] = []
    near = []
    for rule in rules:
        name = _column(measures, rule, index, head)
        score = float(measures[name][index, head])
        chance = 0.0 if rule.measure == "uniformity" else float(measures.chance[name][index])
        if math.isnan(score) or math.isnan(chance):
            continue
        first, last = math.nan, math.nan
        if low is not None and high is not None:
            first, last = (float(end[name][index, head]) for end in (low, high))
        lift = (score - chance) / max(1e-9, 1 - chance)
        surely = math.isnan(first) or first > chance
        if score >= rule.threshold and lift >= LEAST_LIFT and surely:
            met.append((lift, rule, score, chance, first, last))
        elif rule.measure != "uniformity" and score - chance >= MIXED_SHARE * (rule.threshold - chance) > 0:
            near.append(f"{rule.label} {score:.2f}")
    if met:
        met.sort(key=lambda each: (each[1].tier, -each[0]))
        _, rule, score, chance, first, last = met[0]
        because = f"{rule.measure} {score:.2f} >= {rule.threshold} and above chance {chance:.2f}"
        also = tuple(each[1].label for each in met[1:])
        return HeadLabel(layer, head, rule.label, score, chance, first, last, because, also)
    nothing = (math.nan,) * 4
    if len(near) >= 2:
        return HeadLabel(layer, head, "mixed", *nothing, f"near several: {', '.join(near)}")
    return HeadLabel(layer, head, "none", *nothing, "no rule is met")


def _column(measures: Measures, rule: Rule, index: int, head: int) -> str:
    """The measure a rule looks at; for positional, the argmax share of this head's best offset."""
    if rule.measure != "positional":
        return rule.measure
    shares = {f"argmax{offset:+d}": 0.0 for offset in OFFSETS}
    for name in shares:
        share = float(measures.values[name][index, head])
        shares[name] = -1.0 if math.isnan(share) else share
    return max(shares, key=lambda name: shares[name])


def share_labelled(labels: Sequence[HeadLabel]) -> dict[str, float]:
    """The share of heads that have each label."""
    return {name: sum(each.label == name for each in labels) / max(1, len(labels)) for name in LABELS}


def table_of_rules() -> list[tuple[str, str, str, str]]:
    """Label, measure, threshold and source of every rule, for people."""
    return [(rule.label, rule.measure, f"{rule.threshold}", rule.source) for rule in RULES]


def grid(labels: Sequence[HeadLabel], layers: Sequence[str]) -> list[list[str]]:
    """Labels as rows of layers, for a picture."""
    return [[each.label for each in labels if each.layer == layer] for layer in layers]


def heads_html(labels: Sequence[HeadLabel], layers: Sequence[str], of: str) -> str:
    """Labelled heads for a notebook: a picture of layers x heads, and a table of those that have a label."""
    from regard.drawing.figures import head_grid  # matplotlib is slow to import, and this is seldom shown

    drawn, title = BytesIO(), f"labels of heads, {of}"
    head_grid(grid(labels, layers), LABELS, title=title).savefig(drawn, format="png", dpi=90)
    named = [each for each in labels if each.label != "none"]
    head = tag("tr", *(tag("th", word) for word in ("layer", "head", "label", "score", "chance", "rule")))
    rows = [
        tag("tr", *(tag("td", cell) for cell in (
            each.layer, each.head, each.label, shown(each.score), shown(each.chance), each.rule
        )))
        for each in named
    ]  # fmt: skip
    summary = tag("summary", f"{len(named)} of {len(labels)} heads have a label")
    table = tag("details", summary, tag("table", head, *rows))
    return (picture(drawn.getvalue(), title) + table).text
