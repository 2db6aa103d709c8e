"""Reference, calls and probes of `seq2seq-decoder`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from regard.checking.trials import ANYTHING, Case, Draw, Probe, Trial
from regard.models.seq2seq import Decoder, Seq2SeqConfig, Source

NAMES = {"attention.query.weight": "attention.W_q.weight", "attention.key.weight": "attention.W_k.weight"}


def reference(case: Case, *, order: str = "context first", layout: str = "batch first") -> list[Any]:
    """Our own decoder, with the weights under d2l's names."""
    vocab, embed, hiddens, n_layer = case.init
    what, words, outputs, hidden, lengths = case.args
    memory = outputs.transpose(0, 1)
    config = Seq2SeqConfig(1, vocab, embed, hiddens, n_layer)
    with torch.random.fork_rng(devices=[]):  # its weights do not count: they are the case's
        decoder = Decoder(config)
    weights = {ours: case.weights[theirs] for ours, theirs in NAMES.items()}
    weights["attention.score"] = case.weights["attention.w_v.weight"][0]
    weights["embedding.weight"] = case.weights["embedding.weight"]
    weights |= {
        name.replace("rnn", "recurrent"): w for name, w in case.weights.items() if name.startswith("rnn")
    }
    weights |= {f"out.{part}": case.weights[f"dense.{part}"] for part in ("weight", "bias")}
    if order == "embedding first":  # the input's columns change places with it
        of_word, of_context = weights["recurrent.weight_ih_l0"].split((embed, hiddens), dim=1)
        weights["recurrent.weight_ih_l0"] = torch.cat((of_context, of_word), dim=1)
    visible = None if lengths is None else torch.arange(len(outputs)) < lengths[:, None]
    keys = linear(memory, weights["attention.key.weight"])[:, None]
    source = Source(memory, keys, visible, context=hidden[-1])
    seen = outputs if layout == "time first" else memory
    if what == "init_state":
        return [seen, hidden, lengths]
    decoder.eval()
    states, (after,) = torch.func.functional_call(decoder, weights, (words, source, (hidden,)))
    logits = linear(states, weights["out.weight"], weights["out.bias"])
    if what == "state":
        return [seen, after, lengths]
    if case.train and case.init_kwargs:  # dropped by chance
        logits = torch.full_like(logits, ANYTHING)
    return [logits, logits if what == "twice" else after]


def decoding(draw: Draw, what: str = "logits", lengths: Tensor | None = None) -> Case:
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
        inputs = hiddens + embed if layer == 0 else hiddens
        weights[f"rnn.weight_ih_l{layer}"] = draw.weight(3 * hiddens, inputs) * 1.5
        weights[f"rnn.weight_hh_l{layer}"] = draw.weight(3 * hiddens, hiddens) * 1.5
        weights[f"rnn.bias_ih_l{layer}"] = draw.normal(3 * hiddens, scale=0.3)
        weights[f"rnn.bias_hh_l{layer}"] = draw.normal(3 * hiddens, scale=0.3)
    words = draw.integers(0, vocab - 1, "batch", "step")
    outputs = draw.uniform("source", "batch", "hidden", low=-0.9, high=0.9)
    hidden = draw.uniform("layer", "batch", "hidden", low=-0.9, high=0.9)
    return Case(
        (what, words, outputs, hidden, lengths), init=(vocab, embed, hiddens, n_layer), weights=weights
    )


def lengths_of(draw: Draw) -> Tensor:
    lengths = draw.integers(1, draw["source"], "batch")
    if draw["batch"] > 1:  # different ones, or one sequence could use another's unnoticed
        lengths[0], lengths[1] = max(1, draw["source"] // 2), draw["source"]
    return lengths


def with_lengths(draw: Draw) -> Case:
    return decoding(draw, "logits", lengths_of(draw))


def without_lengths(draw: Draw) -> Case:
    return decoding(draw)


def word_by_word(draw: Draw) -> Case:
    return decoding(draw, "word by word", lengths_of(draw))


def the_state(draw: Draw) -> Case:
    return decoding(draw, "state", lengths_of(draw))


def first_state(draw: Draw) -> Case:
    return decoding(draw, "init_state", lengths_of(draw))


def evaluated(draw: Draw) -> Case:
    return replace(decoding(draw, "twice", lengths_of(draw)), init_kwargs={"dropout": 0.6})


def dropped(draw: Draw) -> tuple[Case, ...]:
    return (replace(evaluated(draw), train=True),)


def dropped_layers(draw: Draw) -> tuple[Case, ...]:
    """Encoder outputs of 0: whatever weights are dropped, only dropout between the layers shows."""
    case = replace(evaluated(draw), train=True)
    what, words, outputs, *rest = case.args
    return (case.with_args(what, words, torch.zeros_like(outputs), *rest),)


def trained(draw: Draw) -> Case:
    return replace(with_lengths(draw), train=True)


def drops_something(results: list[Any]) -> str | None:
    if torch.allclose(results[0][0], results[0][1], atol=1e-5):
        return "with dropout 0.6, two calls in train mode give the same: nothing is dropped."
    return None


def padding_changed(draw: Draw) -> tuple[Case, ...]:
    base = with_lengths(draw)
    what, words, outputs, hidden, lengths = base.args
    beyond = (torch.arange(draw["source"])[:, None] >= lengths)[..., None]
    return base, base.with_args(what, words, torch.where(beyond, outputs + 1.0, outputs), hidden, lengths)


def future_changed(draw: Draw) -> tuple[Case, ...]:
    base = with_lengths(draw)
    what, words, *rest = base.args
    other = words.clone()
    other[:, draw["step"] // 2 :] = (other[:, draw["step"] // 2 :] + 1) % draw["vocab"]
    return base, base.with_args(what, other, *rest)


def neighbour_changed(draw: Draw) -> tuple[Case, ...]:
    base = with_lengths(draw)
    what, words, outputs, hidden, lengths = base.args
    words, outputs, hidden = words.clone(), outputs.clone(), hidden.clone()
    words[0], outputs[:, 0], hidden[:, 0] = (words[0] + 1) % draw["vocab"], -outputs[:, 0], -hidden[:, 0]
    return base, base.with_args(what, words, outputs, hidden, lengths)


SIZES = {"batch": 5, "layer": 2, "step": 3, "source": 7, "embed": 11, "hidden": 13, "vocab": 17}

TRIALS = (
    Trial("lengths", with_lengths, SIZES, variants=True),
    Trial("no lengths", without_lengths, SIZES),
    Trial("one layer", with_lengths, {**SIZES, "layer": 1}),
    Trial("one sequence", with_lengths, {**SIZES, "batch": 1}),
    Trial("one word", with_lengths, {**SIZES, "step": 1}),
    Trial("all sizes alike", with_lengths, dict.fromkeys(SIZES, 3)),
    Trial("word by word", word_by_word, SIZES),
    Trial("three layers", with_lengths, {**SIZES, "layer": 3, "batch": 2, "step": 2}),
    Trial("init_state", first_state, SIZES, grad=False),
    Trial("the state afterwards", the_state, SIZES, grad=False),
    Trial(
        "dropout in eval mode",
        evaluated,
        SIZES,
        kind="train mode",
        says="In eval mode dropout does nothing, and a second call starts anew.",
    ),
    Trial("train mode without dropout", trained, SIZES, kind="train mode", says="The default is dropout=0."),
)

PROBES = (
    Probe(
        "padding has no say",
        padding_changed,
        SIZES,
        says="encoder outputs past a source's length were changed: nothing may move.",
    ),
    Probe(
        "later words have no say",
        future_changed,
        SIZES,
        says="words 1 and 2 were changed: the logits of word 0 may not move.",
    ),
    Probe(
        "a neighbour has no say",
        neighbour_changed,
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
        dropped_layers,
        SIZES,
        drops_something,
        kind="train mode",
        says="the encoder's outputs are 0 here: only dropout between the layers of the GRU shows.",
    ),
)
