"""Values twice as wide as keys: what must change, and what it costs.

Values are split by n_head * v_dim, not model_dim; merged heads have n_head * v_dim numbers; the output
projection takes those and returns model_dim. Scores and their scale do not change.
"""

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import attend
from regard.costs import cost
from regard.lab.spec import Lab
from regard.layers import BlockConfig, LayerCache, MultiHeadAttention, merge_heads, split_heads
from regard.models import TransformerConfig

CLAIM = """Values may be wider than keys: only the value projection, the split and merge of heads and the
output projection change, and parameters and cache grow by half when values double."""
PREDICTION = """The layer equals its definition written head by head; its output keeps the model's shape;
parameters and cache are (1 + v/k) / 2 times those of equal widths; all counts equal the cost model's."""

DIM, N_HEAD, BATCH, LENGTH = 24, 4, 3, 11
QK_DIM = DIM // N_HEAD


def _by_hand(layer: MultiHeadAttention, x: Tensor) -> Tensor:
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
    block = BlockConfig(DIM, N_HEAD, ff_dim=1, v_dim=v_dim, qk_dim=QK_DIM, attention_bias=False)
    config = TransformerConfig(vocab=1, block=block, n_decoder_layer=1, lm_head="none")
    whole = cost(config, "prefill", batch=BATCH, length=LENGTH)
    rows = [row for row in whole.rows if not row.name.startswith(("ff ", "embedding"))]
    n_parameter = sum(row.weights.value(whole.sizes) for row in rows)
    n_operation = sum(row.n_operation for row in rows)
    return {"parameters": n_parameter, "operations": n_operation, "cache": whole.cache_bytes}


@torch.no_grad()
def run(lab: Lab) -> None:
    ratios: dict[str, list[float]] = {}
    plain = _cost(QK_DIM)
    for times in (1, 2) if lab.quick else (1, 2, 4):
        where = f"v_dim {times * QK_DIM}"
        layer = MultiHeadAttention(DIM, N_HEAD, v_dim=times * QK_DIM).double()
        x = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64)
        error = float((layer(x) - _by_hand(layer, x)).abs().max())
        lab.below(f"{where}: the output is the definition's, head by head", error, 1e-12)
        layer, x, cache = layer.float(), x.float(), LayerCache()
        with FlopCounterMode(display=False) as counter:
            q, k, v = (split_heads(project(x), N_HEAD) for project in (layer.query, layer.key, layer.value))
            out = layer.out(merge_heads(attend(q, k, v, path="plain").out))
        layer(x, cache=cache)
        lab.equal(f"{where}: the output keeps the model's shape", int(out.shape == x.shape), 1)
        n_parameter = sum(weight.numel() for weight in layer.parameters())
        counted = (n_parameter, counter.get_total_flops(), cache.bytes)
        ratios[where] = []
        for number, (what, formula) in zip(counted, _cost(times * QK_DIM).items(), strict=True):
            lab.equal(f"{where}: {what} as the cost model has it", number, formula)
            ratios[where].append(lab.exact(f"{what}, {where}, against {QK_DIM}", number / plain[what]))
        parameters, _, kept = ratios[where]
        grown = (1 + times) / 2
        lab.equal(f"{where}: parameters times (1 + {times}) / 2", parameters, grown, rounding=1e-12)
        lab.equal(f"{where}: the cache likewise", kept, grown, rounding=1e-12)
    title = "Cost against values as wide as keys"
    lab.draw.grouped_bars(title, list(plain), ratios, f"times that of v_dim {QK_DIM}")
