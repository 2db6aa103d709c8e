"""Effects of all heads on one answer: estimated from one backward pass against running each.

    python bench/experiments.py [--quick]
    REGARD_LENS=env/bin/python python bench/experiments.py    beside TransformerLens 2.16.1, which is in env

SmolLM2, one text and the same with one token exchanged, the difference of two scores at the end. The heads
that are run are spread over all ranks of the estimate; the time of all is reckoned from theirs.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import THREADS, PlainTable, parse_options, report
from torch import Tensor

from regard.experiments import patch_effects
from regard.experiments.answers import Asked
from regard.files.loading import Loaded, load, save
from regard.heads.model import head_outputs
from regard.tracing.interventions import InterventionRun

SAMPLE = {64: 9, 512: 90, 4096: 6}  # heads that are run, by length
IN_LENS = 18  # heads that TransformerLens runs at the first length
OTHER = 17  # the token that is exchanged for the answer


def _exchange(run: InterventionRun, name: str, head: int, source: Tensor) -> None:
    run.patch(layer=name, head=head, source=source)


def _every(order: list[int], n: int) -> list[int]:
    """`n` heads spread over all ranks, the strongest first."""
    return [order[index * len(order) // n] for index in range(min(n, len(order)))]


def _in_lens(loaded: Loaded, question: dict[str, object]) -> dict[str, Any] | None:
    """What TransformerLens says of the same heads, where REGARD_LENS names a Python that has it."""
    python = os.environ.get("REGARD_LENS")
    if python is None:
        return None
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        save(loaded, folder)
        command = [python, str(Path(__file__).parent / "peers" / "lens.py"), folder, str(THREADS)]
        done = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True, env=clean)
    if done.returncode:
        raise SystemExit(f"TransformerLens failed: {done.stderr[-1500:]}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def main() -> None:
    """Measure, print and write."""
    options = parse_options(__doc__)
    torch.set_num_threads(THREADS)
    loaded = load("smollm2")
    header = ["tokens", "estimate", "one head run", "all 270 run", "speed-up", "heads run", "rank agreement"]
    lines, lens = [header], None
    lengths = (64,) if options.quick else options.lengths((512, 4096))
    for n_token in lengths:
        ids = torch.randint(0, 40_000, (n_token,), generator=torch.Generator().manual_seed(0))
        ids[-8:] = ids[n_token // 2 : n_token // 2 + 8]  # an induction to be found out
        other, place = ids.clone(), n_token // 2 + 8
        answer, other[place] = int(ids[place]), OTHER
        start = time.perf_counter()
        guessed = patch_effects(loaded, ids, other, answer=answer, against=OTHER, estimate=True, verify=0)
        estimating = time.perf_counter() - start
        order = guessed.heads.abs().flatten().argsort(descending=True).tolist()
        chosen = _every(order, SAMPLE[n_token])
        asked = Asked.about(loaded, other, answer, OTHER, None)
        with torch.no_grad(), head_outputs(loaded) as outputs:
            loaded.model(ids[None])
        start, ran = time.perf_counter(), dict[int, float]()
        for at in chosen:
            layer, head = divmod(at, guessed.heads.shape[1])
            name = guessed.layers[layer]
            exchange = partial(_exchange, name=name, head=head, source=outputs[name])
            ran[at] = asked.run(exchange) - guessed.corrupted
        each = (time.perf_counter() - start) / len(ran)
        pairs = torch.stack([guessed.heads.flatten()[chosen], torch.tensor(list(ran.values())).double()])
        ranks = torch.corrcoef(pairs.argsort().argsort().double())[0, 1]
        lines.append([str(n_token), f"{estimating:.1f} s", f"{each:.2f} s", f"{270 * each:.0f} s",
                      f"{270 * each / estimating:.0f} x", str(len(ran)), f"{float(ranks):.2f}"])  # fmt: skip
        if lens is None:
            asked_of = _every(chosen, min(IN_LENS, len(chosen)))
            heads = [divmod(at, guessed.heads.shape[1]) for at in asked_of]
            question = {"clean": ids.tolist(), "corrupted": other.tolist(), "heads": heads}
            lens = _in_lens(loaded, {**question, "answer": answer, "against": OTHER})
            if lens is not None:
                effects = torch.tensor(lens["effects"]) - torch.tensor([ran[at] for at in asked_of])
                lens |= {
                    "tokens": n_token,
                    "heads": len(heads),
                    "ours": each,
                    "apart": float(effects.abs().max()),
                }
    note = "The estimate is one forward pass of either text and one backward pass; Spearman's correlation."
    tables = [PlainTable("All heads of SmolLM2 on one answer", lines, note)]
    if lens is not None:
        words = ["tokens", "heads", "one head, ours", "one head, TransformerLens", "ratio", "effects apart"]
        numbers = [str(lens["tokens"]), str(lens["heads"]), f"{lens['ours']:.2f} s", f"{lens['each']:.2f} s",
                   f"{lens['ours'] / lens['each']:.2f} x", f"{lens['apart']:.1e}"]  # fmt: skip
        compared = [words, numbers]
        tables.append(PlainTable("One head exchanged, beside TransformerLens 2.16.1", compared))
    report("Experiments", tables, options)


if __name__ == "__main__":
    main()
