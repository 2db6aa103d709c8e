"""The report of one experiment or of all, as a page that needs nothing but itself."""

from collections.abc import Sequence
from typing import get_args

from regard.drawing.html import Markup, fragment, joined, page, picture, tag
from regard.errors import plural
from regard.lab.spec import Lab, Outcome, Verdict

MARKS: dict[Outcome, str] = {"holds": "✓", "fails": "✗", "undecided": "?"}


def report(done: Sequence[Lab]) -> str:
    """All that was measured, with figures inside."""
    counts = count_verdicts(done)
    body = []
    if len(done) > 1:
        rows = [
            _row("td", tag("a", run.experiment.id, href=f"#{run.experiment.id.replace(' ', '-')}"),
                 run.experiment.claim, _verdict(run))
            for run in done
        ]  # fmt: skip
        table = tag("table", _row("th", "experiment", "claim", "verdict"), *rows)
        body = [tag("p", counts), table]
    title = f"Lab: {done[0].experiment.id}" if len(done) == 1 else "Lab: every claim an experiment"
    return page(title, joined([*body, *map(_section, done)]))


def count_verdicts(done: Sequence[Lab]) -> str:
    """Return how many claims have each verdict, as a sentence."""
    counts = [(verdict, sum(run.verdict == verdict for run in done)) for verdict in get_args(Verdict)]
    said = ", ".join(f"{n} {verdict}" for verdict, n in counts if n)
    return f"Of {plural(len(done), 'claim')}: {said}."


def cell(done: Lab) -> str:
    """One experiment as a notebook's cell shows it."""
    return fragment(_section(done))


def _row(cell: str, *cells: object) -> Markup:
    return tag("tr", *(tag(cell, content) for content in cells))


def _coloured(text: str, kind: Verdict | Outcome) -> Markup:
    color = {"confirmed": "good", "holds": "good", "undecided": "dim"}.get(kind, "bad")
    return tag("span", text, class_=color)


def _verdict(done: Lab) -> Markup:
    return _coloured(done.verdict, done.verdict)


def _section(done: Lab) -> Markup:
    experiment = done.experiment
    checks = [
        _row("td", _coloured(MARKS[check.outcome], check.outcome), check.what, check.rule, check.measured)
        for check in done.checks
    ]
    n_holding = sum(check.holds for check in done.checks)
    measured = [_row("td", measurement.name, measurement) for measurement in done.measurements]
    how = f"{'quick run' if done.quick else 'full run'}, seed {done.seed}, {done.seconds:.1f} s"
    return tag(
        "section",
        tag("h2", experiment.id, " ", _verdict(done), id=experiment.id.replace(" ", "-")),
        tag("p", tag("strong", "Claim. "), experiment.claim),
        tag("p", tag("strong", "Prediction. "), experiment.prediction),
        tag("p", tag("strong", done.sentence)),
        picture(done.draw.png(), f"Figure of the experiment {experiment.id}"),
        tag(
            "details",
            tag("summary", f"{n_holding} of {len(checks)} predictions hold"),
            tag("table", _row("th", "", "prediction", "rule", "measured"), *checks),
            **({} if n_holding == len(checks) else {"open": ""}),
        ),
        tag("details", tag("summary", "All measurements"), tag("table", *measured)),
        tag("p", experiment.note, class_="note"),
        tag("p", how, class_="dim"),
    )
