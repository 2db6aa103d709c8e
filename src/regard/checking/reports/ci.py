"""Results for machines: JUnit XML, and the results.json of Gradescope."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

from regard.checking.check import Result

# What XML 1.0 cannot hold, even escaped.
UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _named(result: Result) -> str:
    """The mistakes in words, or what comes nearest."""
    return " ".join(each.sentence for each in result.mistakes) or result.nearest


def junit(results: list[Result]) -> str:
    """One suite for each exercise of each file, one case for each check."""
    root = ElementTree.Element("testsuites")
    for result in results:
        failed = sum(not check.passed for check in result.checks)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_clean(f"{result.exercise or 'no exercise'} in {result.file}"),
            tests=str(len(result.checks)),
            failures=str(failed),
            errors="0",
            time=f"{result.seconds:.3f}",
        )
        for check in result.checks:
            case = ElementTree.SubElement(
                suite, "testcase", classname=_clean(result.exercise or result.file), name=_clean(check.name)
            )
            if not check.passed:
                told = _clean(check.told)
                failure = ElementTree.SubElement(case, "failure", message=told, type=check.kind)
                failure.text = _clean(" ".join([told, _named(result)]).strip())
        lines = [*result.conventions, *result.notes]
        if lines:
            ElementTree.SubElement(suite, "system-out").text = _clean("\n".join(lines))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def gradescope(results: list[Result], points: float = 10.0) -> str:
    """Partial points for each check; a hidden one tells its name and score alone."""
    tests = []
    for result in results:
        most = points / max(1, len(result.checks))
        named = _named(result)
        for check in result.checks:
            output = "" if check.passed else check.told
            if named and not check.passed and not check.hidden:
                output = f"{output} {named}".strip()
            tests.append(
                {
                    "name": f"{result.exercise or result.file}: {check.name}",
                    "score": round(most if check.passed else 0.0, 4),
                    "max_score": round(most, 4),
                    "status": "passed" if check.passed else "failed",
                    "output": output,
                    "visibility": "visible",
                }
            )
    lines = [line for result in results for line in (*result.conventions, *result.notes)]
    score = round(sum(points * result.share for result in results), 4)
    page = {
        "score": score,
        "output": "\n".join(dict.fromkeys(lines)),
        "visibility": "visible",
        "tests": tests,
    }
    return json.dumps(page, indent=1) + "\n"


def _clean(text: str) -> str:
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
