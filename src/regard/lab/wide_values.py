"""Values twice as wide as keys: what must change, and what it costs."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.attention.softmax import attend
from regard.costs.model import cost
from regard.lab.drawing import finish, grouped_bars, panels
from regard.lab.spec import Check, Experiment, Measurement, Result, below, equal
from regard.layers.attention import MultiHeadAttention, merge_heads, split_heads
from regard.layers.block import BlockConfig
from regard.layers.cache import LayerCache
from regard.models.transformer import TransformerConfig

DIM, N_HEAD, BATCH, LENGTH = 24, 4, 3, 11
QK_DIM = DIM // N_HEAD


def _by_hand(layer: MultiHeadAttention, x: torch.Tensor) -> torch.Tensor:
    """The layer's output head by head, from slices of its matrices: nothing is split or merged."""
    out = torch.zeros_like(x)
    for head in range(N_HEAD):
        keys = slice(head * QK_DIM, (head + 1) * QK_DIM)
        values = slice(head * layer.v_dim, (head + 1) * layer.v_dim)
        q, k = x @ layer.query.weight[keys].T, x @ layer.key.weight[keys].T
        weights = torch.softmax(q @ k.mT / QK_DIM**0.5, -1)
        out = out + weights @ (x @ layer.value.weight[values].T) @ layer.out.weight[:, values].T
    return out


def _cost(v_dim: int) -> dict[str, int]:
    """What the cost model says of one layer."""
    block = BlockConfig(
        model_dim=DIM, n_head=N_HEAD, v_dim=v_dim, qk_dim=QK_DIM, ff_dim=1, attention_bias=False
    )
    config = TransformerConfig(vocab=1, block=block, n_decoder_layer=1, head="none")
    whole = cost(config, "prefill", batch=BATCH, length=LENGTH)
    rows = [row for row in whole.rows if not row.name.startswith(("ff ", "embedding"))]
    return {
        "parameters": sum(row.weights.value(whole.sizes) for row in rows),
        "operations": sum(row.n_operation for row in rows),
        "cache": whole.cache_bytes,
    }


@torch.no_grad()
def _counted(v_dim: int) -> tuple[dict[str, int], float, tuple[int, ...]]:
    """Parameters, operations and cache of a real layer, its error against the definition, and its shape."""
    layer = MultiHeadAttention(DIM, N_HEAD, v_dim=v_dim).double()
    x = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64)
    error = float((layer(x) - _by_hand(layer, x)).abs().max())
    cache = LayerCache()
    layer.float()
    single = x.float()
    with FlopCounterMode(display=False) as counter:
        q, k, v = (split_heads(project(single), N_HEAD) for project in (layer.query, layer.key, layer.value))
        out = layer.out(merge_heads(attend(q, k, v, path="plain").out))
    layer(single, cache=cache)
    counted = {
        "parameters": sum(weight.numel() for weight in layer.parameters()),
        "operations": counter.get_total_flops(),
        "cache": cache.bytes,
    }
    return counted, error, tuple(out.shape)


def run(quick: bool, seed: int) -> Result:
    widths = (QK_DIM, 2 * QK_DIM) if quick else (QK_DIM, 2 * QK_DIM, 4 * QK_DIM)
    figure, (ax,) = panels("Cost against values as wide as keys", width=6.0)
    checks: list[Check] = []
    measured: list[Measurement] = []
    layers = {v_dim: _counted(v_dim) for v_dim in widths}
    plain, _, shape = layers[QK_DIM]
    for v_dim, (counted, error, out_shape) in layers.items():
        formula, times = _cost(v_dim), v_dim / QK_DIM
        for what, value in counted.items():
            checks.append(equal(f"v_dim {v_dim}: {what} as the cost model has it", value, formula[what]))
            ratio = value / plain[what]
            measured.append(Measurement.exact(f"{what}, v_dim {v_dim}, against {QK_DIM}", ratio))
        checks += [
            below(f"v_dim {v_dim}: the output is the definition's, head by head",
                  Measurement.exact(f"error, v_dim {v_dim}", error), 1e-12),
            equal(f"v_dim {v_dim}: the output keeps the model's shape", int(out_shape == shape), 1),
            equal(f"v_dim {v_dim}: parameters times (1 + {times:g}) / 2",
                  counted["parameters"] / plain["parameters"], (1 + times) / 2, rounding=1e-12),
            equal(f"v_dim {v_dim}: the cache likewise",
                  counted["cache"] / plain["cache"], (1 + times) / 2, rounding=1e-12),
        ]  # fmt: skip
    ratios = {
        v_dim: {what: counted[what] / plain[what] for what in plain}
        for v_dim, (counted, _, _) in layers.items()
    }
    groups = {f"v_dim {v_dim}": list(of_width.values()) for v_dim, of_width in ratios.items()}
    grouped_bars(ax, list(plain), groups, numbers=True)
    finish(ax, "", f"times that of v_dim {QK_DIM}")
    wide = ratios[2 * QK_DIM]
    return Result(
        measured,
        checks,
        figure,
        f"with values twice as wide the layer has {wide['parameters']:.2f} times the "
        f"parameters, {wide['operations']:.2f} times the operations and {wide['cache']:.2f} times the cache, "
        "and the same output shape",
        notes=(
            "What must change: values are split by n_head * v_dim, not model_dim; merged heads have n_head "
            "* v_dim numbers; the output projection takes those and returns model_dim. Scores and their "
            "scale do not change.",
        ),
    )


EXPERIMENT = Experiment(
    "wide values",
    "Values may be wider than keys: only the value projection, the split and merge of heads and the output "
    "projection change, and parameters and cache grow by half when values double.",
    "The layer equals its definition written head by head; its output keeps the model's shape; parameters "
    "and cache are (1 + v/k) / 2 times those of equal widths; all counts equal the cost model's.",
    run,
)
