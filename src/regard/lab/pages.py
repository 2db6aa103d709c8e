"""The report of one experiment or of all, as a page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.drawing.html import Markup, joined, page, picture, tag
from regard.lab.drawing import png
from regard.lab.spec import Experiment, Result


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """An experiment that was run."""

    experiment: Experiment
    result: Result
    seconds: float
    quick: bool
    seed: int


def report(done: Sequence[Done]) -> str:
    """All that was found, with figures inside."""
    n_confirmed = sum(each.result.verdict == "confirmed" for each in done)
    body = []
    if len(done) > 1:
        heads = tag("tr", *(tag("th", word) for word in ("experiment", "claim", "verdict")))
        rows = [
            tag(
                "tr",
                tag("td", tag("a", each.experiment.id, href=f"#{each.experiment.id.replace(' ', '-')}")),
                tag("td", each.experiment.claim),
                tag("td", _verdict(each.result)),
            )
            for each in done
        ]
        body = [tag("p", f"{n_confirmed} of {len(done)} claims confirmed."), tag("table", heads, *rows)]
    title = f"Lab: {done[0].experiment.id}" if len(done) == 1 else "Lab: every claim an experiment"
    return page(title, joined([*body, *(_section(each) for each in done)]))


def _verdict(result: Result) -> Markup:
    return tag("span", result.verdict, class_="good" if result.verdict == "confirmed" else "bad")


def _section(done: Done) -> Markup:
    experiment, result = done.experiment, done.result
    checks = [
        tag(
            "tr",
            tag("td", tag("span", "✓" if each.holds else "✗", class_="good" if each.holds else "bad")),
            tag("td", each.what),
            tag("td", each.rule),
            tag("td", each.measured),
        )
        for each in result.checks
    ]
    measured = [tag("tr", tag("td", each.name), tag("td", str(each))) for each in result.measurements]
    heads = tag("tr", *(tag("th", word) for word in ("", "prediction", "rule", "measured")))
    how = f"{'quick run' if done.quick else 'full run'}, seed {done.seed}, {done.seconds:.1f} s"
    return tag(
        "section",
        tag("h2", experiment.id, " ", _verdict(result), id=experiment.id.replace(" ", "-")),
        tag("p", tag("strong", "Claim. "), experiment.claim),
        tag("p", tag("strong", "Prediction. "), experiment.prediction),
        tag("p", tag("strong", result.sentence)),
        picture(png(result.figure), f"Figure of the experiment {experiment.id}"),
        tag("table", heads, *checks),
        tag("details", tag("summary", "All measurements"), tag("table", *measured)),
        *(tag("p", note, class_="note") for note in result.notes),
        tag("p", how, class_="dim"),
    )
