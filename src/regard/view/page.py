"""The page as one HTML file: the module inlined, allowed by its hash and nothing else allowed.

    export(trace, "page.html")

The file works from disk, without a server and without the network. It holds queries, keys and row sums, from
which the browser itself recovers any weight as exp(score - lse): its size grows with the length of the text,
not with its square.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from regard import __version__
from regard.attention.scores import DenseBias, DistanceBias, SlopeBias
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError
from regard.tracing.layers import AnyLayer
from regard.tracing.traces import Trace
from regard.view.document import Document, Json, documents_of, plain

MOST_BYTES = 200_000_000  # a file above this opens slowly everywhere: it must be asked for
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
_STYLE = "html,body{height:100%;margin:0}#regard{height:100%;display:block}"


def bundle() -> str:
    """The module of the page, as it was built."""
    return resources.files("regard.view").joinpath("static", "regard.js").read_text(encoding="utf-8")


def policy(script: str, *, connects: bool) -> str:
    """The content-security policy of a page with this module: its hash may run, and nothing else."""
    digests = (hashlib.sha256(text.encode("utf-8")).digest() for text in (script, _STYLE))
    module, style = (f"'sha256-{base64.b64encode(digest).decode('ascii')}'" for digest in digests)
    asks = "'self'" if connects else "'none'"
    return (
        f"default-src 'none'; script-src {module}; style-src {style}; img-src data: blob:; "
        f"connect-src {asks}; base-uri 'none'; form-action 'none'"
    )


def html(data: Json, *, connects: bool = False) -> str:
    """The page around `data`. No text of it can end its element, whatever it holds."""
    script = bundle()
    written = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # JSON has them only inside strings
        written = written.replace(character, f"\\u{ord(character):04x}")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(script, connects=connects)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>Regard</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        '<div id="regard"></div>\n<noscript>This page draws with JavaScript, which is off here.</noscript>\n'
        f'<script type="application/json" id="regard-data">{written}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def page(
    documents: Sequence[Document],
    start: Json | None = None,
    *,
    path: Sequence[Json] = (),
    force: bool = False,
) -> str:
    """A self-contained page of these documents; refuses one above 200 MB unless `force`.

    `path` is a tour of one's own: views as {title, says, state}.
    """
    if not documents:
        raise ArgumentError("there is nothing to show: a page needs at least one trace.")
    if not force:
        check_size(documents)
    docs = [embedded(document) for document in documents]
    return html({"version": __version__, "token": None, "start": start or {}, "path": [*path], "docs": docs})


def check_size(documents: Sequence[Document]) -> None:
    """Raise ArgumentError if a page of these documents would have more than 200 MB."""
    expected = sum(embedded_bytes(document, "float24") for document in documents)
    if expected > MOST_BYTES:
        size = f"{expected / 1e6:.0f} MB, more than {MOST_BYTES // 10**6}"
        ways = "choose some layers (--layers), a shorter text, or insist (--force)"
        raise ArgumentError(f"the page would have {size}: {ways}.")


def to_html(trace: Trace, *, height: int | None = None, **start: Any) -> str:
    """Return the interactive page of a trace as one self-contained text.

    Args:
        trace: What the page shows; each of its sequences can be chosen.
        height: In pixels: the text is then a frame to be put into another page, as a notebook's output or
            this book's pages are: ``display({"text/html": regard.to_html(trace, height=640)}, raw=True)``.
        **start: What the page opens with: ``layer``, ``head``, ``query``, ``key``, ``view`` ("map", "lines",
            "text"), ``theme``. Without any it opens with the story of the text.

    Returns:
        A whole HTML document, or an ``<iframe>`` that holds it.

    Raises:
        ArgumentError: If the trace has no layer, or the page would have more than 200 MB.

    Example:
        >>> to_html(Trace.from_weights([[1.0]], rows=["a"]), layer=0)[:15]
        '<!doctype html>'
    """
    whole = page(documents_of(trace), {"at": "atlas", **start} if start else None)
    if height is None:
        return whole
    style = f"width: 100%; height: {height}px; border: 0"
    return f'<iframe srcdoc="{escape(whole)}" style="{style}" title="attention"></iframe>'


def export(
    trace: Trace | Sequence[Document],
    path: str | Path,
    *,
    start: dict[str, Any] | None = None,
    force: bool = False,
) -> int:
    """Write a self-contained page and give its size in bytes.

    `start` is what the page opens with: layer, head, view ("map", "lines", "text"), theme and so on.
    """
    documents = documents_of(trace) if isinstance(trace, Trace) else list(trace)
    written = page(documents, start, force=force).encode("utf-8")
    try:
        Path(path).write_bytes(written)
    except OSError as error:
        raise ArgumentError(f"cannot write the page {str(path)!r}: {error.strerror}.") from error
    return len(written)


def embedded(document: Document, precision: Precision | None = None) -> Json:
    """The document with all its numbers, for JSON. Short texts keep every bit of queries and keys."""
    layers, data = _layers(document), bytearray()
    if precision is None:
        precision = "float32" if _size(layers, "float32") <= EXACT_BYTES else "float24"
    for about in layers:
        for name, tensor in about["tensors"].items():
            dtype = _DTYPES.get(name, "float32") or precision
            written = _as_bytes(tensor, dtype)
            place = {"dtype": dtype, "shape": list(tensor.shape), "at": len(data), "bytes": len(written)}
            about["tensors"][name] = place
            data += written + b"\0" * (-len(written) % 4)
    said = "32-bit floats" if precision == "float32" else "24-bit floats (relative error at most 2e-5)"
    meta = plain(document.meta(precision=f"queries and keys as {said}"))
    numbers = base64.b64encode(data).decode("ascii")
    return {"meta": meta, "facts": document.facts(), "layers": layers, "data": numbers}


def embedded_bytes(document: Document, precision: Precision) -> int:
    """About how many bytes `embedded` takes, without making it."""
    return _size(_layers(document), precision) + len(document.image or "")


def _size(layers: list[Json], precision: Precision) -> int:
    total = 0
    for name, tensor in (pair for about in layers for pair in about["tensors"].items()):
        dtype = _DTYPES.get(name, "float32") or precision
        total += tensor.numel() * (3 if dtype == "float24" else int(_NUMPY[dtype][-1]))
    return total * 4 // 3  # as text


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


def _layers(document: Document) -> list[Json]:
    """What the page needs to recover each layer's weights, and the tensors among it."""
    layers = []
    for layer in document.trace.layers:
        about = _layer(layer, document.batch)
        vectors, tensors = document.vectors.get(layer.name), about["tensors"]
        if vectors is not None:  # what the machine shows before the query
            turned = not torch.allclose(vectors.q, tensors["q"], 1e-4, 1e-4)  # by positions
            tensors |= {"x": vectors.x} | ({"xKey": vectors.x_key} if vectors.x_key is not vectors.x else {})
            tensors |= {"qBefore": vectors.q, "kBefore": vectors.k} if turned else {}
            wrote = json.dumps({f"{head}.{query}": said for (head, query), said in vectors.wrote.items()})
            about["wrote"] = json.loads(wrote, parse_float=lambda number: float(f"{float(number):.5g}"))
        layers.append(about)
    return layers


def _layer(layer: AnyLayer, batch: int) -> Json:
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
            (values,) = bias.part(None, batch).tensors
            tensors["bias"] = values[0] if bias.word == "dense" else values
    if layer.v is not None:
        tensors["v"] = layer.v[batch]
    pairwise = visible.lengths is not None and visible.lengths.dim() == 2
    hidden = {
        "seen": visible.combined_key_mask(layer.n_key),
        "lengths": visible.lengths if pairwise else None,
    }
    hidden |= {"query_segment": visible.query_segment, "key_segment": visible.key_segment}
    for name, tensor in (hidden | {"pairs": visible.dense}).items():
        if tensor is not None:
            tensors[name] = tensor[min(batch, len(tensor) - 1)]
    return about
