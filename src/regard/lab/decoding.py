"""One decoding step of multi-head, grouped and multi-query attention: its bytes, operations and time.

Bytes and operations are counted from the step's tensors and by PyTorch; they decide the verdict. Times are
medians with the fastest and the third quartile; a quick run only shows them.
"""

import time

import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import attend, weights
from regard.costs import cost
from regard.lab.spec import Lab, Measurement
from regard.layers import BlockConfig, LayerCache, MultiHeadAttention, merge_heads, split_heads
from regard.models import TransformerConfig

CLAIM = """A decoding step reads the whole cache: multi-query divides the cache and its share of the bytes by
the number of heads, at the same operations for each cached token."""
PREDICTION = """Bytes of cache and step, and operations, equal the cost model's formulas exactly, at every
context and number of key heads; each cached token costs h times fewer bytes of keys and values, and the
scores' bytes remain."""

BATCH, DIM, N_HEAD = 2, 256, 8
KINDS = {"multi-head": 8, "grouped": 2, "multi-query": 1}
UNITS = {"bytes moved": "bytes", "bytes of the cache": "bytes", "operations": "operations"}  # of a step


def _formula(n_kv_head: int, n_cached: int) -> tuple[int, int, int]:
    """Bytes moved, bytes of the cache and operations of the step, as the cost model has them."""
    block = BlockConfig(model_dim=DIM, n_head=N_HEAD, n_kv_head=n_kv_head, ff_dim=1, attention_bias=False)
    config = TransformerConfig(vocab=1, block=block, n_decoder_layer=1, lm_head="none")
    whole = cost(config, "decode", batch=BATCH, length=n_cached)
    rows = [row for row in whole.rows if not row.name.startswith(("ff ", "embedding"))]
    return sum(row.n_byte for row in rows), whole.cache_bytes, sum(row.n_operation for row in rows)


@torch.no_grad()
def _step(n_kv_head: int, n_cached: int, n_time: int) -> tuple[tuple[int, int, int], list[float]]:
    """The same of a real layer, counted, and the microseconds it took some times, the fastest first."""
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
    n_moved = sum(tensor.nbytes for tensor in moved)
    return (n_moved, cache.bytes, counter.get_total_flops()), sorted(times)


def run(lab: Lab) -> None:
    contexts = (31, 127) if lab.quick else (127, 511, 2047, 8191)
    counted: dict[str, dict[str, list[int]]] = {what: {kind: [] for kind in KINDS} for what in UNITS}
    times: dict[str, list[Measurement]] = {kind: [] for kind in KINDS}
    for kind, n_kv_head in KINDS.items():
        for n in contexts:
            step, ordered = _step(n_kv_head, n, 3 if lab.quick else 30)
            median, quartile = ordered[len(ordered) // 2], ordered[-1 - len(ordered) // 4]
            name = f"time, {kind}, {n} cached"
            times[kind].append(lab.keep(Measurement(name, median, ordered[0], quartile, "us")))
            for what, number, formula in zip(UNITS, step, _formula(n_kv_head, n), strict=True):
                counted[what][kind].append(number)
                lab.equal(f"{kind}, {n} cached: {what} as the formula has it", number, formula)
    x_label = "tokens in the cache"
    for what, unit in UNITS.items():
        lab.draw.lines(f"One step: {what}", contexts, counted[what], x_label, unit, log="xy")
    lab.draw.lines("One step: time", contexts, times, x_label, "microseconds", log="xy")
    if not lab.quick:
        slow, fast = times["multi-head"][-1], times["multi-query"][-1]
        lab.above("at the longest context a multi-head step takes longer", slow, fast)

    most, least = (counted["bytes of the cache"][kind][-1] for kind in ("multi-head", "multi-query"))
    ratio = lab.exact("cache, multi-head over multi-query", most / least)
    lab.equal("multi-query divides the cache by the heads", ratio, N_HEAD)
    # What one more token in the cache adds to a step: its scores are written, read, written and read.
    (work, small_work), (added, small_added) = (
        [
            (counted[what][kind][-1] - counted[what][kind][0]) / (contexts[-1] - contexts[0])
            for kind in ("multi-head", "multi-query")
        ]
        for what in ("operations", "bytes moved")
    )
    scores, one_head = 4 * BATCH * N_HEAD * 4, 2 * BATCH * (DIM // N_HEAD) * 4
    lab.equal("a cached token costs both the same operations", work, small_work)
    lab.equal("a cached token's bytes: h keys and values, and the scores", added, N_HEAD * one_head + scores)
    lab.equal("multi-query: one key and value, and the scores", small_added, one_head + scores)
