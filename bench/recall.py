"""Why attention exists: how far back a trained model can still find an answer.

    python bench/recall.py [--quick] [--rounds N] [--steps N]

Five encoder-decoders are trained on `recall` ("k3 17 k9 4 k1 8 ? k9" -> "4"): three whose decoder is given
the encoder's last state alone, and two that look at all of the source. Each answers the same held-out
questions, counted by how many tokens back the answer stood. The figure is docs/recall.png.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import matplotlib as mpl
from timing import PlainTable, parse_options, report

mpl.use("Agg")
from matplotlib import pyplot as plt

from regard.files.loading import load
from regard.train import Settings, train
from regard.train.score import answered
from regard.train.tasks import generated_task

KINDS: dict[str, dict[str, Any]] = {
    "RNN": {"cell": "rnn", "score": "none"},
    "LSTM": {"cell": "lstm", "score": "none"},
    "GRU": {"cell": "gru", "score": "none"},
    "RNN with attention": {"cell": "rnn", "score": "additive"},
    "GRU with attention": {"cell": "gru", "score": "additive"},
}
N_PAIR = 16
FIGURE = Path(__file__).parent.parent / "docs" / "recall.png"
COLOURS = ("#999999", "#e69f00", "#56b4e9", "#cc79a7", "#0072b2")  # told apart by everybody


@dataclass(frozen=True, slots=True)
class Curve:
    """Right answers by the number of tokens from the answer's place to the end."""

    name: str
    right: dict[int, tuple[int, int]]  # distance: (right, asked)
    seconds: float

    def share(self, low: int, high: int) -> float:
        """The part that is right of those asked from `low` to before `high` tokens back."""
        found = [each for distance, each in self.right.items() if low <= distance < high]
        return sum(right for right, _ in found) / max(1, sum(asked for _, asked in found))


def measured(name: str, n_step: int, n_question: int) -> Curve:
    """Train one kind and ask it."""
    with tempfile.TemporaryDirectory() as folder:
        given = {
            **KINDS[name],
            "bidirectional": KINDS[name]["score"] != "none",
            "symbols": N_PAIR,
            "min_words": 1,
            "max_words": N_PAIR,
            "steps": n_step,
            "eval_every": n_step,
            "save_every": n_step,
            "threads": 1,
            "tensorboard": False,
            "out": f"{folder}/run",
        }
        settings = Settings.of("recall", given)
        run = train(settings, quiet=True)
        task = generated_task(settings)
        pairs = [task.example(1, index, held_out=True) for index in range(n_question)]
        answers = answered(load(run.best), pairs)
        seconds = float(json.loads((run.folder / "result.json").read_text(encoding="utf-8"))["seconds"])
    right: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for (source, target), answer in zip(pairs, answers, strict=True):
        words = source.split()
        distance = len(words) - 1 - (words.index(words[-1]) + 1)
        n_right, n_asked = right[distance]
        right[distance] = n_right + (answer == target), n_asked + 1
    return Curve(name, dict(right), seconds)


def draw(curves: list[Curve], n_step: int) -> None:
    figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for curve, colour in zip(curves, COLOURS, strict=True):
        distances = sorted(curve.right)
        shares = [curve.right[each][0] / curve.right[each][1] for each in distances]
        ax.plot(distances, shares, color=colour, marker="o", markersize=3, label=curve.name)
    ax.axhline(1 / N_PAIR, color="#8c8c8c", linestyle=":", linewidth=1)
    ax.annotate("chance", (2, 1 / N_PAIR), fontsize=8, va="bottom", color="#5c5c5c")
    ax.set(
        xlabel="tokens from the answer to the end of the source",
        ylabel="share answered right",
        ylim=(0, 1.04),
    )
    ax.set_title(f"Recall after {n_step:,} updates", loc="left", fontsize=11)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
    figure.savefig(FIGURE, dpi=160)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--steps", type=int, default=2000)
    given, sys.argv[1:] = parser.parse_known_args()
    options = parse_options(__doc__)
    n_step = 20 if options.quick else given.steps
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(measured, name, n_step, 50 if options.quick else 4000) for name in KINDS]
        curves = [each.result() for each in futures]
    parts = ((2, 6), (6, 12), (12, 20), (20, 34))
    header = ["share right, by tokens back", *(f"{low} to {high - 1}" for low, high in parts), "training"]
    lines = [header]
    for curve in curves:
        shares = [f"{100 * curve.share(low, high):.0f} %" for low, high in parts]
        lines.append([curve.name, *shares, f"{curve.seconds:.0f} s"])
    if not options.quick:
        draw(curves, n_step)
    note = (
        f"1 to {N_PAIR} pairs of {N_PAIR} keys and values, {n_step:,} updates, one thread each; 4,000 "
        f"held-out questions, the same for all; chance is {100 / N_PAIR:.0f} %. The figure is "
        "docs/recall.png."
    )
    report("Recall", [PlainTable("Answers from far back", lines)], options, note)


if __name__ == "__main__":
    main()
