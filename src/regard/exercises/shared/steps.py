"""What `mha-step` and `mqa-step` share: reference, calls and probes of one step with a cache."""

from __future__ import annotations

from torch import Tensor

from regard.checking.trials import Case, Draw, Probe, Trial, changed, first_sequence, formula, worked
from regard.exercises.shared.lengths import large_scores

FORMULAS = {
    "query_by": "w_q",
    "key_by": "w_k",
    "q": "torch.einsum('bd,hdk->bhk', x, query_by)",
    "queries": "q",
    "key": "torch.einsum('bd,...dk->b...k', x, key_by)",
    "value": "torch.einsum('bd,...dk->b...k', x, w_v)",
    "new_k": "key",
    "new_v": "value",
    "k": "grown('keys', past_k, new_k[..., None, :])",
    "v": "grown('values', past_v, new_v[..., None, :])",
    "sees": "k, v",
    "keys": "sees[0]",
    "values": "sees[1]",
    "products": "torch.einsum('bhk,bhnk->bhn', queries, of_heads(keys))",
    "scale": "1",
    "out": "torch.einsum('bhn,bhnv->bhv', weighed(products / scale), of_heads(values))",
    "heads": "torch.einsum('bhv,hvd->bd', out, w_o)",
    "plus": "heads",
    "returned": "plus, k, v",
}


def reference(
    case: Case,
    *,
    cache: str = "torch.cat([past, new], -2)",
    softmax: str = "scores.softmax(-1)",
    weights: str = "weights",
    **choices: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """One token of attention (Shazeer 2019), in which keys and values are shared by all heads or not."""
    names = ("x", "past_k", "past_v", "w_q", "w_k", "w_v", "w_o")
    n_head, width, dim = case.args[3].shape
    steps = {
        "grown": lambda role, past, new: formula(cache, role=role, past=past, new=new),
        "weighed": lambda scores: formula(weights, weights=formula(softmax, scores=scores)),
        "of_heads": lambda x: x if x.dim() == 4 else x[:, None],
    }
    sizes = {"n_head": n_head, "width": width, "dim": dim}
    y, k, v = worked(FORMULAS, choices, **dict(zip(names, case.args, strict=True)), **steps, **sizes)
    return y, k, v


SIZES = {"batch": 2, "past": 5, "head": 3, "model_dim": 7, "qk_dim": 5, "v_dim": 11}


def checks(*, shared: bool) -> tuple[tuple[Trial, ...], tuple[Probe, ...]]:
    """Trials and probes of a step, in which keys and values are `shared` by all heads or not."""
    heads = () if shared else ("head",)

    def step(draw: Draw, scale: float = 1.0, n_past: int | None = None) -> Case:
        root = draw["model_dim"] ** -0.5
        past = "past" if n_past is None else n_past
        args = (
            draw.normal("batch", "model_dim", scale=scale),
            draw.normal("batch", *heads, past, "qk_dim", scale=scale),
            draw.normal("batch", *heads, past, "v_dim"),
            draw.normal("head", "model_dim", "qk_dim", scale=root),
            draw.normal(*heads, "model_dim", "qk_dim", scale=root),
            draw.normal(*heads, "model_dim", "v_dim", scale=root),
            draw.normal("head", "v_dim", "model_dim", scale=draw["v_dim"] ** -0.5),
        )
        return Case(args)

    def change_first(case: Case, draw: Draw) -> None:
        first_sequence(case.with_args(*case.args[:3]), draw)

    def reorder(case: Case, draw: Draw) -> None:
        for cache in case.args[1:3]:
            cache.copy_(cache.flip(-2))

    trials = (
        Trial("one step", step, SIZES, variants=True),
        Trial("another step", step, {**SIZES, "batch": 3, "past": 2, "head": 5, "v_dim": 2}, variants=True),
        Trial("all of one width", step, {**SIZES, "model_dim": 6, "head": 3, "qk_dim": 2, "v_dim": 2}),
        Trial("as many sequences as heads", step, {**SIZES, "batch": 3}),
        Trial("as many positions as heads", step, {**SIZES, "past": 3}),
        Trial("keys as wide as values", step, {**SIZES, "v_dim": 5}),
        Trial("batch of one", step, {**SIZES, "batch": 1}),
        Trial("one head", step, {**SIZES, "head": 1}),
        Trial("an empty cache", lambda draw: step(draw, n_past=0), {**SIZES, "past": 1}),
        large_scores(lambda draw: step(draw, 15.0), SIZES, "large logits"),
    )
    alone = "sequence 0 was changed: sequence 1 may not move."
    order = "the cached positions were put in another order: y may not move."
    probes = (
        Probe("a neighbour in the batch has no say", changed(step, change_first), SIZES, says=alone),
        Probe("the order of the cache has no say in y", changed(step, reorder), SIZES, says=order),
    )
    return trials, probes
