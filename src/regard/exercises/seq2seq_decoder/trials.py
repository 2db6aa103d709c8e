"""Reference, calls and probes of `seq2seq-decoder`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checking.trials import ANYTHING, Case, Draw, Probe, Trial, changed, formula, parted, worked
from regard.exercises.seq2seq_decoder.drive import drive
from regard.exercises.shared.lengths import TRAINING, lengths_of

# One word: what is read of the new state, and the state that the next word starts from.
WORD = {
    "query": "hidden[-1]",
    "layers": "w_q, w_k",
    "both": "(query @ layers[0].T)[:, None] + memory @ layers[1].T",
    "scores": "torch.tanh(both) @ w_v[0]",
    "past": "position >= lengths",
    "mask": "past",
    "masked": "scores.masked_fill(mask, -torch.inf)",
    "softmax": "masked.softmax(-1)",
    "averaged": "memory",
    "context": "(softmax.masked_fill(mask, 0.0)[:, None] @ averaged)[:, 0]",
    "joined": "torch.cat([context, word], -1)",
    "from_state": "hidden",
    "after": "gru(joined, from_state)",
    "read": "after[-1]",
    "kept": "after",
    "result": "read, kept",
}
# One call: its logits, and the state afterwards.
CALL = {
    "embedded": "table[ids]",
    "words": "embedded.transpose(0, 1)",
    "run": "decoded(words)",
    "steps": "run[0]",
    "after": "run[1]",
    "states": "torch.stack(steps, 1)",
    "dense": "states @ weight.T + bias + chance",
    "logits": "dense",
    "state": "[seen, after, lengths]",
    "returned": "logits, state",
}


WEIGHTS = {
    "w_q": "attention.W_q.weight",
    "w_k": "attention.W_k.weight",
    "w_v": "attention.w_v.weight",
    "table": "embedding.weight",
    "weight": "dense.weight",
    "bias": "dense.bias",
}


class Decoder:
    """What the drive calls, with the weights of a case."""

    def __init__(self, case: Case, layout: str, start: str, memory: str, choices: dict[str, str]) -> None:
        self.case, self.layout, self.start, self.turned = case, layout, start, memory
        self.of_word, self.of_call = parted(choices, WORD)
        self.names = {name: case.weights[weight] for name, weight in WEIGHTS.items()}

    def init_state(self, encoded: tuple[Tensor, Tensor], lengths: Tensor | None) -> list[Any]:
        """The state before the first word."""
        outputs, hidden = encoded
        self.memory = formula(self.turned, outputs=outputs)
        seen = outputs if self.layout == "time first" else self.memory
        return [seen, formula(self.start, hidden=hidden), lengths]

    def gru(self, x: Tensor, hidden: Tensor) -> Tensor:
        """The states of all layers after one step."""
        states = []
        for layer in range(self.case.init[3]):
            parts = (f"rnn.{part}_l{layer}" for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            x = torch.gru_cell(x, hidden[layer], *(self.case.weights[part] for part in parts))
            states.append(x)
        return torch.stack(states)

    def __call__(self, ids: Tensor, state: list[Any]) -> Any:
        """Logits (batch, step, vocab) and the state afterwards."""
        seen, first, lengths = state
        of_word = {**self.of_word, "mask": "position < 0"} if lengths is None else self.of_word
        names = {"position": torch.arange(self.memory.shape[1]), "memory": self.memory, "gru": self.gru}
        names |= {"lengths": torch.tensor(0) if lengths is None else lengths[:, None], **self.names}

        def decoded(words: Tensor) -> tuple[list[Tensor], Tensor]:
            hidden, steps = first, []
            for word in words:
                read, hidden = worked(WORD, of_word, word=word, hidden=hidden, first=first, **names)
                steps.append(read)
            return steps, hidden

        by_chance = self.case.train and self.case.init_kwargs  # dropped
        more = {"seen": seen, "hidden": first, "lengths": lengths, "chance": ANYTHING if by_chance else 0.0}
        return worked(CALL, self.of_call, ids=ids, decoded=decoded, **more, **self.names)


def reference(
    case: Case,
    *,
    layout: str = "batch first",
    start: str = "hidden",
    memory: str = "outputs.transpose(0, 1)",
    **choices: str,
) -> Any:
    """What the drive asks for: a state, or logits and the hidden state afterwards."""
    return drive(Decoder(case, layout, start, memory, choices), *case.args)


def decoding(
    draw: Draw, what: str = "logits", *, padded: bool = True, train: bool = False, **options: float
) -> Case:
    """A decoder with random weights, and what an encoder may have given."""
    vocab, embed, hiddens, n_layer = draw["vocab"], draw["embed"], draw["hidden"], draw["layer"]
    weights = {
        "attention.W_q.weight": draw.weight(hiddens, hiddens) * 2,
        "attention.W_k.weight": draw.weight(hiddens, hiddens) * 2,
        "attention.w_v.weight": draw.normal(1, hiddens, scale=1.5),
        "embedding.weight": draw.normal(vocab, embed),
        "dense.weight": draw.weight(vocab, hiddens) * 2,
        "dense.bias": draw.normal(vocab, scale=0.5),
    }
    for layer in range(n_layer):
        for part, size in {"ih": hiddens if layer else hiddens + embed, "hh": hiddens}.items():
            weights[f"rnn.weight_{part}_l{layer}"] = draw.weight(3 * hiddens, size) * 1.5
            weights[f"rnn.bias_{part}_l{layer}"] = draw.normal(3 * hiddens, scale=0.3)
    words = draw.integers(0, vocab - 1, "batch", "step")
    outputs = draw.uniform("source", "batch", "hidden", low=-0.9, high=0.9)
    hidden = draw.uniform("layer", "batch", "hidden", low=-0.9, high=0.9)
    args = (what, words, outputs, hidden, lengths_of(draw, "source") if padded else None)
    return Case(args, {}, "", (vocab, embed, hiddens, n_layer), options, weights, train)


def dropped(draw: Draw) -> tuple[Case, ...]:
    return (decoding(draw, "twice", dropout=0.6, train=True),)


def silent_encoder(draw: Draw) -> tuple[Case, ...]:
    """Whatever weights are dropped, only dropout between the layers shows."""
    (case,) = dropped(draw)
    case.args[2].zero_()
    return (case,)


def drops_something(results: list[Any]) -> str | None:
    if torch.allclose(results[0][0], results[0][1], atol=1e-5):
        return "with dropout 0.6, two calls in train mode give the same: nothing is dropped."
    return None


def change_padding(case: Case, draw: Draw) -> None:
    outputs, lengths = case.args[2], case.args[4]
    outputs[torch.arange(draw["source"])[:, None] >= lengths] += 1.0


def change_words(case: Case, draw: Draw) -> None:
    later = case.args[1][:, draw["step"] // 2 :]
    later.copy_((later + 1) % draw["vocab"])


def change_first(case: Case, draw: Draw) -> None:
    _, words, outputs, hidden, _ = case.args
    words[0] = (words[0] + 1) % draw["vocab"]
    for x in (outputs, hidden):
        x[:, 0] *= -1


SIZES = {"batch": 5, "layer": 2, "step": 3, "source": 7, "embed": 11, "hidden": 13, "vocab": 17}
ONE = {**SIZES, "layer": 1}
TWICE = partial(decoding, what="twice", dropout=0.6)
DEFAULT = "The default is dropout=0."
EVALUATED = "In eval mode dropout does nothing, and a second call starts anew."
PADDED = "encoder outputs past a source's length were changed: nothing may move."
LATER = "words 1 and 2 were changed: the logits of word 0 may not move."
NEIGHBOUR = "sequence 0 was changed: the others may not move."
ONE_LAYER = "with one layer, only the attention weights can be dropped."
SILENT = "the encoder's outputs are 0 here: only dropout between the layers of the GRU shows."

TRIALS = (
    Trial("lengths", decoding, SIZES, variants=True),
    Trial("no lengths", partial(decoding, padded=False), SIZES),
    Trial("one layer", decoding, ONE),
    Trial("one sequence", decoding, {**SIZES, "batch": 1}),
    Trial("one word", decoding, {**SIZES, "step": 1}),
    Trial("all sizes alike", decoding, dict.fromkeys(SIZES, 3)),
    Trial("word by word", partial(decoding, what="word by word"), SIZES),
    Trial("three layers", decoding, {**SIZES, "layer": 3, "batch": 2, "step": 2}),
    Trial("init_state", partial(decoding, what="init_state"), SIZES, grad=False),
    Trial("the state afterwards", partial(decoding, what="state"), SIZES, grad=False),
    Trial("dropout in eval mode", TWICE, SIZES, kind=TRAINING, says=EVALUATED),
    Trial("train mode without dropout", partial(decoding, train=True), SIZES, kind=TRAINING, says=DEFAULT),
)

PROBES = (
    Probe("padding has no say", changed(decoding, change_padding), SIZES, says=PADDED),
    Probe("later words have no say", changed(decoding, change_words), SIZES, says=LATER),
    Probe("a neighbour has no say", changed(decoding, change_first), SIZES, says=NEIGHBOUR),
    Probe("dropout in train mode", dropped, SIZES, drops_something, kind=TRAINING),
    Probe("dropout of the attention", dropped, ONE, drops_something, kind=TRAINING, says=ONE_LAYER),
    Probe("dropout between the layers", silent_encoder, SIZES, drops_something, kind=TRAINING, says=SILENT),
)
