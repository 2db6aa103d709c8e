"""One weight taken apart, every number the model's own: from the vectors that were read to the next token.

What the trace holds is enough from the query and key on. With the model come the vectors before them, the
output matrix, and what the head adds to the scores of the next token.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.heads.circuits import Norm
from regard.heads.model import attention_of
from regard.models.transformer import Transformer
from regard.view.document import Document, Inside, Json
from regard.view.models import Opened

MOST_KEYS = 256  # of a row; beyond, the largest are shown and the rest is one number
_TOKENS = 4  # raised most, and as many lowered most


def machine(document: Document, layer: int, head: int, query: int, key: int) -> Json:
    """The row of a weight: raw scores of its keys and who may be seen, values, and the parts of one score.

    Softmax over `scores` where `visible`, and over one more key of score `rest`, gives the model's weights.
    """
    parts = document.parts(layer, head, query, key)
    found = document.trace.layers[layer]
    if found.rule is None:
        return {"parts": parts, "keys": []}
    row = found.row(document.batch, head, query).float()
    keys = list(range(found.n_key))
    if len(keys) > MOST_KEYS:
        keys = sorted({key, *row.topk(MOST_KEYS - 1).indices.tolist()})
    visible = found.visible(slice(query, query + 1), slice(None), document.batch, head)[0]
    scores = [found.score_parts(document.batch, head, query, index).unhidden for index in keys]
    left_out = 1.0 - float(row[keys].sum())
    kept = None if found.v is None else found.of_head(found.v, document.batch, head)[0, 0, keys]
    return {
        "parts": parts,
        "keys": keys,
        "scores": scores,
        "visible": visible[keys].tolist(),
        "rest": parts["lse"] + math.log(left_out) if len(keys) < found.n_key and left_out > 1e-9 else None,
        "values": None if kept is None else kept.float().tolist(),
    }


@torch.no_grad()
def inside(opened: Opened, document: Document, source: list[int] | None, layer: int) -> Inside | None:
    """What a layer's queries and keys were made from, which the model must be run for.

    None for a model without the matrices, which a recurrent one is.
    """
    model, trace = opened.model, document.trace
    if not isinstance(model, Transformer) or trace.ids is None:
        return None
    attention = attention_of(model, trace.names[layer])
    seen: dict[str, Any] = {}
    runner = threading.get_ident()  # others may run the same model on another text meanwhile

    def keep(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == runner:
            seen["x"] = args[0]
            seen["memory"] = args[1] if len(args) > 1 else kwargs.get("memory")

    def keep_last(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if threading.get_ident() == runner:
            seen["last"] = args[0]

    stack = model.decoder if trace.names[layer].startswith("decoder") else model.encoder
    assert stack is not None
    hooks = [attention.register_forward_pre_hook(keep, with_kwargs=True)]
    if stack.norm is not None:
        hooks.append(stack.norm.register_forward_pre_hook(keep_last))
    try:
        ids = trace.ids[document.batch : document.batch + 1]
        read = (ids,) if source is None else (torch.tensor([source], device=ids.device), ids)
        with opened.without(document.off):
            model(*read, logits="none")
    finally:
        for hook in hooks:
            hook.remove()
    x, memory = seen["x"][0], seen["memory"]
    x_key = x if memory is None else memory[0]
    q = attention.query(x).unflatten(-1, (attention.n_head, -1)).transpose(0, 1)
    k = attention.key(x_key).unflatten(-1, (attention.n_kv_head, -1)).transpose(0, 1)
    if attention.query_norm is not None and attention.key_norm is not None:
        q, k = attention.query_norm(q), attention.key_norm(k)
    return Inside(x, x_key, q, k, seen["last"][0] if "last" in seen else None)


@torch.no_grad()
def from_model(
    opened: Opened, document: Document, vectors: Inside, layer: int, head: int, query: int, key: int
) -> Json:
    """What the model adds to `machine`: vectors before query and key, and what the head writes."""
    kv_head = head * len(vectors.k) // len(vectors.q)
    return {
        "x": vectors.x[query].tolist(),
        "xKey": vectors.x_key[key].tolist(),
        "q": vectors.q[head, query].tolist(),
        "k": vectors.k[kv_head, key].tolist(),
        **written(opened, document, vectors, layer, head, query),
    }


@torch.no_grad()
def written(opened: Opened, document: Document, vectors: Inside, layer: int, head: int, query: int) -> Json:
    """What a head writes to a query's vector: its length, and the push on the next token.

    Nothing where what a head adds is changed before it is added.
    """
    model, traced = opened.model, document.trace.layers[layer]
    assert isinstance(model, Transformer)  # or there were no vectors
    if traced.v is None or not model.config.block.writes_as_is:
        return {}
    attention = attention_of(model, traced.name)
    out = attention.out.weight.unflatten(1, (attention.n_head, -1))[:, head]  # (model_dim, v_dim)
    v = traced.of_head(traced.v, document.batch, head)[0, 0].float()
    row = traced.row(document.batch, head, query).float()
    adds = v @ out.float().T  # what each key would add to the query's vector at weight 1
    last = None if vectors.last is None else vectors.last[query].float()
    stack = model.decoder if traced.name.startswith("decoder") else model.encoder
    assert stack is not None
    return {
        "added": float((row @ adds).norm()),
        "length": float(vectors.x[query].float().norm()),
        "push": _push(opened, model, stack.norm, last, adds, row),
    }


def with_insides(
    document: Document, opened: Opened, source: list[int] | None, views: Iterable[Json]
) -> Document:
    """The document with what the machine needs beyond queries and keys, of the layers that `views` show.

    What a head writes is kept of the queries shown.
    """
    shown: dict[int, dict[tuple[int, int], None]] = {}
    for view in views:
        layer, head, query = (view.get(name) for name in ("layer", "head", "query"))
        if type(layer) is int and type(head) is int and type(query) is int:
            document.parts(layer, head, query, 0)  # refuses a place that is not there
            shown.setdefault(layer, {})[head, query] = None
    kept = {}
    for layer, rows in shown.items():
        vectors = inside(opened, document, source, layer)
        if vectors is not None and document.trace.layers[layer].rule is not None:
            wrote = {row: written(opened, document, vectors, layer, *row) for row in rows}
            kept[document.trace.names[layer]] = replace(vectors, last=None, wrote=wrote)
    return replace(document, insides=kept)


def _push(
    opened: Opened,
    model: Transformer,
    norm: nn.Module | None,
    x: Tensor | None,
    adds: Tensor,
    row: Tensor,
) -> Json | None:
    """By how much each key's value raises the scores of a few next tokens, at weight 1 and the scale of the
    last norm held (Elhage et al. 2021). None where what a head adds does not reach the scores as it is."""
    config = model.config
    writes = config.block.writes_as_is and config.head_softcap is None
    if config.head != "language" or config.kind != "decoder" or not writes or x is None:
        return None
    unembed = (model.token if model.unembed is None else model.unembed).weight.float() * config.head_scale
    raised = Norm.of(norm, x).held(x.double(), adds.double()).float()
    total = unembed @ (row @ raised)
    order = total.argsort(descending=True)
    tokens = [*order[:_TOKENS].tolist(), *order[-_TOKENS:].tolist()]
    return {"tokens": opened.tokenizer.tokens(tokens), "byKey": (raised @ unembed[tokens].T).tolist()}
