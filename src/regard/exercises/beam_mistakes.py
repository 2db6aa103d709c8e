"""The first right variant of `beam`, and the mistakes that edit it."""

from __future__ import annotations

from regard.exercises.spec import Mistake

STEPS = """import torch

def beam_search(step, start, end, beam_size, max_new):
    live = [([start], 0.0)]
    done = []
    for _ in range(max_new):
        grown = []
        for tokens, score in live:
            log_p = torch.log_softmax(step(tokens), dim=-1)
            for token in range(len(log_p)):
                grown.append((tokens + [token], score + float(log_p[token])))
        grown.sort(key=lambda pair: pair[1], reverse=True)
        kept = grown[:beam_size]
        live = []
        for tokens, score in kept:
            if tokens[-1] == end:
                done.append((tokens, score))
            else:
                live.append((tokens, score))
        if not live:
            break
    best = max(done + live, key=lambda pair: pair[1])
    return best
"""

LOG = "log_p = torch.log_softmax(step(tokens), dim=-1)"
SUM = "score + float(log_p[token])"
SORT = "grown.sort(key=lambda pair: pair[1], reverse=True)"
KEPT = "kept = grown[:beam_size]"
BEST = "best = max(done + live, key=lambda pair: pair[1])"
SCORE_PLACE = "Look at how the score grows."

MISTAKES = (
    Mistake(
        "logits are added instead of log-probabilities",
        (
            "The score may be positive, which no log-probability is.",
            SCORE_PLACE,
            "Logits of different steps have no common measure until they are normalised.",
            "Take log_softmax of what step returns.",
        ),
        edits=((LOG, "log_p = step(tokens)"),),
    ),
    Mistake(
        "probabilities are added",
        (
            "The score grows with every token.",
            SCORE_PLACE,
            "The probability of a sequence is a product; its logarithm is a sum of logarithms.",
            "Add log-probabilities.",
        ),
        edits=((LOG, "log_p = torch.softmax(step(tokens), dim=-1)"),),
    ),
    Mistake(
        "only the last token counts",
        (
            "The score is that of one token.",
            SCORE_PLACE,
            "The score so far is left out of the sum.",
            "Add the new log-probability to the score so far.",
        ),
        edits=((SUM, "float(log_p[token])"),),
    ),
    Mistake(
        "greedy search",
        (
            "A beam of any size gives what a beam of one gives.",
            "Look at how many sequences are kept.",
            "Only the best is kept.",
            "Keep beam_size of them.",
        ),
        edits=((KEPT, "kept = grown[:1]"),),
    ),
    Mistake(
        "one beam too many",
        (
            "A beam of one is not greedy search.",
            "Look at how many sequences are kept.",
            "beam_size + 1 are kept.",
            "Keep beam_size of them.",
        ),
        edits=((KEPT, "kept = grown[:beam_size + 1]"),),
    ),
    Mistake(
        "nothing is cut",
        (
            "Every sequence is followed, so the result is better than a beam can find.",
            "Look at what is kept after a step.",
            "The beam is never cut to beam_size.",
            "Keep the beam_size best of all extensions.",
        ),
        edits=((KEPT, "kept = grown[:70]"),),
    ),
    Mistake(
        "the best extensions of each sequence are kept, not of all",
        (
            "Every beginning survives, however unlikely it has become.",
            "Look at what competes for the beam.",
            "Each sequence is extended by its own best token only; two good ones may come from the "
            "same beginning.",
            "Sort all extensions of all sequences together.",
        ),
        edits=(
            (
                KEPT,
                "first = {}\n"
                "        for pair in grown:\n"
                "            key = tuple(pair[0][:-1]) if len(live) > 1 else pair[0][-1]\n"
                "            first.setdefault(key, pair)\n"
                "        kept = list(first.values())[:beam_size]",
            ),
        ),
    ),
    Mistake(
        "the worst are kept",
        (
            "The least likely sequence is found.",
            "Look at the sort.",
            "It rises, and the first ones are kept.",
            "Sort so that the largest score comes first.",
        ),
        edits=((SORT, "grown.sort(key=lambda pair: pair[1])"),),
    ),
    Mistake(
        "the end token does not finish a sequence",
        (
            "Sequences go on after the end token.",
            "Look at the comparison with end.",
            "A sequence that took the end token is extended further.",
            "Set it aside as finished.",
        ),
        edits=(("if tokens[-1] == end:", "if tokens[-1] is None:"),),
    ),
    Mistake(
        "the search stops at the first finished sequence",
        (
            "A sequence that ends early wins though a better one ends later.",
            "Look at when the loop ends.",
            "One finished sequence is not the best one yet: others in the beam may still beat it.",
            "Go on until nothing is left to extend.",
        ),
        edits=(("if not live:", "if done:"), (BEST, "best = max(done or live, key=lambda pair: pair[1])")),
    ),
    Mistake(
        "finished sequences are forgotten",
        (
            "The result never ends with the end token.",
            "Look at what the best is chosen from.",
            "Only unfinished sequences are left in the choice.",
            "Choose among finished and unfinished ones.",
        ),
        edits=((BEST, "best = max(live or done, key=lambda pair: pair[1])"),),
    ),
    Mistake(
        "the longest sequence wins",
        (
            "The result is longer than the best one.",
            "Look at how the best is chosen.",
            "The score is not looked at.",
            "Take the largest score.",
        ),
        edits=((BEST, "best = max(done + live, key=lambda pair: (len(pair[0]), pair[1]))"),),
    ),
    Mistake(
        "the best score for each token wins",
        (
            "Longer sequences win though their score is lower.",
            "Look at how the best is chosen.",
            "The score is divided by the length; the task compares plain sums.",
            "Take the largest score.",
        ),
        edits=((BEST, "best = max(done + live, key=lambda pair: pair[1] / (len(pair[0]) - 1))"),),
    ),
    Mistake(
        "the returned score is a mean",
        (
            "The sequence is right, its score is divided by the length.",
            "Look at the return.",
            "The task asks for the sum.",
            "Return the score as it is.",
        ),
        edits=(("return best", "return best[0], best[1] / (len(best[0]) - 1)"),),
    ),
    Mistake(
        "the returned score is a probability",
        (
            "The sequence is right, its score lies between 0 and 1.",
            "Look at the return.",
            "exp turns the log-probability into a probability.",
            "Return the sum of log-probabilities.",
        ),
        edits=(("return best", "return best[0], float(torch.exp(torch.tensor(best[1])))"),),
    ),
    Mistake(
        "the returned score is a loss",
        (
            "The sequence is right, its score has the wrong sign.",
            "Look at the return.",
            "The negative log-probability is a cost, not a score.",
            "Return the sum of log-probabilities, which is negative.",
        ),
        edits=(("return best", "return best[0], -best[1]"),),
    ),
    Mistake(
        "one token too many",
        (
            "Where the end is not reached, the sequence is one too long.",
            "Look at the bounds of the loop.",
            "It runs max_new + 1 times.",
            "Append at most max_new tokens.",
        ),
        edits=(("range(max_new)", "range(max_new + 1)"),),
    ),
    Mistake(
        "one token too few",
        (
            "Where the end is not reached, the sequence is one too short.",
            "Look at the bounds of the loop.",
            "The start token is counted; max_new counts appended tokens only.",
            "Append up to max_new tokens after the start.",
        ),
        edits=(("range(max_new)", "range(max_new - 1)"),),
    ),
    Mistake(
        "step is given the last token only",
        (
            "The first new token is right, later ones are not.",
            "Look at what step is called with.",
            "The next token depends on all tokens so far.",
            "Call step with the whole list.",
        ),
        edits=((LOG, "log_p = torch.log_softmax(step(tokens[-1:]), dim=-1)"),),
    ),
    Mistake(
        "the end token's log-probability is left out",
        (
            "Finished sequences have too high a score.",
            SCORE_PLACE,
            "Taking the end token has a probability too.",
            "Add it like any other token's.",
        ),
        edits=((SUM, "score + float(log_p[token]) * (token != end)"),),
    ),
)
