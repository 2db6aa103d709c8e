"""One decoding step of multi-head, grouped and multi-query attention: its bytes, operations and time."""

from __future__ import annotations

import time

import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import softmax as attention
from regard.costs.model import Cost, Row, cost
from regard.lab.drawing import draw, finish, panels
from regard.lab.spec import Check, Experiment, Measurement, Result, above, equal
from regard.layers import attention as layers
from regard.layers import cache
from regard.layers.block import BlockConfig
from regard.models.transformer import TransformerConfig

BATCH, DIM, N_HEAD = 2, 256, 8
KINDS = {"multi-head": 8, "grouped": 2, "multi-query": 1}


def _costed(n_kv_head: int, n_cached: int) -> Cost:
    block = BlockConfig(model_dim=DIM, n_head=N_HEAD, n_kv_head=n_kv_head, ff_dim=1, attention_bias=False)
    config = TransformerConfig(vocab=1, block=block, n_decoder_layer=1, head="none")
    return cost(config, "decode", batch=BATCH, length=n_cached)


def _attention_rows(found: Cost) -> list[Row]:
    return [row for row in found.rows if not row.name.startswith(("ff ", "embedding"))]


@torch.no_grad()
def _step(n_kv_head: int, n_cached: int, n_time: int) -> tuple[int, int, int, list[float]]:
    """Bytes of the cache after a step, bytes of all its tensors, operations counted, and seconds."""
    layer = layers.MultiHeadAttention(DIM, N_HEAD, n_kv_head=n_kv_head, causal=True).eval()
    held = cache.LayerCache()
    layer(torch.randn(BATCH, n_cached, DIM), cache=held)
    x = torch.randn(BATCH, 1, DIM)
    seconds = []
    for _ in range(n_time):
        start = time.perf_counter()
        layer(x, cache=held)
        seconds.append(time.perf_counter() - start)
        held.crop(n_cached)
    layer(x, cache=held)
    kept = held.bytes
    k, v = held.k, held.v
    assert k is not None
    assert v is not None
    with FlopCounterMode(display=False) as counter:  # on the plain path, whose products it sees
        q = layers.split_heads(layer.query(x), N_HEAD)
        new = layer.key(x), layer.value(x)
        out = attention.attend(q, k, v, path="plain").out
        y = layer.out(layers.merge_heads(out))
    table = attention.weights(q, k)
    matrices = [each.weight for each in (layer.query, layer.key, layer.value, layer.out)]
    moved = [x, x, x, *matrices, q, *new, q, k, table, table, table, table, v, out, out, y]
    return kept, sum(each.nbytes for each in moved), counter.get_total_flops(), seconds


def run(quick: bool, seed: int) -> Result:
    contexts = (31, 127) if quick else (127, 511, 2047, 8191)
    n_time = 3 if quick else 30
    figure, (byte_ax, cache_ax, time_ax) = panels(
        "Bytes of one step", "Bytes of the cache", "Time of one step"
    )
    checks: list[Check] = []
    measured: list[Measurement] = []
    found: dict[str, list[tuple[int, int, int, list[float]]]] = {}
    for index, (kind, n_kv_head) in enumerate(KINDS.items()):
        found[kind] = [_step(n_kv_head, n, n_time) for n in contexts]
        formulas = [_costed(n_kv_head, n) for n in contexts]
        for n, (kept, moved, operations, seconds), said in zip(contexts, found[kind], formulas, strict=True):
            rows = _attention_rows(said)
            checks += [
                equal(f"{kind}, {n} cached: the cache's bytes are the formula's", kept, said.cache_bytes),
                equal(f"{kind}, {n} cached: bytes moved", moved, sum(row.n_byte for row in rows)),
                equal(f"{kind}, {n} cached: operations", operations, sum(row.n_operation for row in rows)),
            ]
            ordered = sorted(seconds)
            measured.append(
                Measurement(
                    f"time, {kind}, {n} cached",
                    ordered[len(ordered) // 2] * 1e6,
                    ordered[0] * 1e6,
                    ordered[-1 - len(ordered) // 4] * 1e6,
                    "us",
                )
            )
        draw(byte_ax, contexts, [float(each[1]) for each in found[kind]], kind, index)
        said_bytes = [float(sum(row.n_byte for row in _attention_rows(each))) for each in formulas]
        draw(byte_ax, contexts, said_bytes, "_formula", index, dashed=True)
        draw(cache_ax, contexts, [float(each[0]) for each in found[kind]], kind, index)
        draw(time_ax, contexts, measured[-len(contexts) :], kind, index)
    for ax, label in ((byte_ax, "bytes"), (cache_ax, "bytes"), (time_ax, "microseconds")):
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(contexts, [str(each) for each in contexts])
        finish(ax, "tokens in the cache", label)
    most, least = found["multi-head"], found["multi-query"]
    n_more = contexts[-1] - contexts[0]
    slopes = {kind: (each[-1][2] - each[0][2]) / n_more for kind, each in found.items()}
    ratio = most[-1][0] / least[-1][0]
    checks += [
        equal("multi-query divides the cache by the heads", ratio, N_HEAD),
        equal("a cached token costs both the same operations", slopes["multi-head"], slopes["multi-query"]),
    ]
    per_token = {kind: (each[-1][1] - each[0][1]) / n_more for kind, each in found.items()}
    logits = 4 * BATCH * N_HEAD * 4  # the scores of one more key: written, read, written, read
    one_head = 2 * BATCH * (DIM // N_HEAD) * 4
    checks += [
        equal("a cached token's bytes, multi-head: h keys and values, and the scores",
              per_token["multi-head"], N_HEAD * one_head + logits),
        equal("multi-query: one key and value, and the scores", per_token["multi-query"], one_head + logits),
    ]  # fmt: skip
    if not quick:
        fast, slow = measured[-1], measured[len(contexts) - 1]
        checks.append(above("at the longest context a multi-head step takes longer", slow, fast.value))
    return Result(
        (Measurement.exact("cache, multi-head over multi-query", ratio), *measured),
        tuple(checks),
        figure,
        f"multi-query keeps {ratio:.0f} times less than multi-head; at {contexts[-1]} cached tokens a step "
        f"moves {most[-1][1] / least[-1][1]:.1f} times fewer bytes for {least[-1][2] / most[-1][2]:.2f} of "
        "the operations",
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
