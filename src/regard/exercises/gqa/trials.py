"""Reference, calls and probes of `gqa`."""

from functools import partial

from torch import Tensor

from regard.checking.trials import Case, Draw, Trial, formula
from regard.exercises.shared.attention import Choices, Layer, attended, future
from regard.exercises.shared.given import causal_probes
from regard.exercises.shared.lengths import edges, large_scores


def reference(
    case: Case,
    *,
    groups: str = "shared.repeat_interleave(group, 1)",
    queries: str = "q",
    order: str = "heads",
    **choices: str,
) -> Tensor:
    """Causal self-attention in which neighbouring query heads share keys and values."""
    c, (x,), (_, n_head, n_kv_head) = Choices(**choices), case.args, case.init
    layer, group = Layer(case.weights, n_head), n_head // n_kv_head
    sizes = {"group": group, "n_kv_head": n_kv_head}
    q, *both = layer.projected(c, x, x, x, n_kv_head=n_kv_head)
    q = formula(queries, q=q, **sizes)
    k, v = (
        formula(groups, shared=heads, role=role, **sizes)
        for heads, role in zip(both, ("keys", "values"), strict=True)
    )
    heads, _, _ = attended(c, q, k, v, lambda scores: future(scores, True, c), x.shape[-1], **sizes)
    return layer.leave(c, formula(order, heads=heads, **sizes), queries=x, keys=x, values=x)


def layer(draw: Draw, scale: float = 1.0) -> Case:
    n_head = draw["kv_head"] * draw["group"]
    width, narrow = n_head * draw["head_dim"], draw["kv_head"] * draw["head_dim"]
    rows = {"q": width, "k": narrow, "v": narrow, "o": width}
    weights = {f"W_{letter}.weight": 1.5 * draw.weight(rows[letter], width) for letter in rows}
    x = draw.normal("batch", "position", width, scale=scale)
    return Case((x,), init=(width, n_head, draw["kv_head"]), weights=weights)


SIZES = {"batch": 2, "position": 5, "kv_head": 2, "group": 3, "head_dim": 5}

TRIALS = (
    Trial("two groups of three", layer, SIZES, variants=True),
    Trial("three groups of two", layer, {**SIZES, "kv_head": 3, "group": 2}, variants=True),
    Trial("one key head", layer, {**SIZES, "kv_head": 1}),
    Trial("a key head for each query head", layer, {**SIZES, "kv_head": 3, "group": 1}),
    Trial("as many positions as heads", layer, {**SIZES, "position": 6}),
    *edges(layer, SIZES),
    large_scores(partial(layer, scale=20.0), SIZES),
)

PROBES = causal_probes(layer, SIZES)
