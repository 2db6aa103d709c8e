"""Grades as a teacher, a student or a grader reads them: CSV, JSON, pages, Gradescope, GitHub."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from regard.checking.assignment import Assignment
from regard.checking.check import Result
from regard.checking.marks import PASSED, UNANSWERED, UNTOUCHED, Grade, Mark
from regard.checking.reports.html import section
from regard.drawing.html import Markup, joined, tag
from regard.drawing.html import page as whole_page
from regard.tables import csv_text

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would run
VISIBILITY = {"never": "hidden", "after due date": "after_due_date", "after published": "after_published"}
BAR = 130  # pixels


@dataclass(frozen=True)
class Common:
    """A mistake, by how many of those who answered the exercise it was made, and what to say about it."""

    exercise: str
    mistake: str
    students: int
    of: int
    say: str


def common_mistakes(grades: Sequence[Grade]) -> list[Common]:
    """What went wrong most often, first; failures without a name count by the first check that failed."""
    counted: dict[tuple[str, str], list[Any]] = {}
    answered: dict[str, int] = {}
    for grade in grades:
        for mark in grade.marks:
            tried = mark.status not in (UNANSWERED, UNTOUCHED)
            answered[mark.exercise] = answered.get(mark.exercise, 0) + tried
            if not tried or mark.status == PASSED:
                continue
            failed = next((line for line in mark.lines if not line.passed), None)
            unnamed = [(failed.name, f"Seen once: {failed.message}")] if failed else []
            for name, say in mark.mistakes or unnamed:
                counted.setdefault((mark.exercise, name), [0, say])[0] += 1
    rows = [Common(id, name, n, answered[id], say) for (id, name), (n, say) in counted.items()]
    return sorted(rows, key=lambda row: (-row.students, row.exercise, row.mistake))


def csv_of(grades: Sequence[Grade]) -> str:
    """A row for each student: points in all and for each exercise, what is missing, what went wrong."""
    ids = [mark.exercise for mark in grades[0].marks] if grades else []

    def cell(text: str) -> str:
        return f"'{text}" if text.startswith(FORMULA) else text

    columns: dict[str, list[Any]] = {
        "student": [cell(grade.student) for grade in grades],
        "points": [grade.points for grade in grades],
        "out of": [grade.out_of for grade in grades],
        **{id: [_mark(grade, id).points for grade in grades] for id in ids},
        "deductions": [round(sum(points for _, points in grade.deductions), 2) for grade in grades],
        "submitted": [grade.submitted for grade in grades],
        "days late": [grade.days_late for grade in grades],
        "not answered": [", ".join(missing(grade)) for grade in grades],
        "mistakes": [
            cell("; ".join(f"{mark.exercise}: {name}" for mark in grade.marks for name, _ in mark.mistakes))
            for grade in grades
        ],
        "look at": [cell(" ".join(grade.problems)) for grade in grades],
    }
    return csv_text(columns)


def _mark(grade: Grade, id: str) -> Mark:
    return next(mark for mark in grade.marks if mark.exercise == id)


def missing(grade: Grade) -> list[str]:
    """The exercises that a student did not answer."""
    return [mark.exercise for mark in grade.marks if mark.status in (UNANSWERED, UNTOUCHED)]


def json_of(title: str, grades: Sequence[Grade]) -> str:
    """All grades and the common mistakes, which `regard assignment report` reads back."""
    mistakes = [vars(row) for row in common_mistakes(grades)]
    page = {"title": title, "students": [grade.as_json() for grade in grades], "mistakes": mistakes}
    return json.dumps(page, indent=1) + "\n"


def feedback(title: str, grade: Grade, results: Sequence[Result]) -> str:
    """A student's page: points and reasons, then every answer with its pictures."""
    heads = _heads("exercise", "points", "", "checks passed", "")
    rows = [
        tag(
            "tr",
            tag("td", mark.exercise),
            _points(mark.points, mark.out_of),
            tag("td", mark.status, class_="good" if mark.status == PASSED else "bad"),
            tag("td", ", ".join(f"{kind} {n} of {of}" for kind, (n, of) in mark.by_kind().items())),
            tag("td", *(tag("div", sentence) for sentence in mark.said)),
        )
        for mark in grade.marks
    ]
    rows += [
        tag("tr", tag("td", "deducted"), tag("td", f"-{points:g}"), tag("td", why, colspan=3))
        for why, points in grade.deductions
    ]
    late = [tag("p", f"Handed in {grade.days_late} days late.", class_="bad")] if grade.days_late else []
    said = [tag("p", problem, class_="bad") for problem in grade.problems]
    summary = tag(
        "p", tag("strong", f"{grade.points:g} of {grade.out_of:g} points"), f" for {grade.student}."
    )
    parts = [summary, *late, tag("table", heads, *rows), *said]
    return whole_page(title, joined([*parts, *(section(index, one) for index, one in enumerate(results))]))


def _heads(*words: str) -> Markup:
    return tag("tr", *(tag("th", word) for word in words))


def _points(points: float, out_of: float) -> Markup:
    return tag("td", f"{points:g} of {out_of:g}", style="white-space: nowrap")


def _bar(part: float, text: str) -> Markup:
    """A bar as long as a part of the whole, and what it stands for."""
    shade = f"width: {round(BAR * max(0.0, min(1.0, part)))}px; background: #1e88e588; height: .8em"
    return tag("td", tag("div", style=shade), text, style="white-space: nowrap")


def summary(title: str, grades: Sequence[Grade], pages: dict[str, str]) -> str:
    """The teacher's page: marks by exercise, what to say in the next lecture, every student.

    `pages` has the address of each student's feedback.
    """
    totals = [grade.points for grade in grades]
    out_of = grades[0].out_of
    figures = (
        f"{len(grades)} students, mean {mean(totals):.1f}, median {median(totals):.1f} of {out_of:g} points."
    )
    statuses = sorted({mark.status for grade in grades for mark in grade.marks})
    ids = [mark.exercise for mark in grades[0].marks]
    by_exercise = []
    for number, id in enumerate(ids):
        marks = [grade.marks[number] for grade in grades]
        average = mean(mark.points for mark in marks)
        most = marks[0].out_of
        counts = [sum(mark.status == status for mark in marks) for status in statuses]
        by_exercise.append(
            tag(
                "tr",
                tag("td", id),
                _bar(average / most if most else 0.0, f"{average:.1f} of {most:g}"),
                *(tag("td", count or "") for count in counts),
            )
        )
    said = [
        tag(
            "tr",
            _bar(row.students / max(1, row.of), f"{row.students} of {row.of}"),
            tag("td", row.exercise),
            tag("td", tag("strong", row.mistake)),
            tag("td", row.say),
        )
        for row in common_mistakes(grades)
    ]
    listed = [
        tag(
            "tr",
            tag("td", tag("a", grade.student, href=pages[grade.student])),
            *(tag("td", f"{mark.points:g}") for mark in grade.marks),
            _points(grade.points, grade.out_of),
            tag("td", f"{grade.days_late} days" if grade.days_late else ""),
            tag("td", *(tag("div", problem) for problem in grade.problems)),
        )
        for grade in grades
    ]
    parts = [
        tag("p", figures),
        tag("h2", "Exercises"),
        tag("table", _heads("exercise", "mean", *statuses), *by_exercise),
        tag("h2", "For the next lecture"),
        tag("table", _heads("students", "exercise", "mistake", "say"), *said)
        if said
        else tag("p", "No mistakes."),
        tag("h2", "Students"),
        tag("table", _heads("student", *ids, "points", "late", "look at"), *listed),
    ]
    return whole_page(title, joined(parts))


def gradescope(assignment: Assignment, grade: Grade) -> str:
    """A results.json: a row for each exercise, with its reasons inside, and one for its hidden checks."""
    tests = []
    for mark in grade.marks:
        said = [*mark.said] if mark.status != PASSED else []
        rows = [(mark.exercise, False, mark.points - mark.hidden_points, mark.out_of - mark.hidden_out_of)]
        if mark.hidden_out_of:
            rows.append((f"{mark.exercise}: hidden checks", True, mark.hidden_points, mark.hidden_out_of))
        for name, hidden, points, out_of in rows:
            lines = [line for line in mark.lines if line.hidden == hidden]
            failed = [f"- {line.name}: {line.message}" for line in lines if not line.passed]
            counted = f"{sum(line.passed for line in lines)} of {len(lines)} checks passed: {mark.status}."
            tests.append(
                {
                    "name": name,
                    "score": round(points, 2),
                    "max_score": round(out_of, 2),
                    "status": "failed" if failed or not lines else "passed",
                    "output": "\n".join([counted if lines else f"{mark.status}.", *said, *failed]),
                    "visibility": VISIBILITY[assignment.show_hidden] if hidden else "visible",
                }
            )
    tests += [
        {"name": why, "score": -points, "max_score": 0, "status": "failed", "visibility": "visible"}
        for why, points in grade.deductions
    ]
    page = {"score": grade.points, "output": "\n".join(grade.problems), "tests": tests}
    return json.dumps(page, indent=1) + "\n"


def github_summary(title: str, grade: Grade) -> str:
    """Markdown for a step's summary: a table of marks, and the reasons."""
    lines = [
        f"## {title}: {grade.points:g} of {grade.out_of:g}",
        "",
        "| exercise | points | |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {mark.exercise} | {mark.points:g} of {mark.out_of:g} | {mark.status} |" for mark in grade.marks
    ]
    lines += [f"| deducted | -{points:g} | {_cell(why)} |" for why, points in grade.deductions]
    for mark in grade.marks:
        if mark.status != PASSED:
            lines += ["", f"### {mark.exercise}", *(f"- {_cell(reason)}" for reason in mark.reasons)]
    lines += ["", *(f"- {_cell(problem)}" for problem in grade.problems)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    special = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>#|!~$@"})
    return " ".join(text.translate(special).split())


def github_annotations(grade: Grade) -> str:
    """A workflow command for each exercise that is not passed, which marks its file."""
    lines = []
    for mark in grade.marks:
        if mark.status != PASSED:
            # A command ends with its line, and its properties with a comma or a colon.
            file, text = _escaped(mark.file), _escaped("\n".join(mark.reasons))
            place = f"file={file.replace(':', '%3A').replace(',', '%2C')}," if file else ""
            title = f"{mark.exercise}%3A {mark.points:g} of {mark.out_of:g} points"
            lines.append(f"::error {place}title={title}::{text}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def write_step_summary(text: str) -> None:
    """Add to the summary of the step that runs, where GitHub says it is."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
