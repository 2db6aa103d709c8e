"""One decoding step of multi-head, grouped and multi-query attention: its bytes, operations and time."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.attention.softmax import attend, weights
from regard.costs.model import cost
from regard.lab.drawing import draw, finish, panels
from regard.lab.spec import Check, Experiment, Measurement, Result, above, equal
from regard.layers.attention import MultiHeadAttention, merge_heads, split_heads
from regard.layers.block import BlockConfig
from regard.layers.cache import LayerCache
from regard.models.transformer import TransformerConfig

BATCH, DIM, N_HEAD = 2, 256, 8
KINDS = {"multi-head": 8, "grouped": 2, "multi-query": 1}


class Step(NamedTuple):
    """One decoding step, counted."""

    cache: int  # bytes kept after it
    moved: int  # bytes of all its tensors
    operations: int
    seconds: tuple[float, ...] = ()  # of some repetitions


def _formula(n_kv_head: int, n_cached: int) -> Step:
    """The step as the cost model has it."""
    block = BlockConfig(model_dim=DIM, n_head=N_HEAD, n_kv_head=n_kv_head, ff_dim=1, attention_bias=False)
    config = TransformerConfig(vocab=1, block=block, n_decoder_layer=1, head="none")
    whole = cost(config, "decode", batch=BATCH, length=n_cached)
    rows = [row for row in whole.rows if not row.name.startswith(("ff ", "embedding"))]
    return Step(whole.cache_bytes, sum(row.n_byte for row in rows), sum(row.n_operation for row in rows))


@torch.no_grad()
def _step(n_kv_head: int, n_cached: int, n_time: int) -> Step:
    """The step of a real layer."""
    layer = MultiHeadAttention(DIM, N_HEAD, n_kv_head=n_kv_head, causal=True).eval()
    cache = LayerCache()
    layer(torch.randn(BATCH, n_cached, DIM), cache=cache)
    x = torch.randn(BATCH, 1, DIM)
    seconds = []
    for _ in range(n_time):
        start = time.perf_counter()
        layer(x, cache=cache)
        seconds.append(time.perf_counter() - start)
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
    n_byte = sum(tensor.nbytes for tensor in moved)
    return Step(cache.bytes, n_byte, counter.get_total_flops(), tuple(sorted(seconds)))


def run(quick: bool, seed: int) -> Result:
    contexts = (31, 127) if quick else (127, 511, 2047, 8191)
    n_time = 3 if quick else 30
    figure, (byte_ax, cache_ax, time_ax) = panels(
        "Bytes of one step", "Bytes of the cache", "Time of one step"
    )
    checks: list[Check] = []
    measured: list[Measurement] = []
    steps: dict[str, list[Step]] = {}
    for index, (kind, n_kv_head) in enumerate(KINDS.items()):
        steps[kind] = [_step(n_kv_head, n, n_time) for n in contexts]
        formulas = [_formula(n_kv_head, n) for n in contexts]
        times = []
        for n, step, formula in zip(contexts, steps[kind], formulas, strict=True):
            where = f"{kind}, {n} cached"
            checks += [
                equal(f"{where}: the cache's bytes are the formula's", step.cache, formula.cache),
                equal(f"{where}: bytes moved", step.moved, formula.moved),
                equal(f"{where}: operations", step.operations, formula.operations),
            ]
            ordered = [1e6 * second for second in step.seconds]
            median, quartile = ordered[len(ordered) // 2], ordered[-1 - len(ordered) // 4]
            times.append(Measurement(f"time, {where}", median, ordered[0], quartile, "us"))
        measured += times
        draw(byte_ax, contexts, [step.moved for step in steps[kind]], kind, index)
        draw(byte_ax, contexts, [step.moved for step in formulas], "_formula", index, dashed=True)
        draw(cache_ax, contexts, [step.cache for step in steps[kind]], kind, index)
        draw(time_ax, contexts, times, kind, index)
    for ax, label in ((byte_ax, "bytes"), (cache_ax, "bytes"), (time_ax, "microseconds")):
        finish(ax, "tokens in the cache", label, doublings=contexts, log_y=True)
    n_more = contexts[-1] - contexts[0]
    # What one more token in the cache adds to a step.
    slopes = {
        kind: (counted[-1].operations - counted[0].operations) / n_more for kind, counted in steps.items()
    }
    added = {kind: (counted[-1].moved - counted[0].moved) / n_more for kind, counted in steps.items()}
    most, least = steps["multi-head"][-1], steps["multi-query"][-1]
    ratio = most.cache / least.cache
    logits = 4 * BATCH * N_HEAD * 4  # the scores of one more key: written, read, written, read
    one_head = 2 * BATCH * (DIM // N_HEAD) * 4
    checks += [
        equal("multi-query divides the cache by the heads", ratio, N_HEAD),
        equal("a cached token costs both the same operations", slopes["multi-head"], slopes["multi-query"]),
        equal("a cached token's bytes, multi-head: h keys and values, and the scores",
              added["multi-head"], N_HEAD * one_head + logits),
        equal("multi-query: one key and value, and the scores", added["multi-query"], one_head + logits),
    ]  # fmt: skip
    if not quick:
        fast, slow = measured[-1], measured[len(contexts) - 1]
        checks.append(above("at the longest context a multi-head step takes longer", slow, fast.value))
    return Result(
        (Measurement.exact("cache, multi-head over multi-query", ratio), *measured),
        checks,
        figure,
        f"multi-query keeps {ratio:.0f} times less than multi-head; at {contexts[-1]} cached tokens a step "
        f"moves {most.moved / least.moved:.1f} times fewer bytes for "
        f"{least.operations / most.operations:.2f} of the operations",
        notes=(
            "Bytes and operations are counted from the step's tensors and by PyTorch; they decide the "
            "verdict. Times are medians with the fastest and the third quartile; a quick run only shows "
            "them.",
        ),
    )


EXPERIMENT = Experiment(
    "decoding",
    "A decoding step reads the whole cache: multi-query divides the cache and its share of the bytes by the "
    "number of heads, at the same operations for each cached token.",
    "Bytes of cache and step, and operations, equal the cost model's formulas exactly, at every context "
    "and number of key heads; each cached token costs h times fewer bytes of keys and values, and the "
    "scores' bytes remain.",
    run,
)
