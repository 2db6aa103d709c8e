"""Grades a class: a student's grade and page are written when they are done, and kept for the next time.

marks/students/ada.json   the grade; made again when her files or the assignment change
marks/feedback/ada.html   her page
marks/marks.csv, marks/marks.json, marks/summary.html   all of them, for the teacher
"""

import hashlib
import json
import re
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from regard.checking.assignment import Assignment
from regard.checking.check import Checker
from regard.checking.handin import HandIn
from regard.checking.marks import Grade, grade, grade_of
from regard.checking.reports import marks as reports
from regard.checking.runner import Runner
from regard.errors import LoadError


def checker_of(assignment: Assignment, runner: Runner, seed: int | None = None) -> Checker:
    """What checks the answers; which comments and conventions count is decided when they are marked."""
    for part in assignment.parts.values():
        _ = part.kinds  # a check that there is not is told before any work
    portable = [id for id, part in assignment.parts.items() if part.portability == "required"]
    commented = [id for id, part in assignment.parts.items() if part.comments == "required"]
    counted = {"portable": portable, "commented": commented}
    return Checker(assignment.exercises, runner, seed, comments_count=True, strict=True, **counted)


def grade_one(assignment: Assignment, runner: Runner, path: Path, submitted: datetime | None = None) -> Grade:
    """The grade of one student's file, zip or folder."""
    student = HandIn(path.resolve().name, [path.resolve()])
    with tempfile.TemporaryDirectory(prefix="handed-in-") as folder:
        student.copy_to(Path(folder))
        return grade(assignment, checker_of(assignment, runner), student, Path(folder), submitted)[0]


def grade_class(
    assignment: Assignment, runner: Runner, students: Sequence[HandIn], out: Path
) -> Iterator[tuple[Grade, bool]]:
    """Each student's grade when it is done, and whether it was made now; then the files about the class.

    All answers are checked with the same inputs. Their seed lies in `out`, for the next time.
    """
    for name in ("students", "feedback"):
        (out / name).mkdir(parents=True, exist_ok=True)
    seed = out / "seed"
    if not seed.exists():
        seed.write_text(str(secrets.randbelow(2**31)), encoding="utf-8")
    if not (number := seed.read_text(encoding="utf-8").strip()).isdecimal():
        raise LoadError(f"{seed} must hold the seed of this grading, a whole number. Got {number[:80]!r}.")
    checker = checker_of(assignment, runner, int(number))
    rules = assignment.digest()

    def graded(student: HandIn) -> tuple[Grade, bool]:
        name = file_name(student.student)
        path, page = out / "students" / f"{name}.json", out / "feedback" / f"{name}.html"
        with tempfile.TemporaryDirectory(prefix="handed-in-") as folder:
            digest = f"{rules[:32]}-{student.copy_to(Path(folder))[:32]}"
            before = kept(path)
            if before is not None and before.digest == digest and page.exists():
                return before, False
            made, results = grade(assignment, checker, student, Path(folder), student.submitted)
        made = replace(made, digest=digest)
        _write(page, reports.feedback(assignment.title, made, results))
        _write(path, json.dumps(made.as_json(), indent=1))
        return made, True

    grades: dict[str, Grade] = {}
    pool = ThreadPoolExecutor(runner.n_worker)
    try:
        for future in as_completed([pool.submit(graded, student) for student in students]):
            made, _ = future.result()
            grades[made.student] = made
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        ordered = [grades[student.student] for student in students if student.student in grades]
        if ordered:
            write_reports(assignment.title, ordered, out)


def file_name(student: str) -> str:
    """The name of a student's files: what no file can be called is replaced, and told apart.

    >>> file_name("Ada Lovelace")
    'Ada Lovelace'
    """
    clean = re.sub(r"[^\w .()-]", "_", student)
    return clean if clean == student else f"{clean}-{hashlib.sha256(repr(student).encode()).hexdigest()[:6]}"


def kept(path: Path) -> Grade | None:
    """The grade in a file, or None where there is none that can be read."""
    try:
        return grade_of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_reports(title: str, grades: Sequence[Grade], out: Path) -> None:
    """Write what is about the whole class."""
    pages = {one.student: f"feedback/{quote(file_name(one.student))}.html" for one in grades}
    _write(out / "marks.csv", reports.csv_of(grades))
    _write(out / "marks.json", reports.json_of(title, grades))
    _write(out / "summary.html", reports.summary(title, grades, pages))


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f"{path.name}.part")
    partial.write_text(text, encoding="utf-8", errors="replace")
    partial.replace(path)
