"""The dimension words, and the checks made once, at the public boundary.

Layout is always (batch, head, position, dim). The words:

    batch, head, kv_head, query, key, qk_dim, v_dim, model_dim, ff_dim, vocab, layer
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.torch_ops import warm_up_mkl
from regard.errors import ArgumentError, ShapeError

Vectors = Float[Tensor, "batch position model_dim"]  # between layers
Heads = Float[Tensor, "batch head position dim"]
# What attention is given.
Queries = Float[Tensor, "batch head query qk_dim"]
Keys = Float[Tensor, "batch kv_head key qk_dim"]
Values = Float[Tensor, "batch kv_head key v_dim"]
QUERY_WORDS = ("batch", "head", "query", "qk_dim")
KEY_WORDS = ("batch", "kv_head", "key", "qk_dim")
VALUE_WORDS = ("batch", "kv_head", "key", "v_dim")
BLOCK = 1 << 21  # scores, or numbers of a kernel's mask, that stay near the caches


def named(words: Sequence[str], shape: Sequence[int]) -> str:
    """A shape a person can read.

    >>> named(("batch", "head"), (2, 3))
    '(batch 2, head 3)'
    """
    if len(words) != len(shape):
        return f"{tuple(shape)}"
    return "(" + ", ".join(f"{word} {size}" for word, size in zip(words, shape, strict=True)) + ")"


def check_rank(name: str, tensor: Tensor, words: Sequence[str]) -> None:
    """Raise unless `tensor` has one dimension for each of `words`."""
    if tensor.dim() != len(words):
        raise ShapeError(
            f"{name} has {tensor.dim()} dimensions: it must be ({', '.join(words)}). "
            f"Got shape {tuple(tensor.shape)}."
        )


def check_divides(what: str, whole: int, parts_name: str, parts: int) -> None:
    """Raise unless `whole` splits into `parts` equal parts."""
    if parts < 1 or whole % parts:
        raise ShapeError(
            f"{what} {whole} does not split into {parts_name} {parts}: it must be a positive multiple of it."
        )


def check_sizes(**sizes: int) -> None:
    """Raise unless every size is at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ShapeError(f"{name} must be at least 1. Got {size}.")


def check_dropout(dropout: float) -> None:
    """Raise unless this is a probability below 1."""
    if not 0 <= dropout < 1:
        raise ArgumentError(f"dropout must be at least 0 and below 1. Got {dropout}.")


def check_same_kind(**tensors: Tensor) -> None:
    """Raise unless all tensors share one floating dtype and one device."""
    (first_name, first), *rest = tensors.items()
    if not first.is_floating_point():
        raise ShapeError(
            f"{first_name} has dtype {first.dtype}: it must be a floating one "
            f"({torch.float32}, {torch.bfloat16}, ...)."
        )
    for name, tensor in rest:
        if tensor.dtype != first.dtype:
            raise ShapeError(
                f"{name} has dtype {tensor.dtype} and {first_name} has {first.dtype}: they must be the same. "
                f"Convert one with .to({first.dtype})."
            )
        if tensor.device != first.device:
            raise ShapeError(
                f"{name} is on {tensor.device} and {first_name} on {first.device}: one device is needed."
            )
    warm_up_mkl(first)


def check_attention(q: Tensor, k: Tensor, v: Tensor | None = None) -> None:
    """Raise unless q, k and v fit one another as attention's inputs."""
    check_rank("q", q, QUERY_WORDS)
    check_rank("k", k, KEY_WORDS)
    if v is None:
        check_same_kind(q=q, k=k)
    else:
        check_rank("v", v, VALUE_WORDS)
        check_same_kind(q=q, k=k, v=v)
    (batch, n_head, _, qk_dim), (k_batch, n_kv_head, n_key, k_dim) = q.shape, k.shape
    wrong = None
    if batch != k_batch:
        wrong = f"q has batch {batch} and k has batch {k_batch}: they must be equal."
    elif n_head == 0 or n_kv_head == 0 or n_head % n_kv_head:
        wrong = (
            f"q has {n_head} heads and k has {n_kv_head}: query heads must be a multiple of key heads, "
            "and neither may be 0."
        )
    elif qk_dim != k_dim:
        wrong = f"q has qk_dim {qk_dim} and k has {k_dim}: they must be equal."
    elif qk_dim == 0:
        wrong = "qk_dim is 0: queries and keys need at least one number."
    elif v is not None and v.shape[:3] != (k_batch, n_kv_head, n_key):
        wrong = "k and v differ: every key needs one value, batch by batch and head by head."
    if wrong is not None:
        got = f"q {named(QUERY_WORDS, q.shape)}, k {named(KEY_WORDS, k.shape)}"
        got += "" if v is None else f", v {named(VALUE_WORDS, v.shape)}"
        raise ShapeError(f"{wrong} Got {got}.")


def whole_index(name: str, index: int, size: int) -> int:
    """The index counted from the front; raises where there is none."""
    if not -size <= index < size:
        raise ArgumentError(f"there is no {name} {index}: there are {size}, counted from 0.")
    return index % size


def whole_slice(name: str, part: slice | None, size: int) -> slice:
    """The slice with its ends filled in; None is all."""
    start, stop, step = (part or slice(None)).indices(size)
    if step != 1:
        raise ArgumentError(f"{name} must be a slice without a step. Got {part}.")
    return slice(start, max(start, stop))


def row_blocks(rows: slice, cost: int) -> Iterator[slice]:
    """The rows a few at a time, so that what costs `cost` numbers a row stays small."""
    step = max(1, BLOCK // max(1, cost))
    for first in range(rows.start, rows.stop, step):
        yield slice(first, min(rows.stop, first + step))


def chosen(tensor: Tensor, axis: int, index: int | Sequence[int] | None) -> Tensor:
    """One entry or some along `axis`, which stays an axis; all where it is None, or all share one."""
    if index is None or tensor.shape[axis] == 1:
        return tensor
    if isinstance(index, int):
        return tensor.narrow(axis, index, 1)
    return tensor.index_select(axis, torch.tensor(index, dtype=torch.long, device=tensor.device))
