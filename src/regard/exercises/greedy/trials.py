"""Reference, calls and probes of `greedy`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.checking.trials import Case, Trial, formula, worked
from regard.exercises.shared.search import RETURNED, Table, as_tokens, search_trial


def reference(
    case: Case,
    *,
    given: str = "tokens",
    takes: str = "logits.argmax()",
    refuses: str = "False",
    stops: str = "token == last",
    count: str = "max_new",
    **choices: str,
) -> Any:
    """The tokens, with start and end token as the conventions say."""
    code, first, last, max_new = case.args
    step, tokens, ends = code.value(), [first], {"first": first, "last": last}
    for _ in range(formula(count, max_new=max_new)):
        logits = step(formula(given, tokens=tokens))
        token = int(formula(takes, logits=logits, tokens=tokens, **ends))
        if formula(refuses, token=token, tokens=tokens):
            break
        tokens = [*tokens, token]
        if formula(stops, token=token, **ends):
            break
    return worked({**RETURNED, "returned": "start"}, choices, tokens=tokens, last=last)


def view(case: Case, result: Any) -> list[int]:
    if isinstance(result, Tensor):
        raise TypeError("a list of tokens is wanted, not a tensor")
    return as_tokens(result)


def trial(name: str, wanted: str, urge: float = 0.0, start: int = 1, end: int = 2, **sizes: int) -> Trial:
    """A search whose path, followed two steps beyond max_new, is as wanted, whether or not it ends before."""

    def fits(table: Table, start: int, end: int, max_new: int) -> bool:
        # No row's best two may be so close that float16 would swap them.
        if any(sorted(row)[-1] - sorted(row)[-2] <= 0.05 for row in table.rows):
            return False
        tokens = [start]
        for _ in range(max_new + 2):
            logits = table.log_probabilities(tokens)
            tokens.append(logits.index(max(logits)))
        return bool(formula(wanted, tokens=tokens, end=end))

    return search_trial(name, fits, {"vocab": 7, "max_new": 6, **sizes}, start=start, end=end, urge=urge)


# After some tokens and with room left, and goes on differently if it is not stopped.
EARLY = "end in tokens[3:-3] and end not in tokens[:3] and len(set(tokens)) > 2"
NEVER = "end not in tokens and len(set(tokens[1:])) > 2"

TRIALS = (
    trial("the end is reached", EARLY, 0.5),
    trial("the end is never reached", NEVER, -1.0),
    trial("the end comes at once", "tokens[1] == end and end not in tokens[2:4]", 0.5, vocab=5, max_new=4),
    trial("the end comes last", "tokens[-3] == end and end not in tokens[:-3]", max_new=5),
    trial("the end comes too late", "tokens[-2] == end and end not in tokens[:-2]", max_new=4),
    trial("the start comes again", "tokens[0] in tokens[2:-3] and end not in tokens", -2.0),
    trial("one token", NEVER, -1.0, vocab=11, max_new=1),
    trial("the end is token 0", EARLY, 0.5, start=3, end=0),
    trial("the start is token 0", EARLY, 0.5, start=0, end=6),
)
