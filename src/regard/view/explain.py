"""Take one weight apart, every number the model's own: from the vectors that were read to the next token."""

import math
from collections.abc import Iterable
from dataclasses import replace

import torch

from regard.files.loading import Loaded
from regard.heads.circuits import Norm, seeing
from regard.heads.model import attention_of, tokenizer_of
from regard.layers.layer_id import LayerId
from regard.models.mechanisms import why_not
from regard.models.transformer import Transformer
from regard.view.document import Document, Json, LayerVectors
from regard.view.run import run_model

MOST_KEYS = 256  # of a row; beyond, the largest are shown and the rest is one number
MOST_RUN_AGAIN = 1024  # tokens of a text that is read once more for what comes before a query
_TOKENS = 4  # raised most, and as many lowered most


@torch.no_grad()
def machine(
    document: Document, layer: int, head: int, query: int, key: int, loaded: Loaded | None = None
) -> Json:
    """The row of a weight: raw scores of its keys and who may be seen, values, and the parts of one score.

    Softmax over `scores` where `visible`, and over one more key of score `rest`, gives the model's weights.
    The model adds the vectors before query and key, and what the head writes.
    """
    parts = document.parts(layer, head, query, key)
    traced, batch = document.trace.layers[layer], document.batch
    if traced.rule is None:
        return {"parts": parts, "keys": []}
    row = traced.row(head, query, batch).float()
    keys = list(range(traced.n_key))
    if len(keys) > MOST_KEYS:
        keys = sorted({key, *row.topk(MOST_KEYS - 1).indices.tolist()})
    visible = traced.visible(head, slice(query, query + 1), slice(None), batch)[0]
    left_out = 1.0 - float(row[keys].sum())
    # What is left belongs to the keys that are not shown, or to a sink.
    least = 1e-9 if len(keys) < traced.n_key else 1e-5
    kept = None if traced.v is None else traced.of_head(traced.v, head, batch)[0, 0, keys]
    shown = {
        "parts": parts,
        "keys": keys,
        "scores": [traced.score_parts(head, query, index, batch).unhidden for index in keys],
        "visible": visible[keys].tolist(),
        "rest": parts["lse"] + math.log(left_out) if left_out > least else None,
        "values": None if kept is None else kept.float().tolist(),
    }
    others = [index for index in range(traced.n_key) if index not in set(keys)]
    if others and traced.v is not None:
        shown["restValue"] = (
            row[others] @ traced.of_head(traced.v, head, batch)[0, 0, others].float()
        ).tolist()
    if loaded is not None and traced.n_query > MOST_RUN_AGAIN:
        shown["without"] = f"Of more than {MOST_RUN_AGAIN} tokens the machine begins at query and key."
    elif loaded is not None and (vectors := layer_vectors(loaded, document, layer)) is not None:
        wrote = head_output(loaded, document, vectors, layer, head, query)
        if wrote.get("push") is not None:
            by_key = wrote["push"]["byKey"]
            if others:
                wrote["push"]["rest"] = (row[others].cpu() @ torch.tensor(by_key)[others]).tolist()
            wrote["push"]["byKey"] = [by_key[index] for index in keys]
        shown["model"] = {
            "x": vectors.x[query].tolist(),
            "xKey": vectors.x_key[key].tolist(),
            "q": vectors.q[head, query].tolist(),
            "k": vectors.k[head * len(vectors.k) // len(vectors.q), key].tolist(),
            **wrote,
        }
    return shown


@torch.no_grad()
def layer_vectors(loaded: Loaded, document: Document, layer: int) -> LayerVectors | None:
    """What a layer's queries and keys were made from, which the model must be run for.

    None for a model without the matrices, as a recurrent one, or with latent attention.
    """
    model, name = loaded.model, document.trace.names[layer]
    if not isinstance(model, Transformer) or model.config.block.latent_dim is not None:
        return None
    attention = attention_of(model, name)
    stack = model.decoder if LayerId.parse(name).stack == "decoder" else model.encoder
    assert stack is not None  # the layer is in it
    with seeing(filter(None, (attention, stack.norm, model.encoder))) as seen:
        run_model(loaded, document.ids, document.source, document.off + document.cut, logits="none")
    x = x_key = seen[attention][0][0]
    if LayerId.parse(name).kind == "cross" and model.encoder is not None:
        x_key = seen[model.encoder][1][0]
    q = attention.query(x).unflatten(-1, (attention.n_head, -1)).transpose(0, 1)
    k = attention.key(x_key).unflatten(-1, (attention.n_kv_head, -1)).transpose(0, 1)
    if attention.query_norm is not None and attention.key_norm is not None:
        q, k = attention.query_norm(q), attention.key_norm(k)
    return LayerVectors(x, x_key, q, k, None if stack.norm is None else seen[stack.norm][0][0])


@torch.no_grad()
def head_output(
    loaded: Loaded, document: Document, vectors: LayerVectors, layer: int, head: int, query: int
) -> Json:
    """What a head writes to a query's vector: its length, and the push on the next token.

    Nothing where what a head adds is changed before it is added. The push is by how much each key's value
    raises the scores of a few next tokens, at weight 1 and the scale of the last norm held (Elhage et al.
    2021); None where what a head adds does not reach the scores as it is.
    """
    model, traced = loaded.model, document.trace.layers[layer]
    assert isinstance(model, Transformer)  # or there were no vectors
    config = model.config
    if traced.v is None or why_not(config.block, "machine") is not None:
        return {}
    attention = attention_of(model, traced.name)
    out = attention.out.weight.unflatten(1, (attention.n_head, -1))[:, head]  # (model_dim, v_dim)
    v = traced.of_head(traced.v, head, document.batch)[0, 0].float()
    row = traced.row(head, query, batch=document.batch).float()
    adds = v @ out.float().T  # what each key would add to the query's vector at weight 1
    push = None
    reaches_scores = (
        config.kind == "decoder" and config.lm_head == "language" and config.lm_head_softcap is None
    )
    if reaches_scores and vectors.last is not None:
        assert model.decoder is not None  # its last norm read that
        last = vectors.last[query].float()
        unembed = (
            model.token if model.unembed is None else model.unembed
        ).weight.float() * config.lm_head_scale
        raised = Norm.of(model.decoder.norm, last).held(last.double(), adds.double()).float()
        order = (unembed @ (row @ raised)).argsort(descending=True)
        tokens = [*order[:_TOKENS].tolist(), *order[-_TOKENS:].tolist()]
        push = {"tokens": tokenizer_of(loaded).tokens(tokens), "byKey": (raised @ unembed[tokens].T).tolist()}
    length = float(vectors.x[query].float().norm())
    return {"added": float((row @ adds).norm()), "length": length, "push": push}


def with_layer_vectors(document: Document, loaded: Loaded, views: Iterable[Json]) -> Document:
    """The document with what the machine needs beyond queries and keys, of the layers that `views` show.

    What a head writes is kept of the queries shown. A long text is left as it is.
    """
    if document.trace.layers[0].n_query > MOST_RUN_AGAIN:
        return document
    kept: dict[str, LayerVectors] = {}
    for view in views:
        layer, head, query = (view.get(name) for name in ("layer", "head", "query"))
        if type(layer) is int and type(head) is int and type(query) is int:
            document.parts(layer, head, query, 0)  # refuses a place that is not there
            traced = document.trace.layers[layer]
            vectors = kept.get(traced.name) or layer_vectors(loaded, document, layer)
            if vectors is not None and traced.rule is not None:
                wrote = head_output(loaded, document, vectors, layer, head, query)
                kept[traced.name] = replace(vectors, wrote={**vectors.wrote, (head, query): wrote})
    return replace(document, vectors=kept)
