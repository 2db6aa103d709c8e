"""Exercise: greedy search over a given step function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from regard.decoding.loop import generate
from regard.exercises.search_parts import END, START, Stepped, Table, as_tokens, chosen, whole
from regard.exercises.spec import Case, Draw, Exercise, Mistake, Right, Trial

TASK = """
Greedy search: always take the likeliest next token.

- `greedy_search(step, start, end, max_new)`. `step(tokens)` takes the list of all tokens so far, beginning
  with
  `start`, and returns the logits of the next one, a tensor (vocab,).
- Begin with `[start]`. Append the token with the largest logit, again and again, until it is `end` or
  `max_new`
  tokens have been appended (`end` counts as one of them).
- Returns the list of all tokens: `start` first, and `end` last if it was reached. No two logits tie.
"""

STARTER = '''import torch


def greedy_search(step, start, end, max_new):
    """step(tokens) gives the logits (vocab,) of the next token. Returns the list of tokens.

    It begins with start, and ends with end if that was reached.
    """
    raise NotImplementedError
'''

STEPS = """import torch

def greedy_search(step, start, end, max_new):
    tokens = [start]
    for _ in range(max_new):
        logits = step(tokens)
        token = int(torch.argmax(logits))
        tokens.append(token)
        if token == end:
            break
    return tokens
"""

WHILE = """import torch

def greedy_search(step, start, end, max_new):
    out = []
    while len(out) < max_new and (not out or out[-1] != end):
        out = out + [step([start] + out).softmax(-1).topk(1).indices.item()]
    return [start] + out
"""

RECURSIVE = """import torch

def greedy_search(step, start, end, max_new):
    def rest(tokens, left):
        if left == 0:
            return tokens
        values = step(tokens).tolist()
        best = max(range(len(values)), key=lambda i: values[i])
        grown = [*tokens, best]
        return grown if best == end else rest(grown, left - 1)
    return rest([start], max_new)
"""

TENSOR = """import torch

def greedy_search(step, start, end, max_new):
    tokens = torch.tensor([start])
    for i in range(max_new):
        probs = torch.nn.functional.log_softmax(step(tokens.tolist()), dim=-1)
        tokens = torch.cat([tokens, probs.argmax(dim=-1, keepdim=True)])
        if tokens[-1].item() == end:
            return tokens
    return tokens
"""

WITHOUT = """import torch

def greedy_search(step, start, end, max_new):
    sequence, answer = [start], []
    for _ in range(max_new):
        best = step(sequence).max(dim=0).indices.item()
        if best == end:
            return answer
        sequence.append(best)
        answer.append(best)
    return answer
"""


def reference(case: Case, *, start: str = "with", end: str = "with") -> list[int]:
    """Our own decoder, with the step function as its model."""
    step, first, last, max_new = case.args
    found = generate(Stepped(step.value()), torch.tensor([[first]]), max_new=max_new, stop=[last])
    return whole(case, found.tokens[0], last, max_new, start, end)


def view(case: Case, result: Any) -> list[int]:
    return as_tokens(result)


def path(table: Table, start: int, n_step: int) -> list[int]:
    """The likeliest tokens, whether or not one of them is the end."""
    tokens = [start]
    for _ in range(n_step):
        logits = table.log_probabilities(tokens)
        tokens.append(logits.index(max(logits)))
    return tokens


def apart(table: Table) -> bool:
    """Whether no row's best two are so close that float16 would swap them."""
    return all(sorted(row)[-1] - sorted(row)[-2] > 0.05 for row in table.rows)


def trial(
    name: str,
    wanted: Callable[[list[int], int], bool],
    *,
    start: int = 1,
    end: int = 2,
    urge: float = 0.0,
    **sizes: int,
) -> Trial:
    """A search whose path, followed two steps beyond max_new, is as wanted."""
    meant = {"vocab": 7, "max_new": 6, **sizes}

    def make(draw: Draw) -> Case:
        first, last, max_new = start % draw["vocab"], end % draw["vocab"], draw["max_new"]

        def fits(table: Table) -> bool:
            return apart(table) and wanted(path(table, first, max_new + 2), last)

        return Case((chosen(draw, meant, last, urge, fits).code(), first, last, max_new))

    return Trial(name, make, meant, grad=False)


def ends_early(tokens: list[int], end: int) -> bool:
    """It ends after some tokens and with room left, and goes on differently if it is not stopped."""
    return end in tokens[3:-3] and end not in tokens[:3] and len(set(tokens)) > 2


def never_ends(tokens: list[int], end: int) -> bool:
    return end not in tokens and len(set(tokens[1:])) > 2


def ends_at_once(tokens: list[int], end: int) -> bool:
    return tokens[1] == end and end not in tokens[2:4]


def ends_last(tokens: list[int], end: int) -> bool:
    """The last token that may be appended is the end."""
    return tokens[-3] == end and end not in tokens[:-3]


def ends_just_too_late(tokens: list[int], end: int) -> bool:
    """One token more would be the end."""
    return tokens[-2] == end and end not in tokens[:-2]


def start_comes_again(tokens: list[int], end: int) -> bool:
    """The start token is met again on the way."""
    return tokens[0] in tokens[2:-3] and end not in tokens


STOP = "if token == end:\n            break"
APPEND = "tokens.append(token)"

EXERCISE = Exercise(
    id="greedy",
    title="Greedy search",
    names=("greedy_search",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    view=view,
    right=(
        Right("a loop that breaks", STEPS),
        Right("a loop with a condition", WHILE),
        Right("recursion", RECURSIVE),
        Right("a tensor of tokens", TENSOR),
        Right("neither start nor end", WITHOUT),
    ),
    conventions=(START, END),
    trials=(
        trial("the end is reached", ends_early, urge=0.5),
        trial("the end is never reached", never_ends, urge=-1.0),
        trial("the end comes at once", ends_at_once, urge=0.5, vocab=5, max_new=4),
        trial("the end comes last", ends_last, max_new=5),
        trial("the end comes too late", ends_just_too_late, max_new=4),
        trial("the start comes again", start_comes_again, urge=-2.0),
        trial("one token", never_ends, urge=-1.0, vocab=11, max_new=1),
        trial("the end is token 0", ends_early, start=3, end=0, urge=0.5),
        trial("the start is token 0", ends_early, start=0, end=6, urge=0.5),
    ),
    hints=(
        "The list differs from the one you get by always taking the likeliest token.",
        "Follow one search by hand: print the tokens given to step and the token you take.",
        "step needs the whole list so far; the search ends at `end` or after max_new tokens, "
        "whichever is first.",
        "tokens = [start]; up to max_new times append argmax(step(tokens)), and stop when that is end.",
    ),
    mistakes=(
        Mistake(
            "the end token does not stop it",
            (
                "The list goes on after the end token.",
                "Look at how the loop ends.",
                "Nothing compares the new token with `end`.",
                "Break when the new token is `end`.",
            ),
            edits=((STOP, "pass"),),
        ),
        Mistake(
            "the start token stops it",
            (
                "The list ends where the start token comes again.",
                "Look at the comparison that ends the loop.",
                "The new token is compared with `start`.",
                "Compare it with `end`.",
            ),
            edits=((STOP, "if token == start:\n            break"),),
        ),
        Mistake(
            "one token too many",
            (
                "Where the end is not reached, the list is one too long.",
                "Look at the bounds of the loop.",
                "It runs max_new + 1 times.",
                "Append at most max_new tokens.",
            ),
            edits=(("range(max_new)", "range(max_new + 1)"),),
        ),
        Mistake(
            "one token too few",
            (
                "Where the end is not reached, the list is one too short.",
                "Look at the bounds of the loop.",
                "The start token is counted; max_new counts appended tokens only.",
                "Append up to max_new tokens after the start.",
            ),
            edits=(("range(max_new)", "range(max_new - 1)"),),
        ),
        Mistake(
            "the least likely token",
            (
                "The token with the smallest logit is taken.",
                "Look at how the token is chosen.",
                "argmin, or the first of a sort in rising order.",
                "Take the argmax.",
            ),
            edits=(("torch.argmax(logits)", "torch.argmin(logits)"),),
        ),
        Mistake(
            "the second likeliest token",
            (
                "The token with the second largest logit is taken.",
                "Look at how the token is chosen.",
                "Index 1 of a sort in falling order is the second.",
                "Take the first.",
            ),
            edits=(("int(torch.argmax(logits))", "int(torch.topk(logits, 2).indices[1])"),),
        ),
        Mistake(
            "step is given the last token only",
            (
                "The first new token is right, later ones are not.",
                "Look at what step is called with.",
                "The likeliest next token depends on all tokens so far.",
                "Call step with the whole list.",
            ),
            edits=(("step(tokens)", "step(tokens[-1:])"),),
        ),
        Mistake(
            "step is given the start token only",
            (
                "The same token comes again and again.",
                "Look at what step is called with.",
                "The list given to it never grows.",
                "Call step with the whole list so far.",
            ),
            edits=(("step(tokens)", "step([start])"),),
        ),
        Mistake(
            "step is not given the start token",
            (
                "The second new token is wrong.",
                "Look at what step is called with.",
                "After the first step the start token is left out.",
                "Call step with the whole list, start included.",
            ),
            edits=(("step(tokens)", "step(tokens[1:] or tokens)"),),
        ),
        Mistake(
            "the list is given backwards",
            (
                "The first new token is right, later ones are not.",
                "Look at what step is called with.",
                "The newest token comes first in it.",
                "Append at the end.",
            ),
            edits=(("step(tokens)", "step(tokens[::-1])"),),
        ),
        Mistake(
            "the largest logit instead of its index",
            (
                "The tokens are rounded logits.",
                "Look at how the token is chosen.",
                "max gives the value, argmax where it stands.",
                "Take argmax.",
            ),
            edits=(("int(torch.argmax(logits))", "abs(int(torch.max(logits))) % len(logits)"),),
        ),
        Mistake(
            "a token drawn at random",
            (
                "The result changes from call to call.",
                "Look at how the token is chosen.",
                "Sampling by probability is another way to decode.",
                "Take the argmax.",
            ),
            edits=(("int(torch.argmax(logits))", "int(torch.multinomial(torch.softmax(logits, -1), 1))"),),
        ),
        Mistake(
            "the end token is forbidden",
            (
                "The end is never taken, however likely it is.",
                "Look at how the token is chosen.",
                "The end token's logit is left out of the choice.",
                "Choose among all tokens, and stop when it is `end`.",
            ),
            edits=(
                (
                    "logits = step(tokens)",
                    "logits = step(tokens)\n        logits[end] = -100.0",
                ),
            ),
        ),
        Mistake(
            "the list is kept between calls",
            (
                "Right the first time, wrong the second.",
                "Look for a list that is made only once: a default argument or a global.",
                "It still holds the tokens of the call before.",
                "Make a new list in every call.",
            ),
            source='''import torch

def greedy_search(step, start, end, max_new, tokens=[]):
    """A list as a default argument is made once, when the function is."""
    tokens.append(start)
    for _ in range(max_new):
        token = int(torch.argmax(step(tokens)))
        tokens.append(token)
        if token == end:
            break
    return list(tokens)
''',
        ),
        Mistake(
            "only the last token is returned",
            (
                "The result is one number.",
                "Look at the return.",
                "The tokens before it are dropped.",
                "Return the whole list.",
            ),
            edits=(("return tokens", "return tokens[-1:]"),),
        ),
    ),
)
