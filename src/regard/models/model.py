"""What every model of ours answers: all that decoding, tracing, training and the page ask of one.

A base class and no Protocol, because no Protocol can say "and it is a torch module".
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import register_dataclass

from regard.errors import ArgumentError, ShapeError
from regard.layers.attention import Record


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """What a forward pass returns; a part is None where the model has none or it was not asked for.

    Attributes:
        hidden: ``(batch, position, model_dim)``, after the last norm.
        logits: ``(batch, position, vocab)``.
        pooled: ``(batch, model_dim)``, the vector of the whole text (BERT).
        memory: ``(batch, memory_position, model_dim)``, the encoder's output, of an encoder-decoder.
        layers: ``(batch, position, model_dim)`` each: the embeddings, then the output of each block.
    """

    hidden: Float[Tensor, "batch position model_dim"]  # after the last norm
    logits: Float[Tensor, "batch _position vocab"] | None = None
    pooled: Float[Tensor, "batch model_dim"] | None = None
    memory: Float[Tensor, "batch memory_position model_dim"] | None = None  # the encoder's output, if both
    layers: tuple[Float[Tensor, "batch position model_dim"], ...] | None = None  # embeddings, then each block

    def __repr__(self) -> str:
        shapes = ((name, getattr(self, name)) for name in ("hidden", "logits", "pooled", "memory"))
        return f"Output({', '.join(f'{name}={tuple(t.shape)}' for name, t in shapes if t is not None)})"


# torch.export and torch.func look into what a model returns.
register_dataclass(Output, serialized_type_name="regard.Output")


class _NothingDrawn(TorchFunctionMode):
    """First weights are left as they are. torch would draw those without memory in Python, by way of its
    compiler, which takes seconds to import.
    """

    def __torch_function__(
        self, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_):
            return args[0] if args else (kwargs or {})["tensor"]
        return function(*args, **(kwargs or {}))


@contextmanager
def on_meta() -> Iterator[None]:
    """Modules made inside have shapes and no numbers, on the device "meta"."""
    with torch.device("meta"), _NothingDrawn():
        yield


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a model is."""

    n_layer: int
    n_head: int  # of an attention layer
    n_kv_head: int
    model_dim: int
    vocab: int
    n_position: int | None  # the longest input; None: no limit


@runtime_checkable
class Decoding(Protocol):
    """One running decode."""

    def next(self, tokens: Int[Tensor, "batch"]) -> Float[Tensor, "batch vocab"]:
        """The scores of the token after these, one new token for each sequence."""

    def reorder(self, sequences: Int[Tensor, "new_batch"]) -> None:
        """Go on with these sequences in this order, as beam search does; one may come several times."""


class Model(nn.Module, ABC):
    """A model over tokens: a `Transformer`, or the recurrent `Seq2Seq`.

    `model(tokens)`, or `model(tokens, target)` with an encoder and a decoder, gives an `Output`. All take
    `key_mask` and `target_key_mask` (True: a real token), `record`, and `logits="none"`.
    """

    family: str  # of published models, or "seq2seq", or "custom"
    kind: Literal["encoder", "decoder", "encoder-decoder"]
    lm_head: Literal["language", "masked", "none"]
    start_token: int | None = None  # what an answer begins with, if the model itself knows
    stop_tokens: tuple[int, ...] = ()  # what ends a text, if the model itself knows

    @property
    @abstractmethod
    def sizes(self) -> Sizes:
        """How large the model is."""

    @property
    @abstractmethod
    def attention_names(self) -> list[str]:
        """The attention layers in the order they run: the names that `record` is given."""

    @abstractmethod
    def _decoding(self, *given: Any, **options: Any) -> Any:
        """A `Decoding` whose encoder has read the prompt, `given` with `key_mask` and `record`; one without
        can be fed it.
        """

    def begin(
        self,
        prompt: Int[Tensor, "batch position"],
        key_mask: Bool[Tensor, "batch position"] | None = None,
        *,
        start_token: int | None = None,
        record: Record | None = None,
        **options: Any,
    ) -> tuple[Float[Tensor, "batch vocab"], Decoding]:
        """Read the prompt: the scores of the token after it, and what decodes the next ones.

        An encoder-decoder reads it with the encoder and starts the answer with `start_token`, if it knows
        none itself. `record` is called at every step. A Transformer's `cache`, an `Evict`, says what is let
        go of what has been read.
        """
        if self.kind != "encoder-decoder":
            decoding = self._decoding(prompt, key_mask, record, **options)
            return decoding.feed(prompt), decoding
        start_token = self.start_token if start_token is None else start_token
        if start_token is None:
            raise ArgumentError(
                "an encoder-decoder needs a word to start with: give start_token, or the config a bos."
            )
        decoding = self._decoding(prompt, key_mask, record, **options)
        return decoding.next(prompt.new_full((prompt.shape[0],), start_token)), decoding


def check_tokens(
    name: str, tokens: Tensor, n: int, words: str = "(batch, position)", why: str = ", the vocabulary"
) -> None:
    """Raise unless these are whole numbers from 0 to n - 1 with as many dimensions as `words`."""
    n_dim = len(words.split())
    if tokens.dim() != n_dim or not tokens.numel():
        least = "at least one of each" if n_dim > 1 else "at least one"
        raise ShapeError(f"{name} must be {words}, {least}. Got shape {tuple(tokens.shape)}.")
    if tokens.dtype not in (torch.int32, torch.int64):
        raise ShapeError(f"{name} must be whole numbers, int32 or int64. Got dtype {tokens.dtype}.")
    if not torch.compiler.is_compiling() and not tokens.is_meta:
        low, high = (int(end) for end in tokens.aminmax())
        if low < 0 or high >= n:
            raise ArgumentError(
                f"{name} must lie between 0 and {n - 1}{why}. Got values from {low} to {high}."
            )
