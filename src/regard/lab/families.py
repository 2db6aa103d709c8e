"""GPT, BERT, Llama and T5 side by side: where each may look, how it knows positions, what its heads do.

Where they may look and how they know positions is seen with random weights, which change neither. T5 has no
trained model here.
"""

import torch
from torch import Tensor

from regard.attention import ScoreRule
from regard.files.loading import load
from regard.heads import measure
from regard.lab.drawing import COLOURS
from regard.lab.spec import Lab
from regard.lab.texts import TEXTS
from regard.models import Transformer
from regard.models.families import FAMILIES, initialise
from regard.tracing import LayerTrace, trace

CLAIM = """GPT and Llama look back only, BERT everywhere, T5 everywhere in its encoder and back in its
decoder; GPT-2 and BERT know absolute positions, Llama and T5 distances."""
PREDICTION = """Changing a token changes exactly the outputs that may see it; the scores of a repeated token
depend on distance alone for rotary and relative positions and not for learned ones; a trained decoder rests
on its first token."""

LENGTH, VOCAB = 9, 23
POSITIONS = {"gpt2": "learned", "bert": "learned", "llama": "rotary", "t5": "relative"}
MEASURES = {"first": "first\ntoken", "previous": "token\nbefore", "same": "itself", "uniformity": "entropy"}


def _model(family: str, seed: int) -> Transformer:
    sizes = {"vocab": VOCAB, "n_position": 31, "n_encoder_layer": 2, "n_decoder_layer": 2}
    sizes |= {"block.model_dim": 24, "block.n_head": 3, "block.qk_dim": 8, "block.ff_dim": 48}
    return initialise(Transformer(FAMILIES[family].sized(sizes)), seed).eval().double()


@torch.no_grad()
def _reached(model: Transformer, before: tuple[Tensor, ...] = (), after: tuple[Tensor, ...] = ()) -> Tensor:
    """(output, input): whether changing a token changes an output's vector at all.

    `before` and `after` are what the model reads beside: a source, or a target.
    """
    tokens = torch.randint(VOCAB - 1, (1, LENGTH))
    changed = tokens.repeat(LENGTH, 1)
    changed.diagonal().add_(1)  # in each row another
    out = model(*before, tokens, *after).hidden
    others = [model(*before, row[None], *after).hidden for row in changed]
    reached: Tensor = (torch.cat(others) != out).any(-1)
    return reached.T


@torch.no_grad()
def _absolute(family: str, seed: int) -> float:
    """For one token again and again: the share of the scores' variance that distance does not explain."""
    target = [[5] * 3] if family == "t5" else None
    layer = trace(_model(family, seed), torch.full((1, LENGTH), 5), target=target).layers[0]
    assert isinstance(layer, LayerTrace)
    rule = ScoreRule(scale=layer.rule.scale, bias=layer.rule.bias)  # all pairs, whether visible or not
    table = rule.scores(layer.q, layer.k)[0]
    left = torch.zeros_like(table)
    for offset in range(1 - LENGTH, LENGTH):
        on = table.diagonal(offset, 1, 2)
        left.diagonal(offset, 1, 2).copy_(on - on.mean(-1, keepdim=True))
    return float(left.square().sum() / (table - table.mean((1, 2), keepdim=True)).square().sum())


def run(lab: Lab) -> None:
    t5, (source, target) = _model("t5", lab.seed), torch.randint(VOCAB, (2, 1, LENGTH))
    reached = {name: _reached(_model(name, lab.seed)) for name in ("gpt2", "llama", "bert")} | {
        "t5 encoder": _reached(t5),
        "t5 decoder": _reached(t5, before=(source,)),
        "t5 decoder to encoder": _reached(t5, after=(target,)),
    }
    full = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    for name, seen in reached.items():
        looks_back = name in ("gpt2", "llama", "t5 decoder")
        n_wrong = int((seen != (full.tril() if looks_back else full)).sum())
        kind = "itself and what came before" if looks_back else "everything"
        lab.equal(f"{name}: an output depends on {kind}; pairs that differ", n_wrong, 0)
    shares = [float(seen.double().mean()) for seen in reached.values()]
    ax = lab.draw.panel("Pairs that can be seen", "share of (output, input) pairs")
    ax.barh(range(len(shares)), shares, color=COLOURS[0], height=0.6)
    ax.set_yticks(range(len(shares)), list(reached), fontsize=8)
    ax.invert_yaxis()
    left = {
        name: lab.exact(f"{name}: share not explained by distance", _absolute(name, lab.seed))
        for name in POSITIONS
    }
    for name in ("gpt2", "bert"):
        lab.above(f"{name}: learned positions are absolute", left[name], 0.1)
    for name in ("llama", "t5"):
        lab.below(f"{name}: only the distance matters", left[name], 1e-9)
    bars = {f"{name}\n{POSITIONS[name]}": share for name, share in left.items()}
    lab.draw.bars("What distance does not explain", bars, "share of the scores' variance")
    means = {}
    for name in ("minilm", "smollm2"):
        loaded = load(name)
        measures = measure(trace(loaded, TEXTS[0]))
        means[f"{name} ({loaded.facts.family})"] = [
            lab.mean(f"{name}: {kind}", measures[kind][~measures[kind].isnan()].tolist()) for kind in MEASURES
        ]
    lab.draw.grouped_bars("Heads of trained models", list(MEASURES.values()), means, "mean over heads")
    (encoder, *_), (sink, *_) = means.values()
    lab.above("a trained decoder rests on its first token more than an encoder", sink, encoder)
