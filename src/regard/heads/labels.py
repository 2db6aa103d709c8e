"""From measures to the names people use for heads, each with its score and the rule that gave it.

A label is a claim about this model on this text. A head gets one when its score reaches the label's threshold
and stands out (`chance.py`) from a head that looks everywhere alike, from its own weights with the keys
permuted, and, where the model is at hand, from the same architecture with random weights. The last two are
compared with the largest of all heads, since all heads are looked at.
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
from regard.heads.chance import RandomNull, stands_out
from regard.heads.measures import Measures, shown
from regard.registry import LABELLED, LABELS, MEASURES, OTHER_LABELS, UNLABELLED

Ends = Mapping[str, Float[Tensor, "layer head"]] | None  # of confidence intervals


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
# A head that reaches no threshold, but comes this share of the way from chance to two of them, is mixed.
MIXED_SHARE = 0.5


LIKE_RANDOM, MIXED, NONE = OTHER_LABELS


@dataclass(frozen=True, slots=True)
class HeadLabel:
    """What one head is called, and why.

    Attributes:
        layer: The name of its layer.
        head: Its number there.
        label: One of `LABELS`.
        score: The score of the label's measure; NaN where no single measure gave the label.
        chance: The score of a head that looks at every visible key alike.
        null: The largest score that chance gives over all heads; what the score had to exceed.
        low: The lower end of the score's confidence interval over texts; NaN from one text.
        high: Its upper end.
        share: The share of the rows with a choice that the score speaks of.
        rule: What gave the label, in words.
        also: Other labels whose rules the head meets.
    """

    layer: str
    head: int
    label: str
    score: float
    chance: float
    null: float
    low: float
    high: float
    share: float
    rule: str
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ComparedScore:
    """One measure of one head beside what chance gives.

    Attributes:
        score: What was measured.
        chance: The score of a head that looks at every visible key alike.
        null: The largest score that any null gives over all heads; NaN if none is known.
        low: The lower end of the score's confidence interval; NaN from one text.
        high: Its upper end.
        share: The share of the rows with a choice that the score speaks of.
        stands_out: Whether the score is more than chance.
    """

    score: float
    chance: float
    null: float
    low: float
    high: float
    share: float
    stands_out: bool


class AgainstChance:
    """Measures beside every null there is: asks `stands_out` of any measure of any head."""

    def __init__(
        self, measures: Measures, null: RandomNull | None = None, low: Ends = None, high: Ends = None
    ) -> None:
        """Prepare the levels of the nulls.

        Args:
            measures: What was measured.
            null: What models of the same architecture with random weights reach.
            low: The lower ends of confidence intervals.
            high: The upper ends.
        """
        self.measures, self.null, self.low, self.high = measures, null, low, high
        self._offsets = measures.offset
        self._permuted = {name: measures.largest_by_chance(name) for name in measures.values}

    def compare(self, name: str, layer: int, head: int) -> ComparedScore:
        """Compare one measure of one head with every null.

        Args:
            name: A measure.
            layer: The index of its layer.
            head: The head's number there.

        Returns:
            The score with what chance gives, and whether it stands out. A uniformity stands out where it is
            lower than chance: its score and levels are those of 1 - uniformity.
        """
        measures, null = self.measures, self.null
        # Positional is the share of argmaxes at this head's best offset.
        of = f"argmax{int(self._offsets[layer, head]):+d}" if name == "positional" else name
        score, chance = float(measures[of][layer, head]), float(measures.chance[of][layer])
        if name == "uniformity":
            score, chance = 1 - score, 1 - chance
        nulls = [float(self._permuted[of][layer, head])]
        nulls += [null.level(name, chance)] if null is not None else []
        low, high = (float(end[of][layer, head]) if end else math.nan for end in (self.low, self.high))
        share = float(measures.n_query[of][layer] / measures.n_row[layer].clamp(min=1))
        largest = max((number for number in nulls if not math.isnan(number)), default=math.nan)
        most = MEASURES[name].scale[1]
        out = stands_out(score, chance, *nulls, most=most, low=math.nan if name == "uniformity" else low)
        return ComparedScore(score, chance, largest, low, high, share, out)


def label(
    measures: Measures,
    *,
    null: RandomNull | None = None,
    low: Ends = None,
    high: Ends = None,
) -> list[HeadLabel]:
    """Label every head.

    Args:
        measures: What was measured.
        null: What models of the same architecture with random weights reach; `random_null` measures it.
            Without it a head is compared with its own weights, keys permuted, alone.
        low: The lower ends of a survey's confidence intervals: they must be above chance.
        high: The upper ends.

    Returns:
        A label for each head, in order. "like random": nothing it does stands out. "none": something does,
        and no rule names it.

    Raises:
        ArgumentError: If only one end of the intervals is given.

    Example:
        >>> import torch
        >>> from regard.tracing.traces import Trace
        >>> from regard.heads.measures import measure
        >>> weights = torch.eye(19).roll(-1, 1).tril()  # each looks at the one before
        >>> weights[0, 0] = 1
        >>> label(measure(Trace.from_weights(weights)))[0].label
        'previous-token'
    """
    if (low is None) != (high is None):
        raise ArgumentError("low and high are the ends of one interval: give both or neither.")
    against = AgainstChance(measures, null, low, high)
    places = [(layer, head) for layer, n_head in enumerate(measures.n_heads) for head in range(n_head)]
    return [_label_one(against, layer, head) for layer, head in places]


def _label_one(against: AgainstChance, layer: int, head: int) -> HeadLabel:
    """Label one head."""
    name = against.measures.layers[layer]
    met: list[tuple[int, float, HeadLabel]] = []
    near, stands = [], False
    for rule in RULES:
        this = against.compare(rule.measure, layer, head)
        if not this.stands_out:
            continue
        stands = True
        if this.score >= rule.threshold:
            numbers = (this.score, this.chance, this.null, this.low, this.high, this.share)
            because = (
                f"{rule.measure} {this.score:.2f} >= {rule.threshold}, on {this.share:.0%} of the rows; "
                f"chance is {this.chance:.2f}, and the largest of all heads by chance {this.null:.2f}"
            )
            lift = (this.score - this.chance) / (1 - this.chance)
            met.append((rule.tier, -lift, HeadLabel(name, head, rule.label, *numbers, because)))
        elif this.score - this.chance >= MIXED_SHARE * (rule.threshold - this.chance) > 0:
            near.append(f"{rule.label} {this.score:.2f}")
    if met:
        (_, _, best), *others = sorted(met, key=lambda reached: reached[:2])
        return replace(best, also=tuple(other.label for _, _, other in others))
    nothing = (math.nan,) * 6
    if len(near) >= 2:
        return HeadLabel(name, head, MIXED, *nothing, f"near several: {', '.join(near)}")
    if stands or against.compare("uniformity", layer, head).stands_out:
        return HeadLabel(name, head, NONE, *nothing, "it differs from chance, and no rule says how")
    return HeadLabel(name, head, LIKE_RANDOM, *nothing, "nothing it does stands out from chance")


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
    named = [head for head in labels if head.label not in UNLABELLED]
    words = ("layer", "head", "label", "score", "chance", "rule")
    rows = [(h.layer, h.head, h.label, shown(h.score), shown(h.chance), h.rule) for h in named]
    summary = tag("summary", f"{len(named)} of {len(labels)} heads have a label")
    return (picture(drawn.getvalue(), title) + tag("details", summary, table(words, rows))).text
