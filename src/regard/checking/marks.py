"""Points: from the checks of an answer to the mark of an exercise, and from those to a student's grade.

Of the checks of a kind, a part has passed: S. With V that of the kind `values`, an exercise earns

    points * V * (weight of values + sum of weight * S over the other kinds) / (sum of weights) * keeps

where `keeps` is 1 if every value is right, and `wrong_keeps` (0.5) otherwise. So what a wrong answer has
besides its numbers counts in proportion to those that are right, and it never keeps half of the points,
whatever it passes; what gives no right number, as a starter does, earns 0. A check that was not tried has not
passed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from regard.checking import written
from regard.checking.assignment import KINDS, Assignment, Part
from regard.checking.check import Checker, Result
from regard.checking.handin import CODE, HandIn
from regard.checking.judge import HIDDEN, Check, visible
from regard.checking.submission import Submission, read

AS_THE_TASK_SAYS, SHAPE_COMMENTS = "as the task says", "shape comments"  # checks that an assignment may drop
STATUSES = ("passed", "partly right", "wrong", "not allowed", "untouched starter", "not answered")
PASSED, PARTLY, WRONG, REFUSED, UNTOUCHED, UNANSWERED = STATUSES
NO_ANSWER = (UNTOUCHED, UNANSWERED)
DAY = timedelta(days=1)
MOST_NAMES = 3  # of checks that fail in the same way


def sentences(result: Result) -> list[str]:
    """The mistakes in words, or what comes nearest."""
    return [named.sentence for named in result.mistakes] + [result.nearest] * bool(result.nearest)


@dataclass(frozen=True)
class Line:
    """One check of an answer."""

    name: str
    kind: str
    passed: bool
    message: str = ""
    hidden: bool = False

    @property
    def told(self) -> str:
        """What a student may read."""
        return HIDDEN if self.hidden and not self.passed else self.message


def few(checks: Sequence[Check | Line]) -> str:
    """The names of checks that fail in the same way: the first of them."""
    more = f" and {len(checks) - MOST_NAMES} more" if checks[MOST_NAMES:] else ""
    return "; ".join(check.name for check in checks[:MOST_NAMES]) + more


@dataclass(frozen=True)
class Mark:
    """One exercise of one student."""

    exercise: str
    out_of: float
    status: str = UNANSWERED
    points: float = 0.0
    hidden_points: float = 0.0  # of those, what hidden checks gave
    hidden_out_of: float = 0.0
    file: str = ""
    lines: list[Line] = field(default_factory=list)
    mistakes: dict[str, str] = field(default_factory=dict)  # names, and what to say about each
    said: list[str] = field(default_factory=list)  # sentences about the answer as a whole, for the student

    def by_kind(self) -> dict[str, tuple[int, int]]:
        """How many checks of each kind passed, of how many."""
        counted = {kind: [line.passed for line in self.lines if line.kind == kind] for kind in KINDS}
        return {kind: (sum(passed), len(passed)) for kind, passed in counted.items() if passed}

    @property
    def reasons(self) -> list[str]:
        """Why points are missing, for the student: a line for each thing that checks say."""
        failed: dict[tuple[str, ...], list[Line]] = {}
        for line in self.lines:
            if not line.passed:
                # Values that are wrong are wrong in as many ways as there are numbers.
                about = "" if line.kind == "values" and not line.hidden else line.told
                failed.setdefault((line.kind, about), []).append(line)
        groups = [f"{kind}: {few(lines)}: {lines[0].told}" for (kind, _), lines in failed.items()]
        return [*self.said, *groups] or ([] if self.status == PASSED else [f"{self.status}."])


@dataclass(frozen=True)
class Grade:
    """Everything about one student: what every report is made of."""

    student: str
    marks: list[Mark]
    deductions: dict[str, float] = field(default_factory=dict)  # why, and points
    problems: list[str] = field(default_factory=list)  # what a teacher should look at
    submitted: str = ""
    days_late: int = 0
    digest: str = ""

    @property
    def points(self) -> float:
        """All points, less deductions, and never below 0."""
        return max(0.0, round(sum(mark.points for mark in self.marks) - sum(self.deductions.values()), 2))

    @property
    def out_of(self) -> float:
        """The points that there are."""
        return sum(mark.out_of for mark in self.marks)

    @property
    def unanswered(self) -> list[str]:
        """The exercises to which there is no answer."""
        return [mark.exercise for mark in self.marks if mark.status in NO_ANSWER]

    @property
    def passed(self) -> bool:
        """Whether every check of every exercise passed."""
        return all(mark.status == PASSED for mark in self.marks)

    def as_json(self) -> dict[str, Any]:
        """As plain data, which `grade_of` reads."""
        return {**asdict(self), "points": self.points, "out_of": self.out_of}


def grade_of(data: Mapping[str, Any]) -> Grade:
    """The grade that `as_json` wrote."""
    marks = [Mark(**{**mark, "lines": [Line(**line) for line in mark["lines"]]}) for mark in data["marks"]]
    rest = {key: data[key] for key in data if key not in ("marks", "points", "out_of")}
    return Grade(marks=marks, **rest)


def share(part: Part, lines: Iterable[Line], of_all: Iterable[Line]) -> float:
    """The part of the points that these checks earn; `of_all` are those of the whole answer.

    Hidden checks and those that are seen are marked apart: points that are seen tell nothing of others.
    """
    if part.all_or_nothing:
        return float(all(line.passed for line in of_all))
    passed = {kind: [line.passed for line in lines if line.kind == kind] for kind in KINDS}
    values = passed.pop("values")
    weight = part.weights["values"] if values else 0.0
    values = values or [line.passed for line in of_all if line.kind == "values"]
    others = {kind: sum(results) / len(results) for kind, results in passed.items() if results}
    whole = weight + sum(part.weights[kind] for kind in others)
    earned = weight + sum(part.weights[kind] * passed_share for kind, passed_share in others.items())
    right = sum(values) / max(1, len(values))
    return right * (earned / whole if whole else 1.0) * (1.0 if right == 1 else part.wrong_keeps)


def hidden_out_of(part: Part) -> float:
    """The points that hidden checks give: all, where everything hangs on one, or no value is seen."""
    items = part.exercise.checks.items
    hidden = {item.name for item in items if item.secret or part.hides(item.name)}
    values = {item.name for item in items if part.kind(item.name) == "values"}
    if not hidden and not part.hidden:
        return 0.0
    return round(part.points * (1.0 if part.all_or_nothing or values <= hidden else part.hidden_share), 2)


def mark(part: Part, submission: Submission, result: Result) -> tuple[Mark, Result]:
    """The mark of an answer, and its result with the checks that count in this assignment."""
    answer = written.answer(submission, part.exercise)
    rules = {AS_THE_TASK_SAYS: part.conventions, SHAPE_COMMENTS: part.comments}
    free = [check for check in result.checks if rules.get(check.name) == "free"]
    counted = [check for check in result.checks if check not in free]
    checks = tuple(replace(check, hidden=check.hidden or part.hides(check.name)) for check in counted)
    lines = [Line(one.name, part.kind(one.name), one.passed, one.message, one.hidden) for one in checks]
    notes = (*result.conventions, *(check.message for check in free if not check.passed))
    mistakes = {mistake.name: mistake.hints for named in result.mistakes for mistake in named.mistakes}
    say = {name: f"{cause} {fix}" for name, (_, _, cause, fix) in mistakes.items()}
    if failed := next((line for line in lines if not line.passed), None):
        say = say or {f"no known mistake ({failed.name})": result.nearest or f"One of them: {failed.message}"}
    seen, unseen = ([line for line in lines if line.hidden == hidden] for hidden in (False, True))
    if all(line.passed for line in seen):  # a name for it would tell what is hidden
        result = replace(result, mistakes=(), nearest="")
    said = sentences(result)
    of_hidden = hidden_out_of(part)
    hidden_points = round(of_hidden * share(part, unseen, lines), 2)
    points = hidden_points + round((part.points - of_hidden) * share(part, seen, seen), 2)
    status = PASSED if failed is None else PARTLY if points else WRONG
    if written.untouched(answer, part.exercise):
        status, points, hidden_points, said, say = UNTOUCHED, 0.0, 0.0, [], {}
    elif refused := written.refused(submission, answer, part.allow, part.forbid):
        names = f"this exercise does not allow {', '.join(refused)}."
        status, points, hidden_points, said, say = REFUSED, 0.0, 0.0, [names], {"not allowed": names}
    elif status == PASSED and (n_line := written.n_line(answer)) <= part.few_lines:
        points, hidden_points = points + part.bonus, hidden_points + (part.bonus if of_hidden else 0.0)
        said += [] if of_hidden else [f"{n_line} lines of code: a bonus of {part.bonus:g} points."]
    earned = (status, round(points, 2), hidden_points, of_hidden)
    marked = Mark(part.exercise.id, part.points, *earned, result.file, lines, say, said)
    return marked, replace(result, checks=checks, conventions=notes)


def grade(
    assignment: Assignment, checker: Checker, student: HandIn, folder: Path, submitted: datetime | None
) -> tuple[Grade, list[Result]]:
    """The grade of what a student's files are, copied into a folder, and the results it is made of.

    Of several answers to an exercise the one with the most points counts, and the others are named.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in CODE and path.is_file()]
    by_name = {visible(str(path)): path for path in paths}  # as results name them
    files = [str(path) for path in paths]
    problems = [*student.problems, *([] if files else ["no .py or .ipynb file was handed in."])]
    answers: dict[str, list[tuple[Mark, Result]]] = {id: [] for id in assignment.parts}
    for result in checker.check_files(files, maybe=files):
        path = by_name[result.file]
        shown = replace(result, file=path.relative_to(folder).as_posix())
        if any("a mistake of ours" in check.message for check in result.checks):
            problems.append(f"{shown.file}: {result.checks[0].message}")
        if result.exercise is None:
            problems += [check.message.replace(f"{folder}/", "") for check in result.checks]
        else:
            answers[result.exercise].append(mark(assignment.parts[result.exercise], read(path), shown))
    marks, results = [], []
    for id, part in assignment.parts.items():
        best_first = sorted(answers[id], key=lambda pair: (-pair[0].points, pair[0].status == UNTOUCHED))
        best = best_first[0][0] if best_first else Mark(id, part.points, hidden_out_of=hidden_out_of(part))
        if others := ", ".join(other.file for other, _ in best_first[1:]):
            twice = f"Handed in {len(best_first)} times: {best.file} counts, and not {others}."
            best = replace(best, said=[*best.said, twice])
        marks.append(best)
        results += [result for _, result in best_first[:1]]
    late, deductions = 0, dict[str, float]()
    if assignment.deadline is not None and submitted is not None:  # days begun since then, by our clock
        late = max(0, math.ceil((submitted.astimezone() - assignment.deadline.astimezone()) / DAY))
    if late and assignment.late_per_day:
        lost = min(1.0, late * assignment.late_per_day) * sum(one.points for one in marks)
        deductions[f"{late} days late"] = round(lost, 2)
    if assignment.style and results:
        counted = [folder / one.file for one in marks if one.file]
        findings = written.style_findings(list(dict.fromkeys(counted)), assignment.line_length)
        if findings is None:
            problems.append("style was not checked: ruff is not installed here.")
        elif findings:
            lost = min(assignment.style_most, assignment.style * len(findings))
            deductions[f"PEP 8, {len(findings)} findings, as {findings[0]}"] = round(lost, 2)
    when = submitted.isoformat(" ", "seconds") if submitted else ""
    return Grade(student.student, marks, deductions, problems, when, late), results
