"""How good a model is: exact match, BLEU and chrF, perplexity and bits per byte."""

from collections.abc import Sequence

import torch

from regard.decoding.loop import generate
from regard.errors import UnsupportedError
from regard.files.loading import Loaded
from regard.train.batches import Examples, one_pass
from regard.train.build import Objective

ROWS = 128  # sequences decoded together


def answered(loaded: Loaded, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the model's answer to the source of each (source, target)."""
    assert loaded.tokenizer is not None  # every model trained here has one
    # Of about the same length together: less padding. The longest target bounds how long to wait for one.
    order = sorted(range(len(pairs)), key=lambda index: len(pairs[index][0]))
    longest = max(len(loaded.tokenizer.encode(target)) for _, target in pairs)
    answers: dict[int, str] = {}
    for first in range(0, len(order), ROWS):
        some = order[first : first + ROWS]
        done = generate(loaded, [pairs[index][0] for index in some], max_new=longest + 8)
        assert done.texts is not None
        answers.update(zip(some, done.texts, strict=True))
    return [answers[index] for index in range(len(pairs))]


def translation_scores(answers: Sequence[str], targets: Sequence[str]) -> dict[str, float | str]:
    """Return corpus BLEU and chrF, from 0 to 100, by sacrebleu (Post 2018), with their signatures."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise UnsupportedError(
            "BLEU and chrF need sacrebleu: pip install 'regard[train]', or pip install sacrebleu."
        ) from error
    scores: dict[str, float | str] = {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        scores[name] = metric.corpus_score(list(answers), [list(targets)]).score
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores


@torch.no_grad()
def mean_loss(
    objective: Objective, examples: Examples, batch_tokens: int, pad: int, most: int | None = None
) -> float:
    """Return the mean cross entropy of a label, in nats, by an objective in evaluation mode."""
    device = next(objective.parameters()).device
    total, n_label = 0.0, 0
    for batch in one_pass(examples, batch_tokens, pad, most):
        n_label += batch.n_label
        total += float(objective(*batch.to(device)))
    return total / n_label
