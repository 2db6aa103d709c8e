"""One decoding step of multi-head, grouped and multi-query attention: its bytes, operations and time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.attention.softmax import attend, weights
from regard.costs.model import cost
from regard.lab.measurement import Measurement, Number
from regard.lab.spec import Lab
from regard.layers.attention import MultiHeadAttention, merge_heads, split_heads
from regard.layers.block import BlockConfig
from regard.layers.cache import LayerCache
from regard.models.transformer import TransformerConfig

CLAIM = """A decoding step reads the whole cache: multi-query divides the cache and its share of the bytes by
the number of heads, at the same operations for each cached token."""
PREDICTION = """Bytes of cache and step, and operations, equal the cost model's formulas exactly, at every
context and number of key heads; each cached token costs h times fewer bytes of keys and values, and the
scores' bytes remain."""

BATCH, DIM, N_HEAD = 2, 256, 8
KINDS = {"multi-head": 8, "grouped": 2, "multi-query": 1}


class Step(NamedTuple):
    """One decoding step, counted."""

    cache: int  # bytes kept after it
    moved: int  # bytes of all its tensors
    operations: int


def _formula(n_kv_head: int, n_cached: int) -> Step:
    """The step as the cost model has it."""
    block = BlockConfig(model_dim=DIM, n_head=N_HEAD, n_kv_head=n_kv_head, ff_dim=1, attention_bias=False)
    config = TransformerConfig(vocab=1, block=block, n_decoder_layer=1, head="none")
    whole = cost(config, "decode", batch=BATCH, length=n_cached)
    rows = [row for row in whole.rows if not row.name.startswith(("ff ", "embedding"))]
    return Step(whole.cache_bytes, sum(row.n_byte for row in rows), sum(row.n_operation for row in rows))


@torch.no_grad()
def _step(n_kv_head: int, n_cached: int, n_time: int) -> tuple[Step, list[float]]:
    """The step of a real layer, and the microseconds it took some times, the fastest first."""
    layer = MultiHeadAttention(DIM, N_HEAD, n_kv_head=n_kv_head, causal=True).eval()
    cache = LayerCache()
    layer(torch.randn(BATCH, n_cached, DIM), cache=cache)
    x = torch.randn(BATCH, 1, DIM)
    times = []
    for _ in range(n_time):
        start = time.perf_counter()
        layer(x, cache=cache)
        times.append(1e6 * (time.perf_counter() - start))
        cache.crop(n_cached)
    layer(x, cache=cache)
    k, v = cache.k, cache.v
    assert k is not None
    assert v is not None
    with FlopCounterMode(display=False) as counter:  # on the plain path, whose products it sees
        q = split_heads(layer.query(x), N_HEAD)
        new = layer.key(x), layer.value(x)
        out = attend(q, k, v, path="plain").out
        y = layer.out(merge_heads(out))
    table = weights(q, k)
    matrices = [projection.weight for projection in (layer.query, layer.key, layer.value, layer.out)]
    moved = [x, x, x, *matrices, q, *new, q, k, table, table, table, table, v, out, out, y]
    step = Step(cache.bytes, sum(tensor.nbytes for tensor in moved), counter.get_total_flops())
    return step, sorted(times)


def run(lab: Lab) -> str:
    contexts = (31, 127) if lab.quick else (127, 511, 2047, 8191)
    steps: dict[str, list[Step]] = {}
    formulas: dict[str, list[Step]] = {}
    times: dict[str, list[Measurement]] = {}
    for kind, n_kv_head in KINDS.items():
        timed = [_step(n_kv_head, n, 3 if lab.quick else 30) for n in contexts]
        steps[kind], formulas[kind] = [step for step, _ in timed], [_formula(n_kv_head, n) for n in contexts]
        times[kind] = []
        for n, (step, ordered), formula in zip(contexts, timed, formulas[kind], strict=True):
            where = f"{kind}, {n} cached"
            median, quartile = ordered[len(ordered) // 2], ordered[-1 - len(ordered) // 4]
            times[kind].append(lab.keep(Measurement(f"time, {where}", median, ordered[0], quartile, "us")))
            lab.equal(f"{where}: the cache's bytes are the formula's", step.cache, formula.cache)
            lab.equal(f"{where}: bytes moved", step.moved, formula.moved)
            lab.equal(f"{where}: operations", step.operations, formula.operations)

    def panel(title: str, lines: Mapping[str, Sequence[Number]], unit: str) -> None:
        lab.draw.lines(title, contexts, lines, "tokens in the cache", unit, log_x=True, log_y=True)

    panel("Bytes of one step", {kind: [step.moved for step in steps[kind]] for kind in KINDS}, "bytes")
    for index, of_kind in enumerate(formulas.values()):
        lab.draw.predicted(contexts, [step.moved for step in of_kind], "_formula", index)
    panel("Bytes of the cache", {kind: [step.cache for step in steps[kind]] for kind in KINDS}, "bytes")
    panel("Time of one step", times, "microseconds")
    n_more = contexts[-1] - contexts[0]
    (first, *_, most), (few, *_, least) = steps["multi-head"], steps["multi-query"]
    ratio = lab.exact("cache, multi-head over multi-query", most.cache / least.cache)
    # What one more token in the cache adds to a step: its scores are written, read, written and read.
    logits, one_head = 4 * BATCH * N_HEAD * 4, 2 * BATCH * (DIM // N_HEAD) * 4
    added, small_added = (most.moved - first.moved) / n_more, (least.moved - few.moved) / n_more
    work, small_work = most.operations - first.operations, least.operations - few.operations
    lab.equal("multi-query divides the cache by the heads", ratio, N_HEAD)
    lab.equal("a cached token costs both the same operations", work / n_more, small_work / n_more)
    what = "a cached token's bytes, multi-head: h keys and values, and the scores"
    lab.equal(what, added, N_HEAD * one_head + logits)
    lab.equal("multi-query: one key and value, and the scores", small_added, one_head + logits)
    if not lab.quick:
        slow, fast = times["multi-head"][-1], times["multi-query"][-1]
        lab.above("at the longest context a multi-head step takes longer", slow, fast.value)
    lab.notes += [
        "Bytes and operations are counted from the step's tensors and by PyTorch; they decide the verdict. "
        "Times are medians with the fastest and the third quartile; a quick run only shows them."
    ]
    return (
        f"multi-query keeps {ratio:.0f} times less than multi-head; at {contexts[-1]} cached tokens a step "
        f"moves {most.moved / least.moved:.1f} times fewer bytes for "
        f"{least.operations / most.operations:.2f} of the operations"
    )
