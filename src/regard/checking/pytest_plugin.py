"""`pytest --regard assignment.toml`: every check of the answers in the working folder is a test.

pytest imports this file wherever regard is installed, so that it imports nothing of ours until it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from regard.checking.marks import Line


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    text = "An assignment of regard: each check of the answers in this folder is a test."
    parser.getgroup("regard").addoption("--regard", metavar="FILE", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Collect the assignment, beside what else was asked for."""
    if path := config.getoption("--regard"):
        config.args.append(str(path))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The assignment as a file of tests."""
    path = parent.config.getoption("--regard")
    same = path and file_path.resolve() == Path(str(path)).resolve()
    return AssignmentFile.from_parent(parent, path=file_path) if same else None


class AssignmentFile(pytest.File):
    """An assignment, whose answers are checked when it is collected."""

    def collect(self) -> Iterator[pytest.Item]:
        from regard.checking.assignment import load
        from regard.checking.grading import grade_one
        from regard.checking.runner import Runner

        with Runner(1) as runner:
            grade = grade_one(load(self.path), runner, self.config.invocation_params.dir)
        for mark in grade.marks:
            for line in mark.lines or [None]:
                name = f"{mark.exercise}: {line.name if line else 'answered'}"
                said = mark.said if line else mark.reasons
                yield CheckItem.from_parent(self, name=name, line=line, said=said)


class CheckItem(pytest.Item):
    """One check; without a line, that of an exercise that was not answered."""

    def __init__(self, *, line: Line | None, said: tuple[str, ...], **options: Any) -> None:
        super().__init__(**options)
        self.line, self.said = line, said

    def runtest(self) -> None:
        """Fail as the check did."""
        if self.line is None or not self.line.passed:
            pytest.fail("\n".join([*([self.line.told] if self.line else []), *self.said]), pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Which check this is."""
        return self.path, None, self.name
