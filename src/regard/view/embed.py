"""A document as bytes for a page without a server: queries, keys and row sums, from which the browser itself
recovers any weight as exp(score - lse). Size grows with the length of the text, not with its square.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from regard.attention.scores import DenseBias, DistanceBias, ScoreRule, SlopeBias
from regard.attention.visibility import Visibility
from regard.tracing.layers import AnyLayer
from regard.view.document import Document, Inside, Json, plain

Precision = Literal["float32", "float24"]

EXACT_BYTES = 8_000_000  # documents up to this size keep all 32 bits of queries and keys
_ROUNDED = ("q", "k", "values")  # what others keep fewer bits of


class _Packer:
    """Tensors one after the other, and where each is."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.length = 0

    def add(self, tensor: Tensor, dtype: str) -> Json:
        data = _as_bytes(tensor, dtype)
        place = {"dtype": dtype, "shape": list(tensor.shape), "at": self.length, "bytes": len(data)}
        padding = -len(data) % 4
        self.parts += [data, b"\0" * padding]
        self.length += len(data) + padding
        return place


def _as_bytes(tensor: Tensor, dtype: str) -> bytes:
    array = tensor.detach().cpu().contiguous()
    if dtype == "float16":
        return array.half().numpy().astype("<f2").tobytes()
    if dtype == "uint8":
        return array.to(torch.uint8).numpy().tobytes()
    if dtype == "int32":
        return array.to(torch.int32).numpy().astype("<i4").tobytes()
    whole = array.float().numpy().astype("<f4")
    if dtype == "float32":
        return whole.tobytes()
    # Rounded to the nearest number whose last byte is 0; that byte is then left out.
    bits = whole.view("<u4").astype(np.uint64)
    rounded = np.where(np.isfinite(whole), np.minimum(bits + 0x80, 0xFFFFFFFF), bits).astype("<u4")
    return rounded.reshape(-1, 1).view(np.uint8)[:, 1:].tobytes()


def embedded(document: Document, precision: Precision | None = None, keep_v: bool = True) -> Json:
    """The document with all its numbers, for JSON. Short texts keep every bit of queries and keys."""
    if precision is None:
        precision = "float32" if embedded_bytes(document, "float32", keep_v) <= EXACT_BYTES else "float24"
    packer = _Packer()
    layers = [_layer(layer, document.batch, packer, precision, keep_v) for layer in document.trace.layers]
    for layer, about in zip(document.trace.layers, layers, strict=True):
        if layer.name in document.insides:
            _inside(document.insides[layer.name], layer.factors(document.batch), about, packer)
    said = "32-bit floats" if precision == "float32" else "24-bit floats (relative error at most 2e-5)"
    meta = document.meta(precision=f"queries and keys as {said}")
    if not keep_v:
        for layer in meta["layers"]:
            layer["values"] = False
    data = base64.b64encode(b"".join(packer.parts)).decode("ascii")
    return {"meta": plain(meta), "facts": document.facts(), "layers": layers, "data": data}


def embedded_bytes(document: Document, precision: Precision, keep_v: bool = True) -> int:
    """About how many bytes `embedded` takes, without making it."""
    per = 4 if precision == "float32" else 3
    total = 0
    for layer in document.trace.layers:
        for tensor in layer.tensors:
            total += tensor[0].numel() * per if tensor.dim() == 4 else tensor.numel() * 4
        if layer.v is not None:
            total += layer.v[0].numel() * ((2 if keep_v else 0) - per)
        if layer.name in document.insides:
            vectors = document.insides[layer.name]
            total += 3 * sum(part.numel() for part in (vectors.x, vectors.q, vectors.k))
    return total * 4 // 3 + len(document.image or "")


def _layer(layer: AnyLayer, batch: int, packer: _Packer, precision: str, keep_v: bool) -> Json:
    tensors = {
        name: packer.add(tensor, precision if name in _ROUNDED else "float32")
        for name, tensor in layer.factors(batch).items()
    }
    about: dict[str, Any] = {
        "tensors": tensors, "scale": None, "softcap": None, "causal": False, "start": 0, "window": None,
        "biasKind": None, "biasZero": 0,
    }  # fmt: skip
    rule = layer.rule
    if rule is not None:
        about["scale"] = None if rule.additive is not None else rule.scale_for(tensors["q"]["shape"][-1])
        about["softcap"] = rule.softcap
        if rule.bias is not None:
            _bias(rule, layer.shape, batch, about, packer)
    if keep_v and layer.v is not None:
        tensors["v"] = packer.add(layer.v[batch], "float16")
    _visible(layer.visibility or Visibility(), layer.n_key, batch, about, packer)
    return about


def _inside(vectors: Inside, factors: Mapping[str, Tensor], about: dict[str, Any], packer: _Packer) -> None:
    """What the machine shows before the query: pictures of vectors, so 24 bits are enough."""
    tensors = {"x": vectors.x}
    if vectors.x_key is not vectors.x:
        tensors["xKey"] = vectors.x_key
    if not torch.allclose(vectors.q, factors["q"], 1e-4, 1e-4):  # else positions turn nothing
        tensors |= {"qBefore": vectors.q, "kBefore": vectors.k}
    about["tensors"] |= {name: packer.add(tensor, "float24") for name, tensor in tensors.items()}
    about["wrote"] = {f"{head}.{query}": _short(said) for (head, query), said in vectors.wrote.items()}


def _short(value: Any) -> Any:
    """The numbers of an answer with the digits that are shown."""
    if isinstance(value, dict):
        return {name: _short(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_short(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _bias(
    rule: ScoreRule, shape: tuple[int, int, int, int], batch: int, about: dict[str, Any], packer: _Packer
) -> None:
    bias = rule.bias
    if not isinstance(
        bias, DistanceBias | SlopeBias | DenseBias
    ):  # the page draws these: of another, the table
        table = rule.bias_tile(slice(0, shape[2]), slice(0, shape[3]))
        assert table is not None  # who calls made sure
        bias = DenseBias(table)
    about["biasKind"], about["biasZero"] = bias.word, getattr(bias, "zero", 0)
    (values,) = bias.part(batch, None).tensors
    about["tensors"]["bias"] = packer.add(values[0] if bias.word == "dense" else values, "float32")


def _visible(visible: Visibility, n_key: int, batch: int, about: dict[str, Any], packer: _Packer) -> None:
    about.update(causal=visible.causal, start=visible.start, window=visible.window)
    tensors = about["tensors"]

    def own(tensor: Tensor) -> Tensor:
        part: Tensor = tensor[min(batch, tensor.shape[0] - 1)]
        return part

    keys = visible.visible_keys(n_key)
    if keys is not None:
        tensors["seen"] = packer.add(own(keys), "uint8")
    if visible.lengths is not None and visible.lengths.dim() == 2:
        tensors["lengths"] = packer.add(own(visible.lengths), "int32")
    if visible.query_segment is not None and visible.key_segment is not None:
        tensors["query_segment"] = packer.add(own(visible.query_segment), "int32")
        tensors["key_segment"] = packer.add(own(visible.key_segment), "int32")
    if visible.dense is not None:
        tensors["pairs"] = packer.add(own(visible.dense), "uint8")
