"""`pytest --regard assignment.toml`: every check of the answers in the working folder is a test.

pytest imports this file wherever regard is installed, so that it imports nothing of ours until it is asked.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


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
        """A test for each check, or one for an exercise that was not answered."""
        from regard.checking.assignment import load
        from regard.checking.grading import grade_one
        from regard.checking.runner import Runner

        with Runner(1) as runner:
            grade = grade_one(load(self.path), runner, self.config.invocation_params.dir)
        for mark in grade.marks:
            checks = [(line.name, line.passed, [line.told, *mark.said]) for line in mark.lines]
            for name, passed, reasons in checks or [("answered", False, mark.reasons)]:
                failure = None if passed else "\n".join(reasons)
                yield CheckItem.from_parent(self, name=f"{mark.exercise}: {name}", failure=failure)


class CheckItem(pytest.Item):
    """One check; `failure` says what is wrong where it did not pass."""

    def __init__(self, *, failure: str | None, **options: Any) -> None:
        super().__init__(**options)
        self.failure = failure

    def runtest(self) -> None:
        """Fail as the check did."""
        if self.failure is not None:
            pytest.fail(self.failure, pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Which check this is."""
        return self.path, None, self.name
