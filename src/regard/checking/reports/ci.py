"""Results for build servers: JUnit XML."""

from __future__ import annotations

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


def _clean(text: str) -> str:
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
