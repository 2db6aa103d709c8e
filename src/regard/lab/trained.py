"""A trained model's heads against the same shape with random weights, and the two shapes of a map.

Rows are queries, columns are keys: in a row are the weights of what that token looks at.
"""

import torch
from torch import Tensor

from regard.files.loading import Loaded, load, untrained
from regard.heads import survey
from regard.lab.drawing import COLOURS, GREY
from regard.lab.spec import Lab, Measurement
from regard.lab.texts import TEXTS
from regard.registry import UNLABELLED
from regard.tracing import trace

CLAIM = """Training makes heads look at something: random weights of the same shape look nearly everywhere
alike. A GPT-type map is lower-triangular, a BERT-type map is full and not symmetric."""
PREDICTION = """Trained heads are surely less uniform and more often labelled than random ones; no weight lies
above the diagonal of SmolLM2's maps; MiniLM's have weight there and differ from their transposes."""


def _heads(lab: Lab, loaded: Loaded, name: str) -> tuple[Measurement, Measurement, list[float]]:
    """Mean uniformity over heads, the share that look at something that has a name, and every uniformity."""
    surveyed = survey(loaded, TEXTS[: 2 if lab.quick else 8], n_repeat=1, seed=lab.seed, progress=False)
    table = surveyed.measures["uniformity"]
    uniformities = sorted(table[~table.isnan()].tolist())
    labels = [head.label for head in surveyed.labels()]
    n_named = sum(label not in UNLABELLED for label in labels)
    uniform = lab.mean(f"uniformity of heads, {name}", uniformities)
    return uniform, lab.share(f"heads with a label, {name}", n_named, len(labels)), uniformities


def _maps(lab: Lab, title: str, loaded: Loaded, layer: int, *, causal: bool) -> Tensor:
    """The maps of a layer's heads, of which one is drawn."""
    traced = trace(loaded, TEXTS[0], layers=[layer])
    weights = torch.stack([traced.weights(0, head) for head in range(traced.layers[0].n_head)])
    # The head that looks most at single tokens other than the ends, where heads rest.
    busiest = weights[int(weights[:, :, 1:-1].amax(-1).mean(-1).argmax())]
    back = torch.ones_like(busiest, dtype=torch.bool).tril() if causal else None
    lab.draw.heat_map(title, busiest, traced.tokens[0], visible=back).tick_params(labelsize=5)
    return weights


def _on_the_future(weights: Tensor) -> float:
    return float(weights.triu(1).sum((1, 2)).max() / weights.shape[-1])


def run(lab: Lab) -> None:
    models = {name: load(name) for name in ("minilm", "smollm2")}
    ax = lab.draw.panel("Uniformity of every head", "entropy over its largest", "share of heads below")
    named: dict[str, Measurement] = {}
    for name, dashes in (("minilm", "-"), ("smollm2", "--"))[: 1 if lab.quick else 2]:
        uniform, labelled, spread = _heads(lab, models[name], name)
        flat, lost, others = _heads(lab, untrained(models[name], lab.seed), f"{name} random")
        named |= {f"{name}\ntrained": labelled, f"{name}\nrandom": lost}
        lab.below(f"{name}: trained heads are less uniform than random ones", uniform, flat)
        lab.above(f"{name}: more of them have a label", labelled, lost)
        for ordered, colour, kind in ((spread, COLOURS[0], "trained"), (others, GREY, "random")):
            share = [(place + 1) / len(ordered) for place in range(len(ordered))]
            ax.plot(ordered, share, dashes, color=colour, label=f"{name}, {kind}")
    lab.draw.bars("Heads with a label", named, "share")
    gpt = _maps(lab, "SmolLM2, one head", models["smollm2"], 3, causal=True)
    bert = _maps(lab, "MiniLM, one head", models["minilm"], 2, causal=False)
    crooked = ((bert - bert.mT).abs().sum((1, 2)) / (bert + bert.mT).sum((1, 2))).tolist()
    asymmetry = lab.mean("asymmetry of MiniLM's heads", crooked)
    future = lab.exact("MiniLM: largest weight of a head on later tokens", _on_the_future(bert))
    errors = [float((weights.sum(-1) - 1).abs().max()) for weights in (gpt, bert)]
    row_sums = lab.exact("largest error of a row's sum", max(errors))
    lab.below("each recovered row sums to 1, so nothing else was looked at", row_sums, 1e-4)
    lab.equal("GPT-type: every map is lower-triangular", _on_the_future(gpt), 0.0)
    lab.above("BERT-type: later tokens are looked at", future, 0.1)
    lab.above("BERT-type: maps are not symmetric", asymmetry, 0.1)
