"""Traces in files: one safetensors file whose metadata describe the layers.

A file is written beside its place and moved there when complete. Reading maps it into memory, so that
a trace of hundreds of megabytes opens at once, and trusts nothing: whatever does not fit is a TraceError.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.attention.linear import EluPlusOne, FeatureMap, Quadratic, RandomFeatures, Relu
from regard.attention.scores import Bias, DenseBias, DistanceBias, ScoreRule, SlopeBias
from regard.attention.visibility import Visibility
from regard.errors import RegardError, TraceError, UnsupportedError
from regard.files.tensors import write_safetensors
from regard.tracing.layers import AnyLayer, DenseLayerTrace, LayerTrace, LinearLayerTrace
from regard.tracing.rule_parts import visibility_tensors

KEY = "regard-trace"
VERSION = 1

_KERNELS: dict[str, type[FeatureMap]] = {
    "elu1": EluPlusOne,
    "relu": Relu,
    "quadratic": Quadratic,
    "favor": RandomFeatures,
}


class _Shelf:
    """Tensors to be written, each under one name however often it is used."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def put(self, name: str, tensor: Tensor | None) -> str | None:
        """The name under which the tensor stands in the file."""
        if tensor is None:
            return None
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if key not in self._names:
            self._names[key] = name
            # The format refuses what is not in order, as a kernel's lse, and two views of one memory.
            ours = tensor.detach().cpu().contiguous()
            alone = ours.untyped_storage().nbytes() == ours.numel() * ours.element_size()
            self.tensors[name] = ours if alone else ours.clone()
        return self._names[key]


class _Reader:
    """Tensors of an open file, by the names its description uses."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def get(self, name: str | None) -> Tensor | None:
        return None if name is None else self._tensors[name]

    def need(self, name: str) -> Tensor:
        return self._tensors[name]


def write(
    path: Path, layers: tuple[AnyLayer, ...], named: Mapping[str, Any], tensors: Mapping[str, Tensor | None]
) -> None:
    """Write layers, what is said of them, and further tensors: all or nothing."""
    shelf = _Shelf()
    described = [_describe(f"layers.{index}", layer, shelf) for index, layer in enumerate(layers)]
    further = {name: shelf.put(name, tensor) for name, tensor in tensors.items()}
    description = json.dumps({"version": VERSION, "layers": described, "tensors": further, **named})
    # One entry: the order of several is left to chance, and the same trace should be the same bytes.
    metadata = {KEY: description}
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        write_safetensors(shelf.tensors, draft, metadata)
        os.replace(draft, path)
    except (OSError, SafetensorError) as error:
        draft.unlink(missing_ok=True)
        raise TraceError(f"the trace cannot be written to {path}: {error}.") from error


def read(path: Path) -> tuple[tuple[AnyLayer, ...], dict[str, Any], dict[str, Tensor]]:
    """Layers, what is said of them, and further tensors, still in the file until looked at."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if KEY not in metadata:
                raise TraceError(
                    f"{path} is a safetensors file but no trace: its metadata must have {KEY!r}. "
                    f"Got {sorted(metadata)}."
                )
            found = _Reader({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118  # no dict
    except FileNotFoundError as error:
        raise TraceError(f"there is no file {path}.") from error
    except (OSError, SafetensorError) as error:
        raise TraceError(
            f"{path} cannot be read as a trace: it is cut short, damaged or no safetensors file ({error})."
        ) from error
    try:
        named = json.loads(metadata[KEY])
        _check_version(path, named.pop("version"))
        layers = tuple(_layer(described, found) for described in named.pop("layers"))
        tensors = {name: found.need(at) for name, at in named.pop("tensors").items() if at is not None}
    except TraceError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, RegardError) as error:
        raise TraceError(f"{path} is damaged: its description does not fit its tensors ({error}).") from error
    return layers, named, tensors


def _check_version(path: Path, version: object) -> None:
    if version != VERSION:
        raise TraceError(
            f"{path} is a trace of version {version!r}; this program reads version {VERSION}. "
            "Trace the text again, or use the version of regard that wrote it."
        )


def _describe(name: str, layer: AnyLayer, shelf: _Shelf) -> dict[str, Any]:
    common = {"name": layer.name, "kind": layer.kind}
    if isinstance(layer, LayerTrace):
        parts: tuple[str, ...] = ("q", "k", "lse", "v", "sink", "alike")
        held = {part: shelf.put(f"{name}.{part}", getattr(layer, part)) for part in parts}
        return {"type": "softmax", **common, **held, "rule": _describe_rule(name, layer.rule, shelf)}
    if isinstance(layer, LinearLayerTrace):
        parts = ("q", "k", "normaliser", "keys", "v")
        held = {part: shelf.put(f"{name}.{part}", getattr(layer, part)) for part in parts}
        kernel = _describe_kernel(name, layer.kernel, shelf)
        return {"type": "linear", **common, **held, "causal": layer.causal, "kernel": kernel}
    if isinstance(layer, DenseLayerTrace):
        visible = None if layer.visibility is None else _describe_visible(name, layer.visibility, shelf)
        values = shelf.put(f"{name}.values", layer.values)
        return {"type": "dense", **common, "values": values, "visible": visible}
    raise UnsupportedError(f"a layer of type {type(layer).__name__} has no form in a file.")


def _describe_visible(name: str, visible: Visibility, shelf: _Shelf) -> dict[str, Any]:
    tensors = visibility_tensors(visible)
    held = {part: shelf.put(f"{name}.{part}", tensor) for part, tensor in tensors.items()}
    return {"causal": visible.causal, "start": visible.start, "window": visible.window, "tensors": held}


def _describe_rule(name: str, rule: ScoreRule, shelf: _Shelf) -> dict[str, Any]:
    bias: dict[str, Any] | None = None
    if isinstance(rule.bias, DistanceBias):
        values = shelf.put(f"{name}.bias", rule.bias.values)
        bias = {"type": "distance", "values": values, "zero": rule.bias.zero}
    elif isinstance(rule.bias, SlopeBias):
        bias = {"type": "slope", "values": shelf.put(f"{name}.bias", rule.bias.slopes)}
    elif isinstance(rule.bias, DenseBias):
        bias = {"type": "dense", "values": shelf.put(f"{name}.bias", rule.bias.values)}
    elif rule.bias is not None:
        raise UnsupportedError(f"a bias of type {type(rule.bias).__name__} has no form in a file.")
    return {
        "scale": rule.scale,
        "softcap": rule.softcap,
        "additive": shelf.put(f"{name}.additive", rule.additive),
        "bias": bias,
        "visible": _describe_visible(name, rule.visible, shelf),
    }


def _describe_kernel(name: str, kernel: FeatureMap, shelf: _Shelf) -> dict[str, Any]:
    for word, kind in _KERNELS.items():
        if type(kernel) is kind:
            values = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
            tensors = {
                key: shelf.put(f"{name}.{key}", value)
                for key, value in values.items()
                if isinstance(value, Tensor)
            }
            plain = {key: value for key, value in values.items() if key not in tensors}
            return {"type": word, "plain": plain, "tensors": tensors}
    raise UnsupportedError(f"a feature map of type {type(kernel).__name__} has no form in a file.")


def _layer(described: dict[str, Any], found: _Reader) -> AnyLayer:
    name, kind = described["name"], described["kind"]
    if not isinstance(name, str) or kind not in ("self", "cross"):
        raise ValueError(f"a layer is called {name!r} and of kind {kind!r}")
    if described["type"] == "softmax":
        return LayerTrace(
            name,
            found.need(described["q"]),
            found.need(described["k"]),
            found.need(described["lse"]),
            _rule(described["rule"], found),
            found.get(described["v"]),
            kind,
            found.get(described["sink"]),
            found.get(described.get("alike")),
        )
    if described["type"] == "linear":
        return LinearLayerTrace(
            name,
            found.need(described["q"]),
            found.need(described["k"]),
            found.need(described["normaliser"]),
            _kernel(described["kernel"], found),
            bool(described["causal"]),
            found.get(described["keys"]),
            found.get(described["v"]),
            kind,
        )
    if described["type"] == "dense":
        visible = described["visible"]
        return DenseLayerTrace(
            name, found.need(described["values"]), kind, None if visible is None else _visible(visible, found)
        )
    raise ValueError(f"a layer is of type {described['type']!r}")


def _visible(described: dict[str, Any], found: _Reader) -> Visibility:
    tensors = {name: found.get(at) for name, at in described["tensors"].items()}
    start, window = described["start"], described["window"]
    if type(start) is not int or type(window) not in (int, type(None)):
        raise ValueError(f"a visibility starts at {start!r} and has window {window!r}")
    return Visibility(bool(described["causal"]), start, window, **tensors)


def _rule(described: dict[str, Any], found: _Reader) -> ScoreRule:
    bias: Bias | None = None
    if described["bias"] is not None:
        kind, values = described["bias"]["type"], found.need(described["bias"]["values"])
        if kind == "distance":
            bias = DistanceBias(values, int(described["bias"]["zero"]))
        elif kind in ("slope", "dense"):
            bias = SlopeBias(values) if kind == "slope" else DenseBias(values)
        else:
            raise ValueError(f"a bias is of type {kind!r}")
    return ScoreRule(
        scale=described["scale"],
        visible=_visible(described["visible"], found),
        bias=bias,
        softcap=described["softcap"],
        additive=found.get(described["additive"]),
    )


def _kernel(described: dict[str, Any], found: _Reader) -> FeatureMap:
    kind = _KERNELS[described["type"]]
    tensors = {name: found.need(at) for name, at in described["tensors"].items()}
    return kind(**described["plain"], **tensors)
