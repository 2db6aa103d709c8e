"""Grades as a teacher, a student or a grader reads them: CSV, JSON, pages, Gradescope, GitHub."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from regard.checking.assignment import Assignment
from regard.checking.check import Result
from regard.checking.marks import NO_ANSWER, PASSED, STATUSES, Grade
from regard.checking.reports.html import section, word
from regard.drawing.html import Markup, joined, table, tag
from regard.drawing.html import page as whole_page
from regard.drawing.tables import csv_text
from regard.errors import plural

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a cell begins that a spreadsheet would compute
VISIBILITY = {"never": "hidden", "after due date": "after_due_date", "after published": "after_published"}


def common_mistakes(grades: Sequence[Grade]) -> list[dict[str, Any]]:
    """What went wrong, the most frequent first: how many did of those who answered, and what to say."""
    marks = [mark for grade in grades for mark in grade.marks if mark.status not in NO_ANSWER]
    answered = Counter(mark.exercise for mark in marks)
    say = {(mark.exercise, name): text for mark in marks for name, text in mark.mistakes.items()}
    made = Counter((mark.exercise, name) for mark in marks for name in mark.mistakes)
    return [
        {"exercise": id, "mistake": name, "students": n, "of": answered[id], "say": say[id, name]}
        for (id, name), n in sorted(made.items(), key=lambda item: (-item[1], item[0]))
    ]


def csv_of(grades: Sequence[Grade]) -> str:
    """A row for each student: points in all and by exercise, what is missing, what went wrong."""
    rows: list[dict[str, object]] = []
    for grade in grades:
        mistakes = [f"{mark.exercise}: {name}" for mark in grade.marks for name in mark.mistakes]
        row: dict[str, object] = {"student": grade.student, "points": grade.points, "out of": grade.out_of}
        row |= {mark.exercise: mark.points for mark in grade.marks}
        row["deductions"] = round(sum(grade.deductions.values()), 2)
        row |= {"submitted": grade.submitted, "days late": grade.days_late}
        row |= {"not answered": ", ".join(grade.unanswered), "mistakes": "; ".join(mistakes)}
        rows.append({**row, "look at": " ".join(grade.problems)})
    return csv_text({name: [_harmless(row[name]) for row in rows] for name in rows[0]})


def _harmless(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def json_of(title: str, grades: Sequence[Grade]) -> str:
    """All grades, and the common mistakes."""
    students = [grade.as_json() for grade in grades]
    return _json({"title": title, "students": students, "mistakes": common_mistakes(grades)})


def _json(page: dict[str, Any]) -> str:
    return json.dumps(page, indent=1) + "\n"


def feedback(title: str, grade: Grade, results: Sequence[Result]) -> str:
    """A student's page: points and reasons, then every answer with its pictures."""
    rows: list[tuple[object, ...]] = [
        (
            _line(mark.exercise),
            _line(f"{mark.points:g} of {mark.out_of:g}"),
            word(mark.status == PASSED, mark.status),
            _stacked(_line(f"{kind} {n} of {of}") for kind, (n, of) in mark.by_kind().items()),
            _stacked(mark.said),
        )
        for mark in grade.marks
    ]
    rows += [("deducted", f"-{points:g}", "", "", why) for why, points in grade.deductions.items()]
    late = [f"Handed in {grade.days_late} days late."] if grade.days_late else []
    parts = [
        tag("p", tag("strong", f"{grade.points:g} of {grade.out_of:g} points"), f" for {grade.student}."),
        table(("exercise", "points", "", "checks passed", ""), rows),
        *(tag("p", sentence, class_="bad") for sentence in (*late, *grade.problems)),
        *(section(index, result) for index, result in enumerate(results)),
    ]
    return whole_page(title, joined(parts))


def summary(title: str, grades: Sequence[Grade], pages: Mapping[str, str]) -> str:
    """The teacher's page: marks by exercise, what to say in the next lecture, every student.

    `pages` has the address of each student's feedback.
    """
    totals = [grade.points for grade in grades]
    figures = f"{plural(len(grades), 'student')}, mean {mean(totals):.1f}, median {median(totals):.1f}"
    ids = [mark.exercise for mark in grades[0].marks]
    exercises = []
    for id, *marks in zip(ids, *(grade.marks for grade in grades), strict=True):
        average, most = mean(mark.points for mark in marks), marks[0].out_of
        counts = Counter(mark.status for mark in marks)
        bar = _bar(average / most if most else 0.0, f"{average:.1f} of {most:g}")
        exercises.append((_line(id), bar, *(counts[status] or "" for status in STATUSES)))
    said = []
    for row in common_mistakes(grades):
        bar = _bar(row["students"] / row["of"], f"{row['students']} of {row['of']}")
        said.append((bar, _line(row["exercise"]), tag("strong", row["mistake"]), row["say"]))
    students = [
        (
            tag("a", grade.student, href=pages[grade.student]),
            *(f"{mark.points:g}" for mark in grade.marks),
            tag("strong", f"{grade.points:g}"),
            _line(f"{grade.days_late} days") if grade.days_late else "",
            _stacked(grade.problems),
        )
        for grade in grades
    ]
    parts = [
        tag("p", f"{figures} of {grades[0].out_of:g} points."),
        tag("h2", "Exercises"),
        table(("exercise", "mean", *STATUSES), exercises),
        tag("h2", "For the next lecture"),
        table(("students", "exercise", "mistake", "say"), said) if said else tag("p", "No mistakes."),
        tag("h2", "Students"),
        table(("student", *ids, "points", "late", "look at"), students),
    ]
    return whole_page(title, joined(parts))


def _line(text: str) -> Markup:
    return tag("span", text, style="white-space: nowrap")


def _stacked(lines: Iterable[object]) -> Markup:
    return joined([tag("div", line) for line in lines])


def _bar(part: float, text: str) -> Markup:
    """A bar that is filled as far as the part goes, and what it stands for."""
    full = tag("div", style=f"width: {100 * part:.0f}%; background: #1e88e5; height: .6em")
    return tag("div", full, style="width: 6rem; background: #8884") + _line(text)


def gradescope(assignment: Assignment, grade: Grade) -> str:
    """A results.json: a row for each exercise, with its reasons inside, and one for its hidden checks."""
    tests = []
    for mark in grade.marks:
        seen = (mark.exercise, False, mark.points - mark.hidden_points, mark.out_of - mark.hidden_out_of)
        unseen = (f"{mark.exercise}: hidden checks", True, mark.hidden_points, mark.hidden_out_of)
        for name, hidden, points, out_of in (seen, unseen)[: 2 if mark.hidden_out_of else 1]:
            lines = [line for line in mark.lines if line.hidden == hidden]
            failed = [f"- {line.name}: {line.message}" for line in lines if not line.passed]
            passed = points >= out_of and not failed and bool(lines)  # whatever becomes of what is hidden
            counted = [f"{len(lines) - len(failed)} of {len(lines)} checks passed."] if lines else []
            output = [f"{PASSED if passed else mark.status}.", *mark.said, *counted, *failed]
            row = {"name": name, "score": round(points, 2), "max_score": round(out_of, 2)}
            row |= {"status": "passed" if passed else "failed", "output": "\n".join(output)}
            tests.append({**row, "visibility": VISIBILITY[assignment.show_hidden] if hidden else "visible"})
    lost = [{"name": why, "score": -points, "max_score": 0} for why, points in grade.deductions.items()]
    return _json({"score": grade.points, "output": "\n".join(grade.problems), "tests": [*tests, *lost]})


def github_summary(title: str, grade: Grade) -> str:
    """Markdown for the summary of a step: a table of marks, and the reasons."""
    rows = [(mark.exercise, f"{mark.points:g} of {mark.out_of:g}", mark.status) for mark in grade.marks]
    rows += [("deducted", f"-{points:g}", why) for why, points in grade.deductions.items()]
    lines = [f"## {_plain(title)}: {grade.points:g} of {grade.out_of:g} points", ""]
    lines += ["| | | |", "| --- | --- | --- |", *(f"| {' | '.join(map(_plain, row))} |" for row in rows)]
    for mark in grade.marks:
        if mark.status != PASSED:
            lines += ["", f"### {mark.exercise}", *(f"- {_plain(reason)}" for reason in mark.reasons)]
    return "\n".join([*lines, "", *(f"- {_plain(problem)}" for problem in grade.problems)]) + "\n"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    special = {ord(mark): f"\\{mark}" for mark in "\\`*_{}[]<>#|!~$@"}
    return " ".join(text.translate(special).split())


def github_annotations(grade: Grade) -> str:
    """A workflow command for each exercise that did not pass, which marks its file."""
    # A command ends with its line, a property of it with a comma or a colon.
    escaped = {ord("%"): "%25", ord("\r"): "%0D", ord("\n"): "%0A"}
    properties = {**escaped, ord(":"): "%3A", ord(","): "%2C"}
    commands = []
    for mark in grade.marks:
        if mark.status != PASSED:
            title = f"{mark.exercise}: {mark.points:g} of {mark.out_of:g} points".translate(properties)
            file = f"file={mark.file.translate(properties)}," if mark.file else ""
            reasons = "\n".join(mark.reasons).translate(escaped)
            commands.append(f"::error {file}title={title}::{reasons}\n")
    return "".join(commands)
