"""Results for build servers: JUnit XML."""

import re

from regard.checking.check import Result
from regard.checking.marks import sentences
from regard.checking.reports.terminal import seed_of
from regard.drawing.html import tag

# What XML 1.0 cannot hold, even escaped.
UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(results: list[Result]) -> str:
    """One suite for each exercise of each file, one case for each check."""
    suites = []
    for result in results:
        inside, named = [], result.exercise or result.file
        for check in result.checks:
            text = " ".join([check.told, *sentences(result)]).strip()
            failure = [] if check.passed else [tag("failure", text, message=check.told, type=check.kind)]
            inside.append(tag("testcase", *failure, classname=named, name_=check.name))
        if lines := [line for line in (*result.conventions, *result.notes, seed_of(result)) if line]:
            inside.append(tag("system-out", "\n".join(lines)))
        name = f"{result.exercise or 'no exercise'} in {result.file}"
        failed = sum(not check.passed for check in result.checks)
        counts = {"tests": len(result.checks), "failures": failed, "errors": 0}
        suites.append(tag("testsuite", *inside, name_=name, **counts, time=f"{result.seconds:.3f}"))
    text = UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", tag("testsuites", *suites).text)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'
