"""A fixed context against attention, by the length of what has to pass through it.

Without attention the encoder's last state is all (Cho et al. 2014); with it the decoder looks at every one of
its states, by dot products (Luong et al. 2015) or additive scores (Bahdanau et al. 2015).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.lab.drawing import finish, level, panels, sweep
from regard.lab.learning import train
from regard.lab.spec import Experiment, Measurement, Result, above, below
from regard.models.seq2seq import Score, Seq2Seq, Seq2SeqConfig

BOS, FIRST = 0, 1


def _examples(n: int, length: int, vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    """A sequence, the same backwards as what is given to the decoder, and what it must say."""
    source = torch.randint(FIRST, vocab, (n, length))
    wanted = source.flip(1)
    given = torch.cat([torch.full((n, 1), BOS), wanted[:, :-1]], 1)
    return source, given, wanted


def _trained(score: Score, vocab: int, longest: int, n_step: int, hidden: int) -> Seq2Seq:
    config = Seq2SeqConfig(
        source_vocab=vocab, target_vocab=vocab, embed_dim=16, hidden_dim=hidden, score=score, bos=BOS
    )
    model = Seq2Seq(config)

    def loss() -> Tensor:
        source, given, wanted = _examples(48, int(torch.randint(2, longest + 1, ())), vocab)
        return nn.functional.cross_entropy(model(source, given).logits.flatten(0, 1), wanted.flatten())

    train(model.parameters(), loss, n_step, clip=True)
    return model.eval()


@torch.no_grad()
def _right(model: Seq2Seq, length: int, vocab: int, n: int, name: str) -> Measurement:
    """The share of tokens said right, with an interval over sequences."""
    source, given, wanted = _examples(n, length, vocab)
    right = (model(source, given).logits.argmax(-1) == wanted).double().mean(1)
    return Measurement.mean(f"right, {name}, length {length}", right.tolist())


def run(quick: bool, seed: int) -> Result:
    vocab, longest, n_step, hidden = (10, 12, 160, 32) if quick else (12, 24, 700, 32)
    lengths = (2, longest) if quick else tuple(range(2, longest + 1, 2))
    figure, (ax,) = panels("A sequence said backwards", width=5.6)
    ways: dict[str, Score] = {"attention": "dot", "fixed context": "none"}
    if not quick:
        ways["additive attention"] = "additive"
    models = {name: _trained(score, vocab, longest, n_step, hidden) for name, score in ways.items()}
    right = sweep(ax, lengths, ways, lambda name, length: _right(models[name], length, vocab, 400, name))
    level(ax, 1 / (vocab - 1), "chance", lengths[0])
    ax.set_ylim(0, 1.05)
    finish(ax, "length", "share of tokens right")
    fixed, free = right["fixed context"], right["attention"]
    checks = (
        below("a fixed context is worse on the longest than on the shortest", fixed[-1], fixed[0]),
        above("on the longest, attention is better", free[-1], fixed[-1]),
        above("on the longest, attention is mostly right", free[-1], 0.6),
    )
    return Result(
        [share for shares in right.values() for share in shares],
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
