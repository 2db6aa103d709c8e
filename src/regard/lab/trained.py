"""A trained model's heads against the same shape with random weights, and the two shapes of a map."""

from __future__ import annotations

import torch

from regard.drawing.figures import heat_map
from regard.files.loading import Loaded, load, untrained
from regard.heads import survey
from regard.lab.drawing import COLOURS, GREY, bars, finish, panels
from regard.lab.spec import Check, Experiment, Measurement, Result, above, below, equal
from regard.lab.texts import TEXTS
from regard.tracing.take import trace

VAGUE = ("broadcast", "mixed", "none")  # labels that name nothing a head looks at


def _heads(loaded: Loaded, quick: bool, seed: int, name: str) -> tuple[Measurement, Measurement, list[float]]:
    """Mean uniformity over heads, the share that look at something that has a name, and every uniformity."""
    measured = survey(loaded, TEXTS[: 2 if quick else 8], n_repeat=1, seed=seed, progress=False)
    table = measured.measures["uniformity"]
    uniformities = table[~table.isnan()].tolist()
    labels = [head.label for head in measured.labels()]
    return (
        Measurement.mean(f"uniformity of heads, {name}", uniformities),
        Measurement.share(f"heads with a label, {name}", sum(x not in VAGUE for x in labels), len(labels)),
        uniformities,
    )


def _map(loaded: Loaded, layer: int) -> tuple[torch.Tensor, float, float, list[float], list[str]]:
    """One head's map, its weight on the future, the error of its row sums, asymmetry of all heads, tokens."""
    traced = trace(loaded, TEXTS[0], layers=[layer])
    weights = torch.stack([traced.weights(0, head) for head in range(traced.layers[0].n_head)])
    future = float(weights.triu(1).sum((1, 2)).max() / weights.shape[-1])
    sums = float((weights.sum(-1) - 1).abs().max())
    crooked = ((weights - weights.mT).abs().sum((1, 2)) / (weights + weights.mT).sum((1, 2))).tolist()
    # The head that looks most at single tokens other than the ends, where heads rest.
    busiest = int(weights[:, :, 1:-1].amax(-1).mean(-1).argmax())
    return weights[busiest], future, sums, crooked, list(traced.tokens[0])


def run(quick: bool, seed: int) -> Result:
    models = {"minilm": load("minilm"), "smollm2": load("smollm2")}
    figure, (spread_ax, label_ax, gpt_ax, bert_ax) = panels(
        "Uniformity of every head", "Heads with a label", "SmolLM2, one head", "MiniLM, one head", width=3.9
    )
    checks: list[Check] = []
    measured: list[Measurement] = []
    compared = ("minilm",) if quick else ("minilm", "smollm2")
    shown: dict[str, Measurement] = {}
    for name in compared:
        uniform, named, spread = _heads(models[name], quick, seed, name)
        flat, lost, others = _heads(untrained(models[name], seed), quick, seed, f"{name} random")
        measured += [uniform, flat, named, lost]
        shown |= {f"{name}\ntrained": named, f"{name}\nrandom": lost}
        checks += [
            below(f"{name}: trained heads are less uniform than random ones", uniform, flat),
            above(f"{name}: more of them have a label", named, lost),
        ]
        line = "-" if name == "minilm" else "--"
        for values, colour, kind in ((spread, COLOURS[0], "trained"), (others, GREY, "random")):
            ordered = sorted(values)
            share = [(i + 1) / len(ordered) for i in range(len(ordered))]
            spread_ax.plot(ordered, share, line, color=colour, label=f"{name}, {kind}")
    finish(spread_ax, "entropy over its largest", "share of heads below")
    bars(label_ax, list(shown), list(shown.values()))
    finish(label_ax, "", "share", legend=False)
    gpt, gpt_future, gpt_sums, _, gpt_tokens = _map(models["smollm2"], 3)
    bert, bert_future, bert_sums, crooked, bert_tokens = _map(models["minilm"], 2)
    back = torch.ones_like(gpt, dtype=torch.bool).tril()
    for ax, weights, tokens, seen in ((gpt_ax, gpt, gpt_tokens, back), (bert_ax, bert, bert_tokens, None)):
        ax.grid(False)
        heat_map(weights, tokens, tokens, ax=ax, visible=seen)
        ax.tick_params(labelsize=5)
    asymmetry = Measurement.mean("asymmetry of MiniLM's heads", crooked)
    future = Measurement.exact("MiniLM: largest weight of a head on later tokens", bert_future)
    row_sums = Measurement.exact("largest error of a row's sum", max(gpt_sums, bert_sums))
    checks += [
        equal("GPT-type: every map is lower-triangular", gpt_future, 0.0),
        below("each recovered row sums to 1, so nothing else was looked at", row_sums, 1e-4),
        above("BERT-type: later tokens are looked at", future, 0.1),
        above("BERT-type: maps are not symmetric", asymmetry, 0.1),
    ]
    measured += [asymmetry, future, row_sums]
    return Result(
        measured,
        checks,
        figure,
        f"MiniLM's heads have {measured[0].value:.2f} of the largest entropy, random ones "
        f"{measured[1].value:.2f}; {measured[2].value:.0%} have a label against {measured[3].value:.0%}; "
        f"SmolLM2's maps have nothing above the diagonal, MiniLM's have up to {bert_future:.0%} there and "
        f"are not symmetric (asymmetry {asymmetry.value:.2f})",
        notes=("Rows are queries, columns are keys: in a row are the weights of what that token looks at.",),
    )


EXPERIMENT = Experiment(
    "trained",
    "Training makes heads look at something: random weights of the same shape look nearly everywhere alike. "
    "A GPT-type map is lower-triangular, a BERT-type map is full and not symmetric.",
    "Trained heads are surely less uniform and more often labelled than random ones; no weight lies above "
    "the diagonal of SmolLM2's maps; MiniLM's have weight there and differ from their transposes.",
    run,
    needs=("minilm", "smollm2"),
)
