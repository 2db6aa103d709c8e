"""Effects of all heads on one answer: estimated from one backward pass against running each.

    python bench/experiments.py [--quick]

SmolLM2, one text and the same with one token exchanged, the difference of two scores at the end. At 512
tokens every head is run; beyond, some of them, and the time of all is reckoned from theirs.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from timing import PlainTable, parse_options, report
from torch import Tensor

from regard.experiments import patch_effects
from regard.experiments.objectives import Asked, noting
from regard.files.loading import load
from regard.tracing.interventions import Run

SAMPLE = 12  # heads that are run of a long text, drawn from the strongest half of the estimates


def _exchange(run: Run, name: str, head: int, source: Tensor) -> None:
    run.patch(layer=name, head=head, source=source)


def main() -> None:
    """Measure, print and write."""
    options = parse_options(__doc__)
    loaded = load("smollm2")
    lines = [
        ["tokens", "estimate", "one head run", "all 270 run", "speed-up", "heads compared", "rank agreement"]
    ]
    for n_token in (64,) if options.quick else (512, 4096):
        ids = torch.randint(0, 40_000, (n_token,), generator=torch.Generator().manual_seed(0))
        ids[-8:] = ids[n_token // 2 : n_token // 2 + 8]  # an induction to be found out
        other = ids.clone()
        other[n_token // 2 + 8] = 17
        answer = int(ids[n_token // 2 + 8])
        start = time.perf_counter()
        guessed = patch_effects(loaded, ids, other, answer=answer, against=17, estimate=True, verify=0)
        estimating = time.perf_counter() - start
        order = guessed.heads.abs().flatten().argsort(descending=True)
        everything = n_token <= 512
        chosen = order if everything else order[: len(order) // 2][:: len(order) // 2 // SAMPLE]
        asked = Asked.about(loaded, other, answer, 17, None)
        with torch.no_grad(), noting(loaded) as notes:
            loaded.model(ids[None])
        outputs = {name: note.out for name, note in notes.items() if note.out is not None}
        start, ran = time.perf_counter(), []
        for at in chosen.tolist():
            layer, head = divmod(at, guessed.heads.shape[1])
            name = guessed.layers[layer]
            exchange = partial(_exchange, name=name, head=head, source=outputs[name])
            change = asked.run(exchange)
            ran.append(change - guessed.corrupted)
        each = (time.perf_counter() - start) / len(ran)
        pairs = torch.stack([guessed.heads.flatten()[chosen], torch.tensor(ran, dtype=torch.float64)])
        ranks = torch.corrcoef(pairs.argsort().argsort().double())[0, 1]
        lines.append([str(n_token), f"{estimating:.1f} s", f"{each:.2f} s", f"{270 * each:.0f} s",
                      f"{270 * each / estimating:.0f} x", str(len(ran)), f"{float(ranks):.2f}"])  # fmt: skip
    note = "The estimate is one forward pass of either text and one backward pass; Spearman's correlation."
    report("Experiments", [PlainTable("All heads of SmolLM2 on one answer", lines, note)], options)


if __name__ == "__main__":
    main()
