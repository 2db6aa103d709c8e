"""The one table of measures, labels of heads and views: everything that is said about them is said here.

Python reads it; `web/src/registry.ts` is generated from it (`python web/generate.py`), and the command line,
the documentation's tables and the page's colours and sentences come from it. A new measure is a row of
`MEASURES`, a function in `heads/measures.py` and a test. Nothing here imports torch, so that the command line
can list names at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["share", "nats", "tokens"]
ProbeText = Literal["text", "repeat", "needle"]
Of = Literal["weights", "argmax", "row"]

UNIFORM = "a head that looks at every visible key alike"  # what the chance level of most measures is that of

# Colours of weights, from 0 to the largest, and of differences, less to more, in figures and on the page.
# Lightness alone carries the order, so that every kind of colour blindness can read it.
WEIGHT_COLORS = ("#fcfcfe", "#d6e4f4", "#94bce2", "#4e86c4", "#3450a0", "#2a2268", "#160a30")
DIFFERENCE_COLORS = ("#043c70", "#3e8cc4", "#a8d0e6", "#f8f8f8", "#faca96", "#de7c28", "#8a3e06")

# How special tokens are spelled: [CLS], <s>, <|im_start|>; not <0x0A> and <517>, which stand for text. A
# regular expression that means the same in Python and JavaScript; the whole token, stripped, must match.
SPECIAL_TOKEN = r"\[[A-Z]+\]|</?[^<>\s0-9][^<>\s]*>"


@dataclass(frozen=True, slots=True)
class LabelInfo:
    """A name for heads that have much of one measure.

    Attributes:
        name: What such a head is called.
        sentence: What such a head does, for somebody who meets the name for the first time.
        color: Its colour in every figure and on the page.
        threshold: The score that a head must reach.
        source: Where the threshold comes from.
        tier: Of several labels that a head reaches, the one of the lowest tier says most about it.
    """

    name: str
    sentence: str
    color: str
    threshold: float
    source: str
    tier: int = 0


@dataclass(frozen=True, slots=True)
class MeasureInfo:
    """One number that says what a head looks at.

    Attributes:
        name: Its name in Python, in tables and on the command line.
        title: Its name in a sentence.
        sentence: What it is.
        unit: What it is counted in. A share lies between 0 and 1.
        chance: Whose score its chance level is.
        of: What it adds up: weights on certain keys, the rows whose largest weight is on one of them, or
            something of the whole row that does not change when its keys are permuted.
        probe: The kind of text a survey measures it on: those given, repeated random tokens, or planted
            needles.
        label: The name of heads that have much of it; None where there is no such name.
    """

    name: str
    title: str
    sentence: str
    unit: Unit = "share"
    chance: str = UNIFORM
    of: Of = "weights"
    probe: ProbeText = "text"
    label: LabelInfo | None = None

    @property
    def scale(self) -> tuple[float, float | None]:
        """Return the smallest and the largest value it can have; None is no limit."""
        return (0.0, 1.0 if self.unit == "share" else None)


_CLARK = "Clark et al. 2019: over half of the attention"

# Rows stand in the order of tables, which show the first as far as there is room.
#
# Delimiters and the first token are where a head rests when it has nothing to do (Clark et al. 2019): an
# induction head rests there on text without repetition, and is one all the same. Hence the tiers.
MEASURES: dict[str, MeasureInfo] = {
    info.name: info
    for info in (
        MeasureInfo(
            "previous",
            "previous token",
            "weight on the position before",
            label=LabelInfo(
                "previous-token",
                "Most of its weight lies on the token before.",
                "#1574b3",
                0.5,
                _CLARK,
            ),
        ),
        MeasureInfo(
            "first",
            "first position",
            "weight on the first position",
            label=LabelInfo(
                "sink",
                "It rests on the first token, as heads do that have nothing to say.",
                "#dbcfb0",
                0.3,
                "Gu et al. 2025: mean weight above 0.3 on the first token",
                2,
            ),
        ),
        MeasureInfo(
            "special",
            "special tokens",
            "weight on [CLS], [SEP], BOS and other special tokens",
            label=LabelInfo(
                "delimiter",
                "It rests on tokens that mark where a text begins and ends, such as [CLS] and [SEP].",
                "#edad64",
                0.5,
                _CLARK,
                1,
            ),
        ),
        MeasureInfo(
            "induction",
            "induction",
            "weight on what followed earlier copies of the token",
            probe="repeat",
            label=LabelInfo(
                "induction",
                "It looks at what followed an earlier copy of the same token.",
                "#d83787",
                0.4,
                "ours; Olsson et al. 2022 define the score, give no number",
            ),
        ),
        MeasureInfo(
            "duplicate",
            "earlier copies",
            "weight on earlier copies of the token",
            probe="repeat",
            label=LabelInfo(
                "duplicate-token",
                "It looks at earlier copies of the same token.",
                "#d978b0",
                0.4,
                "ours; Wang et al. 2022 name the heads, give no number",
            ),
        ),
        MeasureInfo(
            "retrieval",
            "retrieval",
            "share of rows whose largest weight is on what followed an earlier copy of the token",
            of="argmax",
            probe="needle",
            label=LabelInfo(
                "retrieval",
                "It finds, far back, what is written next.",
                "#701040",
                0.2,
                "ours; Wu et al. 2024 take a tenth of what a model writes itself",
                1,
            ),
        ),
        MeasureInfo(
            "streaming",
            "first and last positions",
            "weight on the first four positions and the last five, in rows that see many more",
            label=LabelInfo(
                "streaming",
                "It needs only the first tokens and the last few.",
                "#dcf4a0",
                0.9,
                "ours; Xiao et al. 2024 (DuoAttention) train a gate to tell",
                3,
            ),
        ),
        MeasureInfo(
            "uniformity",
            "uniformity",
            "entropy divided by that of looking at every visible key alike: 1 is uniform",
            of="row",
        ),
        MeasureInfo(
            "next",
            "next token",
            "weight on the position after",
            label=LabelInfo(
                "next-token",
                "Most of its weight lies on the token after.",
                "#57b5e9",
                0.5,
                _CLARK,
            ),
        ),
        MeasureInfo(
            "punctuation",
            "punctuation",
            "weight on punctuation",
            label=LabelInfo(
                "punctuation",
                "It looks at commas, full stops and the like.",
                "#da640d",
                0.5,
                "ours, as for delimiters",
            ),
        ),
        MeasureInfo(
            "rare",
            "rare words",
            "weight on the least frequent tenth of the words, leaving out the first position",
            label=LabelInfo(
                "rare-word",
                "It looks at the words that are rarest in this text.",
                "#247a3a",
                0.5,
                "ours; Voita et al. 2019 count argmaxes",
            ),
        ),
        MeasureInfo(
            "positional",
            "one distance",
            "share of rows whose largest weight is at one fixed distance (the best of -4 to 4)",
            of="argmax",
            label=LabelInfo(
                "positional",
                "It looks at one distance, whatever the words are.",
                "#573b99",
                0.9,
                "Voita et al. 2019: the argmax at one distance in 90 %",
                3,
            ),
        ),
        MeasureInfo(
            "same",
            "same position",
            "weight on the token's own position",
            label=LabelInfo(
                "diagonal",
                "Each token looks mostly at itself.",
                "#1c466f",
                0.5,
                "ours, as for the tokens before and after",
            ),
        ),
        MeasureInfo("largest", "largest weight", "largest weight of a row", of="row"),
        MeasureInfo("entropy", "entropy", "entropy of a row's weights", unit="nats", of="row"),
        MeasureInfo(
            "distance",
            "distance",
            "mean distance between a token and what it looks at",
            unit="tokens",
            of="row",
        ),
    )
}

# Labels that no single measure gives, with their sentence and colour.
OTHER_LABELS = {
    "like random": ("Nothing it does stands out from what a model with random weights does.", "#a8d9cd"),
    "mixed": ("It does two of these things, neither of them mostly.", "#aba8a3"),
    "none": ("No rule names what it does on this text.", "#f0f0f2"),
}
UNLABELLED = ("like random", "none")  # what a head is called that gets no label
LABELLED: tuple[MeasureInfo, ...] = tuple(info for info in MEASURES.values() if info.label is not None)
LABELS: tuple[str, ...] = (*(info.label.name for info in LABELLED if info.label), *OTHER_LABELS)
LABEL_COLORS: dict[str, str] = {
    **{info.label.name: info.label.color for info in LABELLED if info.label},
    **{name: color for name, (_, color) in OTHER_LABELS.items()},
}
LABEL_SENTENCES: dict[str, str] = {
    **{info.label.name: info.label.sentence for info in LABELLED if info.label},
    **{name: sentence for name, (sentence, _) in OTHER_LABELS.items()},
}


@dataclass(frozen=True, slots=True)
class ViewInfo:
    """One way to look at a head or at a model.

    Attributes:
        name: Its name in an address, in a call and on the command line.
        title: Its name on a button.
        key: The key that opens it on the page.
        sentence: What it shows.
        level: "page" for a view that fills the page, "atlas" for one of a head inside the atlas.
    """

    name: str
    title: str
    key: str
    sentence: str
    level: Literal["page", "atlas"]


VIEWS: dict[str, ViewInfo] = {
    view.name: view
    for view in (
        ViewInfo("story", "Story", "s", "one sentence and where one of its words looks", "page"),
        ViewInfo("machine", "Machine", "m", "how one weight is computed, number by number", "page"),
        ViewInfo("atlas", "Atlas", "a", "all heads, and one of them large", "page"),
        ViewInfo("map", "Map", "1", "a row for each query, a column for each key", "atlas"),
        ViewInfo("lines", "Lines", "2", "a line from each query to the keys it looks at", "atlas"),
        ViewInfo("text", "Text", "3", "the text, coloured by what one token looks at", "atlas"),
    )
}
