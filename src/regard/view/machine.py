"""One weight taken apart, every number the model's own: from the vectors that were read to the next token.

What the trace holds is enough from the query and key on. With the model come the vectors before them, the
output matrix, and what the head adds to the scores of the next token.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from regard.heads.model import attention_of
from regard.heads.stream import Norm
from regard.models.transformer import Transformer
from regard.view.document import Document, Json
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
def from_model(
    opened: Opened, document: Document, source: list[int] | None, layer: int, head: int, query: int, key: int
) -> Json | None:
    """What the model adds: vectors before query and key, and what each key's value does behind the head.

    None for a model without the matrices, which a recurrent one is.
    """
    model, trace = opened.model, document.trace
    if not isinstance(model, Transformer) or trace.ids is None:
        return None
    attention = attention_of(model, trace.names[layer])
    seen: dict[str, Any] = {}

    def keep(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        seen["x"] = args[0]
        seen["memory"] = args[1] if len(args) > 1 else kwargs.get("memory")

    stack = model.decoder if trace.names[layer].startswith("decoder") else model.encoder
    assert stack is not None
    hooks = [attention.register_forward_pre_hook(keep, with_kwargs=True)]
    if stack.norm is not None:
        hooks.append(stack.norm.register_forward_pre_hook(lambda module, args: seen.update(last=args[0])))
    try:
        ids = trace.ids[document.batch : document.batch + 1]
        read = (ids,) if source is None else (torch.tensor([source], device=ids.device), ids)
        with opened.without(document.off):
            model(*read, logits="none")
    finally:
        for hook in hooks:
            hook.remove()
    x, memory = seen["x"][0], seen["memory"]
    looked_at = x if memory is None else memory[0]
    kv_head = head * attention.n_kv_head // attention.n_head
    q = attention.query(x[query]).unflatten(0, (attention.n_head, -1))[head]
    k = attention.key(looked_at[key]).unflatten(0, (attention.n_kv_head, -1))[kv_head]
    if attention.query_norm is not None and attention.key_norm is not None:
        q, k = attention.query_norm(q), attention.key_norm(k)
    out = attention.out.weight.unflatten(1, (attention.n_head, -1))[:, head]  # (model_dim, v_dim)
    found: Json = {"x": x[query].tolist(), "xKey": looked_at[key].tolist(), "q": q.tolist(), "k": k.tolist()}
    traced = trace.layers[layer]
    if traced.v is not None and model.config.block.writes_as_is:
        v = traced.of_head(traced.v, document.batch, head)[0, 0].float()
        row = traced.row(document.batch, head, query).float()
        adds = v @ out.float().T  # what each key would add to the query's vector at weight 1
        found["added"] = float((row @ adds).norm())
        found["length"] = float(x[query].float().norm())
        last = seen["last"][0, query].float() if "last" in seen else None
        found["push"] = _push(opened, model, stack.norm, last, adds, row)
    return found


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
