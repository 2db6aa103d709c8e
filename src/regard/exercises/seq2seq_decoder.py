"""Exercise: a recurrent decoder that looks at the source, after d2l."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from regard.exercises.seq2seq_mistakes import MISTAKES, STEPS
from regard.exercises.spec import ANYTHING, Case, Convention, Draw, Exercise, Probe, Right, Trial
from regard.models.seq2seq import Decoder, Seq2SeqConfig, Source

TASK = """
A recurrent decoder with attention (Bahdanau et al. 2015). At each step the last layer's state of the step
before looks at the encoder's outputs; what it sees and the word's embedding, in this order, feed the
recurrent layers:

    context_t = attention(query = hidden[-1], keys = values = encoder outputs, within the source's lengths)
    output_t, hidden = rnn(concat(context_t, embedding(X[:, t])), hidden)
    logits_t  = dense(output_t)

- `Seq2SeqAttentionDecoder(vocab_size, embed_size, num_hiddens, num_layers, dropout=0)` has the layers
  `attention` (additive: `W_q`, `W_k`, `w_v`, without bias), `embedding`, `rnn` (an `nn.GRU` of `num_layers`
  layers from num_hiddens + embed_size to num_hiddens) and `dense` (num_hiddens to vocab_size, with bias).
  `dropout` is that of the attention weights and between the layers of the GRU.
- `init_state((outputs, hidden), enc_valid_lens)`: outputs (source, batch, num_hiddens) and hidden
  (num_layers, batch, num_hiddens), as `nn.GRU` gives them; lengths (batch,) or None. Returns
  `[enc_outputs, hidden, enc_valid_lens]` with enc_outputs as (batch, source, num_hiddens).
- `forward(X, state)`: X (batch, steps), whole numbers. Returns `(logits, state)`: (batch, steps, vocab_size),
  and `[enc_outputs, hidden, enc_valid_lens]` with the new hidden state, so that decoding can go on from it.
"""

STARTER = '''import torch
from torch import nn


class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        raise NotImplementedError

    def init_state(self, enc_all_outputs, enc_valid_lens):
        """(outputs (source, batch, hiddens), hidden (layers, batch, hiddens)), lengths -> the state."""
        raise NotImplementedError

    def forward(self, X, state):
        """X (batch, steps) -> logits (batch, steps, vocab), [enc_outputs, hidden_state, enc_valid_lens]."""
        raise NotImplementedError
'''

BATCH_FIRST = """import torch
from torch import nn
from torch.nn import functional as F

def masked_softmax(scores, lens):
    if lens is not None:
        past = torch.arange(scores.shape[-1], device=scores.device).ge(lens.reshape(-1, 1, 1))
        scores = torch.where(past, torch.full_like(scores, torch.finfo(scores.dtype).min), scores)
    return F.softmax(scores, dim=-1)

class Bahdanau(nn.Module):
    def __init__(self, size, p):
        super().__init__()
        self.W_k = nn.LazyLinear(size, bias=False)
        self.W_q = nn.LazyLinear(size, bias=False)
        self.w_v = nn.LazyLinear(1, bias=False)
        self.drop = nn.Dropout(p)

    def forward(self, q, k, v, lens):
        e = self.w_v(torch.tanh(self.W_q(q).unsqueeze(2) + self.W_k(k).unsqueeze(1))).squeeze(-1)
        return self.drop(masked_softmax(e, lens)) @ v

class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.attention = Bahdanau(num_hiddens, dropout)
        self.rnn = nn.GRU(num_hiddens + embed_size, num_hiddens, num_layers, True, True, dropout)
        self.dense = nn.LazyLinear(vocab_size)

    def init_state(self, enc_all_outputs, enc_valid_lens):
        outputs, hidden = enc_all_outputs
        return (outputs.transpose(0, 1), hidden, enc_valid_lens)

    def forward(self, X, state):
        memory, h, lens = state
        logits = []
        for emb in self.embedding(X).split(1, dim=1):
            seen = self.attention(h[-1].unsqueeze(1), memory, memory, lens)
            y, h = self.rnn(torch.cat((seen, emb), dim=2), h)
            logits.append(self.dense(y))
        return torch.cat(logits, dim=1), (memory, h, lens)
"""

TIME_FIRST = """import torch
import torch.nn as nn

class Attention(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.W_q, self.W_k = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)
        self.w_v = nn.Linear(n, 1, bias=False)

class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.attention = Attention(num_hiddens)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = nn.GRU(embed_size + num_hiddens, num_hiddens, num_layers, dropout=dropout)
        self.dense = nn.Linear(num_hiddens, vocab_size)
        self.dropout = nn.Dropout(dropout)

    def init_state(self, enc_all_outputs, enc_valid_lens):
        return [enc_all_outputs[0], enc_all_outputs[1], enc_valid_lens]

    def look(self, h, enc, projected, lens):
        e = self.attention.w_v(torch.tanh(projected + self.attention.W_q(h)[None]))[..., 0]
        if lens is not None:
            e = e.masked_fill(torch.arange(len(enc), device=enc.device)[:, None] >= lens[None], float("-inf"))
        return (self.dropout(e.softmax(0))[..., None] * enc).sum(0)

    def forward(self, X, state):
        enc, h, lens = state
        projected = self.attention.W_k(enc)
        out = []
        for t in range(X.shape[1]):
            word = self.embedding(X[:, t])
            step = torch.hstack([self.look(h[-1], enc, projected, lens), word])
            _, h = self.rnn(step.unsqueeze(0), h)
            out.append(h[-1])
        return self.dense(torch.stack(out)).transpose(0, 1), [enc, h, lens]
"""

WORD_FIRST = """import torch
from torch import nn

class AdditiveAttention(nn.Module):
    def __init__(self, num_hiddens, dropout):
        super().__init__()
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        scores = torch.einsum("bqkh,h->bqk", (self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None]).tanh(),
                              self.w_v.weight[0])
        if valid_lens is not None:
            for b, n in enumerate(valid_lens.tolist()):
                keep = torch.arange(keys.shape[1], device=keys.device) < n
                scores = torch.cat([scores[:b], scores[b:b + 1].masked_fill(~keep, -1e4), scores[b + 1:]])
        weights = scores.softmax(-1)
        return self.dropout(weights) @ values, weights

class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0):
        super().__init__()
        self.attention = AdditiveAttention(num_hiddens, dropout)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = nn.GRU(embed_size + num_hiddens, num_hiddens, num_layers, dropout=dropout)
        self.dense = nn.Linear(num_hiddens, vocab_size)

    def init_state(self, enc_all_outputs, enc_valid_lens):
        outputs, hidden = enc_all_outputs
        return outputs.permute(1, 0, 2).contiguous(), hidden, enc_valid_lens

    def forward(self, X, state):
        outputs, hidden, lens = state
        steps = []
        for e in self.embedding(X.t()):
            context, _ = self.attention(hidden[-1:].transpose(0, 1), outputs, outputs, lens)
            o, hidden = self.rnn(torch.cat([e, context.squeeze(1)], dim=1).unsqueeze(0), hidden)
            steps.append(o)
        return self.dense(torch.cat(steps)).permute(1, 0, 2), [outputs, hidden, lens]
"""

DRIVE = """
def drive(answer, what, words, outputs, hidden, lens):
    state = answer.init_state((outputs, hidden), lens)
    if what == "init_state":
        return list(state)
    if what == "word by word":
        logits = []
        for t in range(words.shape[1]):
            step, state = answer(words[:, t:t + 1], state)
            logits.append(step)
        return torch.cat(logits, dim=1), state[1]
    logits, after = answer(words, state)
    if what == "state":
        return list(after)
    if what == "twice":
        return logits, answer(words, answer.init_state((outputs, hidden), lens))[0]
    return logits, after[1]
"""

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

EXERCISE = Exercise(
    id="seq2seq-decoder",
    title="A recurrent decoder with attention",
    names=("Seq2SeqAttentionDecoder",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    needs=("masked-softmax", "additive-attention"),
    drive=DRIVE,
    right=(
        Right("step by step", STEPS),
        Right("batch first, lazy layers", BATCH_FIRST),
        Right("time first, keys projected once", TIME_FIRST),
        Right("the word before the context", WORD_FIRST),
    ),
    mistakes=MISTAKES,
    conventions=(
        Convention(
            "order",
            {
                "context first": "the context comes before the embedding.",
                "embedding first": "you join the embedding before the context; ours is the context first, "
                "which is what trained weights of d2l expect.",
            },
        ),
        Convention(
            "layout",
            {
                "batch first": "enc_outputs of the state is (batch, source, num_hiddens).",
                "time first": "enc_outputs of your state is (source, batch, num_hiddens); ours has the batch "
                "first.",
            },
        ),
    ),
    words={"0": ("batch", "step", "vocab")},
    trials=(
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
        Trial(
            "train mode without dropout", trained, SIZES, kind="train mode", says="The default is dropout=0."
        ),
    ),
    probes=(
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
    ),
    hints=(
        "The logits, or the state afterwards, are not what the three formulas give.",
        "Follow one step: the query, the context, what enters the GRU, what leaves it.",
        "The query is the last layer's state of the step before, so it changes from step to step.",
        "For each word: attend with hidden[-1], join (context, embedding), one step of the GRU; then dense.",
    ),
)
