"""Where a head puts its weight when it has nothing to say (Xiao et al. 2024; Qiu et al. 2025).

A softmax must share out a whole unit. In the texts here one token asks for the word before it, and all words
need nothing from the context: for them any look is noise, except at themselves and at the first token, which
says nothing. A sink that is no token is a better place, and a gate makes the place unimportant: behind it the
weights themselves may stay on the first token. A sink begins with half of the weight: begun at 0, in some
models the first token is faster.
"""

import math

import torch
from torch import Tensor, nn

from regard.attention import ScoreRule, Visibility, attend, weights
from regard.lab.learning import train
from regard.lab.spec import Lab, Measurement
from regard.layers import Rotary

CLAIM = """A head with nothing to say rests on the first token, because softmax must put its weight somewhere;
a sink that is no token takes that weight, and a gate that closes makes it unimportant."""
PREDICTION = """Where words need no look, the first token has surely more than twice the weight that looking
everywhere alike gives it; surely less beside a learned sink, which has more than half; through an output gate
surely less of it passes, and the gate is surely less open there than where the head is asked."""

N_WORD, LENGTH, DIM = 12, 16, 16
ASK, FIRST = N_WORD, N_WORD + 1  # the token that asks, and the one that every text begins with
SETTLED = 6  # rows before it have few keys to choose from
KINDS = ("plain", "sink", "gate")


class Readers(nn.Module):
    """Models side by side, a head for each: one layer of causal attention with a norm and a residual."""

    def __init__(self, kind: str, n_model: int) -> None:
        super().__init__()

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(0.02 * torch.randn(n_model, *shape))

        self.embedded, self.answer = drawn(FIRST + 1, DIM), drawn(DIM, N_WORD)
        self.query, self.key, self.value, self.out = (drawn(DIM, DIM) for _ in range(4))
        begun = torch.full((n_model,), math.log(LENGTH))  # with about half of the weight
        self.sink = nn.Parameter(begun) if kind == "sink" else None
        self.gate = drawn(DIM, DIM) if kind == "gate" else None
        self.turn = Rotary(DIM, base=100.0)(torch.arange(LENGTH)[None])

    def forward(self, texts: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, ScoreRule]]:
        """Scores of the answers, how far gates are open, by text, model, position; and what gives weights."""
        x = nn.functional.rms_norm(self.embedded[:, texts].transpose(0, 1), (DIM,))
        q, k, v = self.turn(x @ self.query), self.turn(x @ self.key), x @ self.value
        rule = ScoreRule(visible=Visibility(causal=True), sink=self.sink)
        opened = torch.ones_like(v) if self.gate is None else (x @ self.gate).sigmoid()
        read = attend(q, k, v, rule).out * opened @ self.out
        return (x + read) @ self.answer, opened.mean(-1), (q, k, rule)


def _texts(n: int) -> Tensor:
    """Random words after the first token; one in four asks for the word before it."""
    asking = torch.rand(n, LENGTH) < 0.25
    asking[:, 1:] &= ~asking[:, :-1]
    asking[:, :2] = False
    texts = torch.randint(N_WORD, (n, LENGTH)).masked_fill(asking, ASK)
    texts[:, 0] = FIRST
    return texts


def _trained(kind: str, n_model: int, n_step: int) -> dict[str, list[float]]:
    """What each of some models does that learned a table of what follows each word, and to answer."""
    model = Readers(kind, n_model)
    table = (2 * torch.randn(FIRST + 1, N_WORD)).softmax(-1)

    def loss() -> Tensor:
        texts = _texts(16)
        before = nn.functional.one_hot(texts.roll(1, 1) % N_WORD, N_WORD).float()
        wanted = torch.where((texts == ASK)[..., None], before, table[texts])[:, None]
        said = model(texts)[0].log_softmax(-1)
        return nn.functional.kl_div(said, wanted.expand_as(said), reduction="none").sum((1, 3)).mean()

    train(model.parameters(), loss, n_step, rate=0.02, clip=False)
    texts = _texts(256)
    with torch.no_grad():
        said, opened, scored = model(texts)
        looks = weights(*scored)
    right = said.argmax(-1) == (texts.roll(1, 1) % N_WORD)[:, None]
    late = torch.arange(LENGTH) >= SETTLED
    idle, busy = (texts < N_WORD) & late, (texts == ASK) & late
    seen = {
        "first token's share": (looks[..., 0], idle),
        "first token's share times gate": (looks[..., 0] * opened, idle),
        "share of no token": (1 - looks.sum(-1), idle),
        "open when idle": (opened, idle),
        "open when asked": (opened, busy),
        "answered": (right.float(), busy),
    }
    return {name: values.transpose(1, 2)[where].mean(0).tolist() for name, (values, where) in seen.items()}


def run(lab: Lab) -> None:
    n_model, n_step = (12, 300) if lab.quick else (32, 1000)
    chance = float((1 / torch.arange(SETTLED + 1.0, LENGTH + 1)).mean())
    seen = {kind: _trained(kind, n_model, n_step) for kind in KINDS}

    def mean(kind: str, what: str) -> Measurement:
        return lab.mean(f"{what}, {kind}", seen[kind][what])

    first = {kind: mean(kind, "first token's share") for kind in KINDS}
    passed, nowhere = mean("gate", "first token's share times gate"), mean("sink", "share of no token")
    idle, busy = mean("gate", "open when idle"), mean("gate", "open when asked")
    bars = {**first, "gate, passed": passed}
    lab.draw.bars("Weight on the first token", bars, "share, of words that need no look")
    lab.draw.level(chance, "looking everywhere alike")
    instead = {"on the sink": nowhere, "gate, idle": idle, "gate, asked": busy}
    lab.draw.bars("Where it is instead", instead, "share, or how far open")
    ordered = {kind: sorted(seen[kind]["first token's share"]) for kind in KINDS}
    lab.draw.lines("Every model", range(n_model), ordered, "models, in order", "first token's share")
    for kind in KINDS:
        lab.above(f"{kind}: it learned to answer", mean(kind, "answered"), 0.5)
    lab.below("the gate is shut where there is nothing to say", idle, busy)
    lab.above("plain softmax rests on the first token", first["plain"], 2 * chance)
    lab.below("with a sink it rests there less", first["sink"], first["plain"])
    lab.above("the sink has most of the weight", nowhere, 0.5)
    lab.below("through a gate less of the first token passes", passed, first["plain"])
