"""All heads of SmolLM2 switched off, each exactly: as multiples of one plain forward pass of the same text.

    python bench/experiments.py [--quick]
    REGARD_LENS=env/bin/python python bench/experiments.py    beside TransformerLens 2.16.1, which is in env

A plain forward pass gives the scores after the last token (`logits="last"`). Both are timed in the same run,
with one thread and with two. One by one, each head in a run of its own, and TransformerLens are timed on 27
heads, spread over all layers, and their effects are compared with ours.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import THREADS, PlainTable, parse_options, report

from regard.experiments import HeadGate, PredictionTarget, RowEngine, why
from regard.files.loading import Loaded, load, save
from regard.heads.model import layers_of
from regard.tracing.interventions import intervene

PROMPT = "The capital of France is"
FILLER = "The river runs past the old mill, and the road follows it through the valley to the next town. "
GOALS = {5: 40, 64: 130, 512: 170}  # plain forward passes, of all 270 heads
WHY_GOAL = 80
SAMPLE = 27


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _text(loaded: Loaded, n_token: int) -> list[int]:
    """The prompt, after as much other text as fills it up to a length."""
    assert loaded.tokenizer is not None  # SmolLM2 has one
    prompt, filler = loaded.tokenizer.encode(PROMPT), loaded.tokenizer.encode(FILLER)
    before = (filler * (n_token // len(filler) + 1))[: n_token - len(prompt)]
    return before + prompt


def _in_lens(loaded: Loaded, question: dict[str, object], threads: int) -> dict[str, Any] | None:
    """What TransformerLens says of the same heads, where REGARD_LENS names a Python that has it."""
    python = os.environ.get("REGARD_LENS")
    if python is None:
        return None
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        save(loaded, folder)
        command = [python, str(Path(__file__).parent / "peers" / "lens.py"), folder, str(threads)]
        done = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True, env=clean)
    if done.returncode:
        raise SystemExit(f"TransformerLens failed: {done.stderr[-1500:]}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


@torch.no_grad()
def _heads(loaded: Loaded, n_token: int, threads: int, lens: bool) -> list[str]:
    """One row of the table: all heads of a text, and a sample of them by other means."""
    torch.set_num_threads(threads)
    ids = torch.tensor([_text(loaded, n_token)])
    heads = [(name, head) for name, numbers in layers_of(loaded).items() for head in numbers]
    changes = [(HeadGate(name, (head,)),) for name, head in heads]
    asked = PredictionTarget.about(loaded, ids)

    def plain() -> object:
        return loaded.model(ids, logits="last")

    for _ in range(3):
        plain()
    before = [_seconds(plain) for _ in range(5)]
    start = time.perf_counter()
    engine = RowEngine(asked.loaded, asked.given, asked.reading)
    ran = engine.run(changes)
    ours = time.perf_counter() - start
    forward = statistics.median([*before, *(_seconds(plain) for _ in range(5))])
    moved = ran.scores[:, 0] - engine.unchanged[0]
    sample = [index * len(heads) // SAMPLE for index in range(SAMPLE)]
    start, apart = time.perf_counter(), 0.0
    for index in sample:
        name, head = heads[index]
        with intervene(loaded) as run:
            run.gate(layer=name, head=head, by=0.0)
            alone = float(asked.score(loaded.model(ids, logits="last").logits[0, -1]))
        apart = max(apart, abs(alone - float(ran.scores[index, 0])))
    one_by_one = (time.perf_counter() - start) / SAMPLE * len(heads)
    beside = "not asked"
    if lens:
        n_head = len(heads) // len(layers_of(loaded))
        question = {
            "text": ids[0].tolist(),
            "token": asked.token,
            "off": [divmod(at, n_head) for at in sample],
        }
        said = _in_lens(loaded, question, threads)
        if said is not None:
            theirs = said["each"] * len(heads)
            effects = torch.tensor(said["effects"], dtype=torch.float64)
            beside = (
                f"{theirs / forward:.0f}, effects apart {float((effects - moved[sample]).abs().max()):.1e}"
            )
    ratio, goal = ours / forward, GOALS[n_token]
    verdict = "met" if ratio <= goal else "missed"
    return [
        str(ids.shape[1]),
        str(threads),
        f"{1000 * forward:.0f} ms",
        f"{ours:.2f} s",
        f"{verdict}: {ratio:.0f} (goal {goal})",
        f"{one_by_one / forward:.0f}",
        f"{apart:.1e}",
        beside,
    ]


@torch.no_grad()
def _why(loaded: Loaded, threads: int) -> list[str]:
    """`why` of the five-token prompt, all it does."""
    torch.set_num_threads(threads)
    ids = torch.tensor([_text(loaded, 5)])
    for _ in range(3):
        loaded.model(ids, logits="last")
    before = [_seconds(lambda: loaded.model(ids, logits="last")) for _ in range(5)]
    ours = _seconds(lambda: why(loaded, PROMPT))
    after = [_seconds(lambda: loaded.model(ids, logits="last")) for _ in range(5)]
    forward = statistics.median([*before, *after])
    ratio = ours / forward
    verdict = "met" if ratio <= WHY_GOAL else "missed"
    return [
        str(threads),
        f"{1000 * forward:.0f} ms",
        f"{ours:.2f} s",
        f"{verdict}: {ratio:.0f} (goal {WHY_GOAL})",
    ]


def main() -> None:
    """Measure, print and write."""
    options = parse_options(__doc__)
    loaded = load("smollm2")
    lengths = (5,) if options.quick else options.lengths(tuple(GOALS))
    threads = sorted({1, THREADS})
    header = [
        "tokens",
        "threads",
        "one forward",
        "all 270 heads",
        "in forwards",
        "one by one",
        "apart",
        "TransformerLens",
    ]
    lines, whys = [header], [["threads", "one forward", "why", "in forwards"]]
    cases = [(n_token, n_thread) for n_token in lengths for n_thread in threads]
    lines += [_heads(loaded, n_token, n_thread, lens=n_thread == threads[-1]) for n_token, n_thread in cases]
    whys += [_why(loaded, n_thread) for n_thread in threads]
    note = (
        "In forwards: multiples of one plain forward pass of the text. One by one and TransformerLens are "
        f"reckoned from {SAMPLE} heads; apart: largest difference of a head's score from a run of its own."
    )
    tables = [
        PlainTable("All heads of SmolLM2 switched off, each exactly", lines, note),
        PlainTable("`why` of a five-token prompt: heads, positions, edges", whys),
    ]
    report("Experiments", tables, options)


if __name__ == "__main__":
    main()
