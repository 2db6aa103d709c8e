"""Attention in the ways people write it: equal to its own, or refused or marked; never silently wrong."""

import inspect

import pytest
from tracing.idioms import dot_products, others
from tracing.idioms.harness import Idiom, judge

IDIOMS = {
    name: kind
    for module in (dot_products, others)
    for name, kind in vars(module).items()
    if inspect.isclass(kind) and issubclass(kind, Idiom) and kind is not Idiom
}


@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_is_traced_and_changed_exactly_or_refused_in_words(name):
    """Its weights and its changes against those of its own code."""
    verdict = judge(IDIOMS[name])
    assert not verdict.wrong, (verdict.said, verdict.why, verdict.changes)


def main():
    """Print what came of every idiom."""
    for name, kind in IDIOMS.items():
        try:
            verdict = judge(kind)
        except Exception as error:
            print(f"{name:20} CRASHED  {type(error).__name__}: {error}")
            continue
        changes = {change: said.split(":")[0] for change, said in verdict.changes.items()}
        print(f"{name:20} {verdict.said:8} {changes or verdict.why[:300]}")


if __name__ == "__main__":
    main()
