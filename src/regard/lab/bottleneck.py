"""A fixed context against attention, by the length of what has to pass through it.

Without attention the encoder's last state is all (Cho et al. 2014); with it the decoder looks at every one of
its states, by dot products (Luong et al. 2015) or additive scores (Bahdanau et al. 2015).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.lab.drawing import draw, finish, panels
from regard.lab.spec import Experiment, Measurement, Result, above, below
from regard.models import seq2seq

BOS, FIRST = 0, 1


def _examples(n: int, length: int, vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    """A sequence, the same backwards as what is given to the decoder, and what it must say."""
    source = torch.randint(FIRST, vocab, (n, length))
    wanted = source.flip(1)
    given = torch.cat([torch.full((n, 1), BOS), wanted[:, :-1]], 1)
    return source, given, wanted


def _trained(score: seq2seq.Score, vocab: int, longest: int, n_step: int, hidden: int) -> seq2seq.Seq2Seq:
    config = seq2seq.Seq2SeqConfig(
        source_vocab=vocab,
        target_vocab=vocab,
        embed_dim=16,
        hidden_dim=hidden,
        score=score,
        bos=BOS,
    )
    model = seq2seq.Seq2Seq(config)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(n_step):
        length = int(torch.randint(2, longest + 1, ()))
        source, given, wanted = _examples(48, length, vocab)
        logits = model(source, given).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model.eval()


@torch.no_grad()
def _right(model: seq2seq.Seq2Seq, length: int, vocab: int, n: int, name: str) -> Measurement:
    """The share of tokens said right, with an interval over sequences."""
    source, given, wanted = _examples(n, length, vocab)
    right = (model(source, given).logits.argmax(-1) == wanted).double().mean(1)
    return Measurement.mean(f"right, {name}, length {length}", right.tolist())


def run(quick: bool, seed: int) -> Result:
    vocab, longest, n_step, hidden = (10, 12, 160, 32) if quick else (12, 24, 700, 32)
    lengths = (2, longest) if quick else tuple(range(2, longest + 1, 2))
    figure, (ax,) = panels("A sequence said backwards", width=5.6)
    found = {}
    ways: dict[str, seq2seq.Score] = {"attention": "dot", "fixed context": "none"}
    if not quick:
        ways["additive attention"] = "additive"
    for index, (name, score) in enumerate(ways.items()):
        model = _trained(score, vocab, longest, n_step, hidden)
        found[name] = [_right(model, length, vocab, 400, name) for length in lengths]
        draw(ax, lengths, found[name], name, index)
    ax.axhline(1 / (vocab - 1), color="#8c8c8c", linestyle=":", linewidth=1)
    ax.annotate("chance", (lengths[0], 1 / (vocab - 1)), fontsize=7, va="bottom")
    ax.set_ylim(0, 1.05)
    finish(ax, "length", "share of tokens right")
    fixed, free = found["fixed context"], found["attention"]
    checks = (
        below("a fixed context is worse on the longest than on the shortest", fixed[-1], fixed[0]),
        above("on the longest, attention is better", free[-1], fixed[-1]),
        above("on the longest, attention is mostly right", free[-1], 0.6),
    )
    return Result(
        tuple(each for values in found.values() for each in values),
        checks,
        figure,
        f"at length {longest} attention says {free[-1].value:.0%} of the tokens right, a fixed context of "
        f"{hidden} numbers {fixed[-1].value:.0%} (at length {lengths[0]}: {free[0].value:.0%} and "
        f"{fixed[0].value:.0%})",
        notes=(f"Both trained for {n_step} steps on lengths 2 to {longest}, {vocab - 1} different tokens.",),
    )


EXPERIMENT = Experiment(
    "bottleneck",
    "A decoder that gets one vector for the whole source fails as the source grows; one that looks at every "
    "position of it does not.",
    "Saying a sequence backwards, the fixed context is surely worse on long sequences than on short ones, "
    "and surely worse than attention, which stays above 60 %.",
    run,
)
