"""A document as bytes for a page without a server: queries, keys and row sums, from which the browser itself
recovers any weight as exp(score - lse). Size grows with the length of the text, not with its square.
"""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from regard.attention.scores import DenseBias, DistanceBias, SlopeBias
from regard.attention.visibility import Visibility
from regard.tracing.layers import AnyLayer
from regard.view.document import Document, Inside, Json, plain

Precision = Literal["float32", "float24"]

EXACT_BYTES = 8_000_000  # documents up to this size keep all 32 bits of queries and keys
# How tensors are written, by their names; the first three in fewer bits where they are long. Of what only
# pictures are drawn from, 24 bits are enough.
_DTYPES = {
    **dict.fromkeys(("q", "k", "values"), None),
    **dict.fromkeys(("x", "xKey", "qBefore", "kBefore"), "float24"),
    **dict.fromkeys(("seen", "pairs"), "uint8"),
    **dict.fromkeys(("lengths", "query_segment", "key_segment"), "int32"),
    "v": "float16",
}
_NUMPY = {"float16": "<f2", "uint8": "u1", "int32": "<i4", "float32": "<f4", "float24": "<f4"}


def embedded(document: Document, precision: Precision | None = None) -> Json:
    """The document with all its numbers, for JSON. Short texts keep every bit of queries and keys."""
    if precision is None:
        precision = "float32" if embedded_bytes(document, "float32") <= EXACT_BYTES else "float24"
    layers, data = [], bytearray()
    for layer in document.trace.layers:
        about = _layer(layer, document.batch)
        if layer.name in document.insides:
            _add_inside(about, document.insides[layer.name])
        for name, tensor in about["tensors"].items():
            dtype = _DTYPES.get(name, "float32") or precision
            written = _as_bytes(tensor, dtype)
            place = {"dtype": dtype, "shape": list(tensor.shape), "at": len(data), "bytes": len(written)}
            about["tensors"][name] = place
            data += written + b"\0" * (-len(written) % 4)
        layers.append(about)
    said = "32-bit floats" if precision == "float32" else "24-bit floats (relative error at most 2e-5)"
    meta = plain(document.meta(precision=f"queries and keys as {said}"))
    numbers = base64.b64encode(data).decode("ascii")
    return {"meta": meta, "facts": document.facts(), "layers": layers, "data": numbers}


def embedded_bytes(document: Document, precision: Precision) -> int:
    """About how many bytes `embedded` takes, without making it."""
    per = 4 if precision == "float32" else 3
    total = 0
    for layer in document.trace.layers:
        for tensor in layer.tensors:
            total += tensor[0].numel() * per if tensor.dim() == 4 else tensor.numel() * 4
        if layer.v is not None:
            total += layer.v[0].numel() * (2 - per)
        if layer.name in document.insides:
            vectors = document.insides[layer.name]
            total += 3 * sum(part.numel() for part in (vectors.x, vectors.q, vectors.k))
    return total * 4 // 3 + len(document.image or "")


def _as_bytes(tensor: Tensor, dtype: str) -> bytes:
    array = tensor.detach().cpu().contiguous()
    with np.errstate(over="ignore"):  # a value that float16 has no number for is drawn as infinite
        numbers = (array.float() if array.is_floating_point() else array).numpy().astype(_NUMPY[dtype])
    if dtype != "float24":
        return numbers.tobytes()
    # Rounded to the nearest number whose last byte is 0; that byte is then left out.
    bits = numbers.view("<u4").astype(np.uint64)
    rounded = np.where(np.isfinite(numbers), np.minimum(bits + 0x80, 0xFFFFFFFF), bits).astype("<u4")
    return rounded.reshape(-1, 1).view(np.uint8)[:, 1:].tobytes()


def _layer(layer: AnyLayer, batch: int) -> Json:
    """What the page needs to recover the layer's weights, and the tensors among it."""
    tensors = dict(layer.factors(batch))
    visible = layer.visibility or Visibility()
    about: Json = {
        "tensors": tensors, "scale": None, "softcap": None, "causal": visible.causal, "start": visible.start,
        "window": visible.window, "biasKind": None, "biasZero": 0,
    }  # fmt: skip
    rule = layer.rule
    if rule is not None:
        about["scale"] = None if rule.additive is not None else rule.scale_for(tensors["q"].shape[-1])
        about["softcap"] = rule.softcap
        bias = rule.bias
        if bias is not None and not isinstance(bias, DistanceBias | SlopeBias | DenseBias):
            table = rule.bias_tile(slice(0, layer.n_query), slice(0, layer.n_key))
            assert table is not None  # there is a bias
            bias = DenseBias(table)  # the page draws these three: of another, the table
        if bias is not None:
            about["biasKind"], about["biasZero"] = bias.word, getattr(bias, "zero", 0)
            (values,) = bias.part(batch, None).tensors
            tensors["bias"] = values[0] if bias.word == "dense" else values
    if layer.v is not None:
        tensors["v"] = layer.v[batch]
    pairwise = visible.lengths is not None and visible.lengths.dim() == 2
    hidden = {
        "seen": visible.visible_keys(layer.n_key),
        "lengths": visible.lengths if pairwise else None,
        "query_segment": visible.query_segment,
        "key_segment": visible.key_segment,
        "pairs": visible.dense,
    }
    tensors |= {
        name: tensor[min(batch, len(tensor) - 1)] for name, tensor in hidden.items() if tensor is not None
    }
    return about


def _add_inside(about: Json, vectors: Inside) -> None:
    """What the machine shows before the query."""
    tensors = about["tensors"]
    turned = not torch.allclose(vectors.q, tensors["q"], 1e-4, 1e-4)  # by positions
    tensors["x"] = vectors.x
    if vectors.x_key is not vectors.x:
        tensors["xKey"] = vectors.x_key
    if turned:
        tensors |= {"qBefore": vectors.q, "kBefore": vectors.k}
    about["wrote"] = {f"{head}.{query}": _short(said) for (head, query), said in vectors.wrote.items()}


def _short(value: Any) -> Any:
    """The numbers of an answer with the digits that are shown."""
    if isinstance(value, dict):
        return {name: _short(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_short(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
