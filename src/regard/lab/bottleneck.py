"""A fixed context against attention, by the length of what has to pass through it.

Without attention the encoder's last state is all (Cho et al. 2014); with it the decoder looks at every one of
its states, by dot products (Luong et al. 2015) or additive scores (Bahdanau et al. 2015). All are trained for
as many steps on lengths up to the longest.
"""

import torch
from torch import Tensor

from regard.lab.learning import teach
from regard.lab.spec import Lab, Measurement
from regard.models import Seq2Seq, Seq2SeqConfig
from regard.models.seq2seq import Score

CLAIM = """A decoder that gets one vector for the whole source fails as the source grows; one that looks at
every position of it does not."""
PREDICTION = """Saying a sequence backwards, the fixed context is surely worse on long sequences than on short
ones, and surely worse than attention, which stays above 60 %."""

BOS, FIRST, HIDDEN = 0, 1, 32


def _examples(n: int, length: int, vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    """A sequence, the same backwards as what is given to the decoder, and what it must say."""
    source = torch.randint(FIRST, vocab, (n, length))
    wanted = source.flip(1)
    return source, torch.cat([torch.full((n, 1), BOS), wanted[:, :-1]], 1), wanted


def run(lab: Lab) -> None:
    vocab, longest, n_step = (10, 12, 160) if lab.quick else (12, 24, 700)
    lengths = (2, longest) if lab.quick else tuple(range(2, longest + 1, 2))
    scores: dict[str, Score] = {"attention": "dot", "fixed context": "none"}
    if not lab.quick:
        scores["additive attention"] = "additive"

    def trained(score: Score) -> Seq2Seq:
        model = Seq2Seq(Seq2SeqConfig(vocab, vocab, embed_dim=16, hidden_dim=HIDDEN, score=score, bos=BOS))

        def examples() -> tuple[Tensor, Tensor, Tensor]:
            return _examples(48, int(torch.randint(2, longest + 1, ())), vocab)

        teach(model, examples, n_step, scores=lambda source, given: model(source, given).logits)
        return model.eval()

    models = {name: trained(score) for name, score in scores.items()}

    def said_right(name: str, length: int) -> Measurement:
        source, given, wanted = _examples(400, length, vocab)
        right = models[name](source, given).logits.argmax(-1) == wanted
        return lab.mean(f"right, {name}, length {length}", right.double().mean(1).tolist())

    right = {name: [said_right(name, length) for length in lengths] for name in models}
    lab.draw.lines("A sequence said backwards", lengths, right, "length", "share of tokens right")
    lab.draw.chance(1 / (vocab - 1))
    fixed, free = right["fixed context"], right["attention"]
    lab.below("a fixed context is worse on the longest than on the shortest", fixed[-1], fixed[0])
    lab.above("on the longest, attention is better", free[-1], fixed[-1])
    lab.above("on the longest, attention is mostly right", free[-1], 0.6)
