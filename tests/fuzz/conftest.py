"""Regard as users have it, without the shape-checking import hook; and how the attacks ended, by kind."""

import sys

import pytest

hooked = [finder for finder in sys.meta_path if type(finder).__module__.startswith("jaxtyping")]
if hooked:
    raise pytest.UsageError(
        "tests/fuzz needs the shape checks off: run REGARD_SHAPE_CHECKS=0 pytest tests/fuzz"
    )


def pytest_terminal_summary(terminalreporter):
    """The counts by outcome."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    attacks = [value for report in reports for name, value in report.user_properties if name == "fuzz"]
    if attacks:
        terminalreporter.section("attacks, by outcome")
    for kind, outcomes, seconds in sorted(attacks):
        said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        terminalreporter.line(f"{kind:<16} {sum(outcomes.values()):>6} cases, {seconds:>6} s: {said}")
