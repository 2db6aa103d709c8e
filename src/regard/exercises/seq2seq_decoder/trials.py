"""Reference, calls and probes of `seq2seq-decoder`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.functional import linear

from regard.checking.trials import ANYTHING, Case, Draw, Probe, Trial, changed
from regard.exercises.shared import attention
from regard.exercises.shared.attention import past_lengths, weighed
from regard.exercises.shared.lengths import lengths_of


@dataclass(frozen=True)
class Choices:
    """The decisions of a recurrent decoder with attention."""

    order: str = "context first"
    layout: str = "batch first"
    query: str = "the last layer"
    context: str = "attended"
    scores: str = "additive"
    mask: str = "hidden"
    softmax: str = "scores.softmax(-1)"
    averaged: str = "outputs"
    last_key: str = "key >= length"
    start: str = "as given"
    memory: str = "turned"
    words: str = "turned"
    carried: str = "the last state"
    logits: str = "of each step"
    state: str = "the new one"


class Decoder:
    """A decoder with the weights of a case."""

    def __init__(self, case: Case, c: Choices) -> None:
        self.c, self.weights, self.n_layer = c, case.weights, case.init[3]

    def gru(self, x: Tensor, hidden: Tensor) -> Tensor:
        """The states of all layers after one step."""
        states = []
        for layer in range(self.n_layer):
            parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            x = torch.gru_cell(x, hidden[layer], *(self.weights[f"rnn.{part}_l{layer}"] for part in parts))
            states.append(x)
        return torch.stack(states)

    def attend(self, query: Tensor, memory: Tensor, lengths: Tensor | None) -> Tensor:
        """What a query (batch, hiddens) sees of the encoder's outputs."""
        c = self.c
        w_q, w_k, w_v = (self.weights[f"attention.{name}.weight"] for name in ("W_q", "W_k", "w_v"))
        idle = torch.eye(len(w_q), dtype=w_q.dtype)
        w_q, w_k = {
            "layers swapped": (w_k, w_q),
            "W_q for both": (w_q, w_q),
            "W_k for both": (w_k, w_k),
            "queries as they are": (idle, w_k),
            "keys as they are": (w_q, idle),
        }.get(c.scores, (w_q, w_k))
        if c.scores == "dot products":
            scores = torch.einsum("bh,bsh->bs", query, memory) / memory.shape[-1] ** 0.5
        else:
            both = linear(query, w_q)[:, None] + linear(memory, w_k)
            scores = (both if c.scores == "without tanh" else torch.tanh(both)) @ w_v[0]
        rule = attention.Choices(mask=c.mask, last_key=c.last_key, softmax=c.softmax)
        scores = scores[:, None, None]
        weights = weighed(scores, past_lengths(lengths, scores, rule), rule)[:, 0]
        return (weights @ (linear(memory, w_k) if c.averaged == "projected keys" else memory))[:, 0]

    def asked(self, hidden: Tensor, first: Tensor, word: Tensor, memory: Tensor) -> Tensor:
        """The query of a step."""
        if self.c.query == "after this word":
            return self.gru(torch.cat([torch.zeros_like(hidden[-1]), word], -1), hidden)[-1]
        if self.c.query == "the word":
            width = hidden.shape[-1]
            return F.pad(word, (0, max(0, width - word.shape[-1])))[..., :width]
        return {
            "the first layer": hidden[0],
            "the mean of the layers": hidden.mean(0),
            "the first state": first[-1],
            "the mean of the outputs": memory.mean(1),
            "the last output": memory[:, -1],
        }.get(self.c.query, hidden[-1])

    def run(
        self, words: Tensor, memory: Tensor, hidden: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Logits (batch, step, vocab) and the state afterwards."""
        c, first, steps = self.c, hidden, []
        embedded = self.weights["embedding.weight"][words]
        turned = {
            "reshaped": lambda: embedded.reshape(words.shape[1], words.shape[0], -1),
            "over the batch": lambda: embedded,
            "the first": lambda: embedded[:, :1].expand_as(embedded).transpose(0, 1),
        }.get(c.words, lambda: embedded.transpose(0, 1))()
        for word in turned:
            if c.context == "attended":
                seen = self.attend(self.asked(hidden, first, word, memory), memory, lengths)
            else:
                seen = {"the last output": memory[:, -1], "zeros": 0 * memory[:, 0]}.get(
                    c.context, memory.mean(1)
                )
            x = torch.cat([word, seen] if c.order == "embedding first" else [seen, word], -1)
            after = self.gru(x, first if c.carried == "the first state" else hidden)
            hidden = hidden if c.carried == "nothing" else after
            steps.append(
                {"from the first layer": after[0], "from the context": seen}.get(c.logits, after[-1])
            )
        kept = steps[-1:] if c.logits == "of the last step" else steps
        states = torch.stack(kept, dim=0 if c.logits == "time first" else 1)
        logits = linear(states, self.weights["dense.weight"], self.weights["dense.bias"])
        return (logits.softmax(-1) if c.logits == "a softmax" else logits), hidden


def reference(case: Case, **choices: str) -> list[Any]:
    """What the drive asks for: a state, or logits and the hidden state afterwards."""
    c = Choices(**choices)
    what, words, outputs, hidden, lengths = case.args
    memory = outputs.transpose(0, 1)
    if c.memory == "reshaped":
        memory = outputs.reshape(outputs.shape[1], outputs.shape[0], -1)
    if c.start == "zeros":
        hidden = torch.zeros_like(hidden)
    elif c.start == "the last layer":
        hidden = hidden[-1:].expand_as(hidden)
    seen = outputs if c.layout == "time first" else memory
    if what == "init_state":
        return [seen, hidden, lengths]
    decoder = Decoder(case, c)
    if what == "word by word":
        return one_by_one(decoder, words, memory, hidden, lengths)
    logits, after = decoder.run(words, memory, hidden, lengths)
    after = hidden if c.state == "the old one" else after
    state = [seen, after, None if c.state == "without lengths" else lengths]
    if what == "state":
        return list(logits) if c.state == "first" else state
    if case.train and case.init_kwargs:  # dropped by chance
        logits = torch.full_like(logits, ANYTHING)
    if c.state == "first":
        return [state, state if what == "twice" else logits[1]]
    return [logits, logits if what == "twice" else after]


def one_by_one(
    decoder: Decoder, words: Tensor, memory: Tensor, hidden: Tensor, lengths: Tensor | None
) -> list[Tensor]:
    """Logits of one call for each word, each with the state that the one before returned."""
    logits = []
    if decoder.c.state == "first":
        raise TypeError("a state that is a tensor")
    for t in range(words.shape[1]):
        of_word, after = decoder.run(words[:, t : t + 1], memory, hidden, lengths)
        hidden = hidden if decoder.c.state == "the old one" else after
        lengths = None if decoder.c.state == "without lengths" else lengths
        logits.append(of_word)
    return [torch.cat(logits, dim=1), hidden]


def decoding(
    draw: Draw,
    what: str = "logits",
    *,
    padded: bool = True,
    dropout: float | None = None,
    train: bool = False,
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
        inputs = {"ih": hiddens if layer else hiddens + embed, "hh": hiddens}
        for part, size in inputs.items():
            weights[f"rnn.weight_{part}_l{layer}"] = draw.weight(3 * hiddens, size) * 1.5
            weights[f"rnn.bias_{part}_l{layer}"] = draw.normal(3 * hiddens, scale=0.3)
    words = draw.integers(0, vocab - 1, "batch", "step")
    outputs, hidden = (
        draw.uniform(word, "batch", "hidden", low=-0.9, high=0.9) for word in ("source", "layer")
    )
    args = (what, words, outputs, hidden, lengths_of(draw, "source") if padded else None)
    options = {} if dropout is None else {"dropout": dropout}
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

TRIALS = (
    Trial("lengths", decoding, SIZES, variants=True),
    Trial("no lengths", partial(decoding, padded=False), SIZES),
    Trial("one layer", decoding, {**SIZES, "layer": 1}),
    Trial("one sequence", decoding, {**SIZES, "batch": 1}),
    Trial("one word", decoding, {**SIZES, "step": 1}),
    Trial("all sizes alike", decoding, dict.fromkeys(SIZES, 3)),
    Trial("word by word", partial(decoding, what="word by word"), SIZES),
    Trial("three layers", decoding, {**SIZES, "layer": 3, "batch": 2, "step": 2}),
    Trial("init_state", partial(decoding, what="init_state"), SIZES, grad=False),
    Trial("the state afterwards", partial(decoding, what="state"), SIZES, grad=False),
    Trial(
        "dropout in eval mode",
        partial(decoding, what="twice", dropout=0.6),
        SIZES,
        kind="train mode",
        says="In eval mode dropout does nothing, and a second call starts anew.",
    ),
    Trial(
        "train mode without dropout",
        partial(decoding, train=True),
        SIZES,
        kind="train mode",
        says="The default is dropout=0.",
    ),
)

PROBES = (
    Probe(
        "padding has no say",
        changed(decoding, change_padding),
        SIZES,
        says="encoder outputs past a source's length were changed: nothing may move.",
    ),
    Probe(
        "later words have no say",
        changed(decoding, change_words),
        SIZES,
        says="words 1 and 2 were changed: the logits of word 0 may not move.",
    ),
    Probe(
        "a neighbour has no say",
        changed(decoding, change_first),
        SIZES,
        says="sequence 0 was changed: the others may not move.",
    ),
    Probe("dropout in train mode", dropped, SIZES, drops_something, kind="train mode"),
    Probe(
        "dropout of the attention",
        dropped,
        {**SIZES, "layer": 1},
        drops_something,
        kind="train mode",
        says="with one layer, only the attention weights can be dropped.",
    ),
    Probe(
        "dropout between the layers",
        silent_encoder,
        SIZES,
        drops_something,
        kind="train mode",
        says="the encoder's outputs are 0 here: only dropout between the layers of the GRU shows.",
    ),
)
