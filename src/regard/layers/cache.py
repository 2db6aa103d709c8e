"""Keys and values of the past, kept so that decoding one token costs one token.

The one thing in the library that mutates: in `append`, `append_state`, `crop`, `select` and `reorder` only.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.delta import DeltaState
from regard.attention.linear import LinearState
from regard.attention.shapes import KEY_WORDS, VALUE_WORDS, Keys, Values, check_rank, named
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, ShapeError, UnsupportedError


class LayerCache:
    """The keys and values one attention layer has seen, in buffers that grow in blocks.

    With grouped heads only the `kv_head` heads are held: multi-query needs n_head times less than multi-head.
    What `append` has returned never changes. It is made for decoding: a backward pass through more than one
    `append` is refused by autograd.
    """

    def __init__(self, block: int = 256) -> None:
        """Create an empty cache.

        Args:
            block: The buffers' capacity is a multiple of this many positions.

        Raises:
            ArgumentError: If `block` is below 1.
        """
        if block < 1:
            raise ArgumentError(f"block is how many positions the buffers grow by: at least 1. Got {block}.")
        self.block = block
        self.length = 0  # positions held
        self.held: Int[Tensor, "batch kv_head key"] | None = None  # which of those read; None: all
        self._n_gone = 0  # positions that `select` let go
        self._written = 0  # positions of the buffers that somebody may still hold a view of
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self.state: LinearState | DeltaState | None = None  # in place of keys and values: linear, delta rule

    def __repr__(self) -> str:
        gone = f" of {self.read}" if self._n_gone else ""
        return f"LayerCache({self.length}{gone} positions, {self.bytes / 1e6:.1f} MB)"

    @property
    def read(self) -> int:
        """How many positions have been read: those held, and those that were let go."""
        return self.length + self._n_gone

    def append_state(self, state: LinearState | DeltaState, n_new: int) -> None:
        """Replace the state of a linear or delta layer by one that has seen `n_new` positions more."""
        self.state, self.length = state, self.length + n_new

    def append(
        self, k: Float[Tensor, "batch kv_head new qk_dim"], v: Float[Tensor, "batch kv_head new v_dim"]
    ) -> tuple[Keys, Values, int]:
        """Append new keys and values.

        Args:
            k: New keys, ``(batch, kv_head, new, qk_dim)``.
            v: New values, ``(batch, kv_head, new, v_dim)``.

        Returns:
            All keys and all values held, the new ones last, ``(batch, kv_head, key, dim)``, and the index of
            the first new one.

        Raises:
            ShapeError: If `k` and `v` do not fit together, or do not fit what the cache holds.
        """
        check_rank("k", k, KEY_WORDS)
        check_rank("v", v, VALUE_WORDS)
        if k.shape[:3] != v.shape[:3]:
            raise ShapeError(
                "k and v differ: every key needs one value, batch by batch and head by head. "
                f"Got k {named(KEY_WORDS, k.shape)}, v {named(VALUE_WORDS, v.shape)}."
            )
        start = self.length
        stop = start + k.shape[2]
        # Both before either is kept, so that a refused append leaves the cache as it was.
        new_k, new_v = self._room(self._k, k, stop, "k"), self._room(self._v, v, stop, "v")
        new_k[:, :, start:stop] = k
        new_v[:, :, start:stop] = v
        if self.held is not None:
            new = torch.arange(self.read, self.read + k.shape[2], device=k.device)
            self.held = torch.cat([self.held, new.expand(*k.shape[:3])], 2)
        self._k, self._v, self.length, self._written = new_k, new_v, stop, stop
        return new_k[:, :, :stop], new_v[:, :, :stop], start

    def _room(self, buffer: Tensor | None, new: Tensor, stop: int, name: str) -> Tensor:
        """A buffer that holds `stop` positions: the same one, or a longer copy."""
        if buffer is not None:
            same = (*buffer.shape[:2], buffer.shape[3]) == (*new.shape[:2], new.shape[3])
            if not same or buffer.dtype != new.dtype or buffer.device != new.device:
                raise ShapeError(
                    f"new {name} does not fit the cache: batch, heads, dim, dtype and device must stay. "
                    f"The cache has {named(KEY_WORDS, buffer.shape)} {buffer.dtype} on {buffer.device}, "
                    f"got {named(KEY_WORDS, new.shape)} {new.dtype} on {new.device}."
                )
            if stop <= buffer.shape[2]:
                # After a crop, a trace may still hold the keys that stood where the new ones would go.
                free = self.length >= self._written
                locked = buffer.is_inference() and not torch.is_inference_mode_enabled()  # by PyTorch
                return buffer if free and not locked else buffer.clone()
        # Doubling keeps the copies O(1) for each position; blocks keep small caches small.
        wanted = max(stop, min(2 * buffer.shape[2], stop + 4096)) if buffer is not None else stop
        capacity = -(-wanted // self.block) * self.block
        grown = new.new_empty(*new.shape[:2], capacity, new.shape[3])
        if buffer is not None:
            grown[:, :, : self.length] = buffer[:, :, : self.length]
        return grown

    @property
    def k(self) -> Keys | None:
        """The keys so far."""
        return None if self._k is None else self._k[:, :, : self.length]

    @property
    def v(self) -> Values | None:
        """The values so far."""
        return None if self._v is None else self._v[:, :, : self.length]

    def crop(self, length: int) -> None:
        """Forget every position from `length` on."""
        if not 0 <= length <= self.length:
            raise ArgumentError(f"a cache of {self.length} positions cannot be cropped to {length}.")
        if length < self.length and self.held is not None:
            raise UnsupportedError("this cache let positions go: those left cannot be cropped by number.")
        if length < self.length and self.state is not None:
            raise UnsupportedError("this layer keeps a sum of the past: nothing can be taken out.")
        self.length = length

    def select(
        self,
        kept: Int[Tensor, "batch kv_head kept"],
        k: Float[Tensor, "batch kv_head kept qk_dim"] | None = None,
    ) -> None:
        """Let go all but these of the positions held, head by head; `k` takes the place of the keys kept."""
        if self._k is None or self._v is None:
            raise UnsupportedError("positions can be let go where keys and values are held: here are none.")
        before = self.length
        if self.held is None:
            self.held = torch.arange(before, device=kept.device).expand(*self._k.shape[:2], before)
        held_k, held_v = (
            held[:, :, :before].gather(2, kept[..., None].expand(-1, -1, -1, held.shape[3]))
            for held in (self._k, self._v)
        )
        self._k, self._v = held_k if k is None else k, held_v
        self.held = self.held.gather(2, kept)
        self.length = self._written = kept.shape[2]  # the buffers are new: nobody else has seen them
        self._n_gone += before - self.length

    def of_held(self, flags: Bool[Tensor, "batch _read"] | None) -> Bool[Tensor, "batch kv_head key"] | None:
        """Return the flags of the positions that are held, out of those of all positions that were read.

        Args:
            flags: ``(batch, read)``, or None.

        Returns:
            ``(batch, kv_head, key)``; None without flags, or while no keys are held.
        """
        if flags is None or self._k is None:
            return None
        if self.held is None:
            return flags[:, None, : self.length].expand(-1, self._k.shape[1], -1)
        return flags[:, None].expand(-1, self._k.shape[1], -1).gather(2, self.held)

    def visibility(self, key_mask: Bool[Tensor, "batch _key"], n_head: int) -> Visibility:
        """Return which keys are real: those held, then the new ones. `key_mask` covers all that was read."""
        held = self.of_held(key_mask)
        if held is None or self.held is None:
            return Visibility(key_mask=key_mask)
        new = key_mask[:, None, self.read :]
        flags = torch.cat([held, new.expand(-1, held.shape[1], -1)], 2)
        flags = flags.repeat_interleave(n_head // held.shape[1], 1)
        return Visibility(dense=flags[:, :, None].expand(-1, -1, new.shape[2], -1))

    def reorder(self, sequences: Int[Tensor, "new_batch"]) -> None:
        """Keep these sequences in this order, as beam search does; one may come several times."""
        held = self._k if self.state is None else self.state.S
        if held is None:
            return
        batch = held.shape[0]
        if sequences.dim() != 1 or sequences.dtype not in (torch.int32, torch.int64):
            raise ShapeError(
                "sequences must be (batch,), whole numbers. "
                f"Got shape {tuple(sequences.shape)} and dtype {sequences.dtype}."
            )
        low, high = (int(end) for end in sequences.aminmax()) if sequences.numel() else (0, 0)
        if low < 0 or high >= batch:
            raise ArgumentError(
                f"sequences must lie between 0 and {batch - 1}: the cache holds {batch}. "
                f"Got values from {low} to {high}."
            )
        if self.state is not None:
            self.state = self.state.select(sequences)
        if self._k is not None and self._v is not None:
            self._k, self._v = self._k.index_select(0, sequences), self._v.index_select(0, sequences)
        if self.held is not None:
            self.held = self.held.index_select(0, sequences)
        self._written = self.length  # the buffers are new: nobody else has seen them

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values held, or of a linear layer's state."""
        return self._bytes(self.k, self.v)

    @property
    def bytes_reserved(self) -> int:
        """Bytes of the buffers, with the room not yet used."""
        return self._bytes(self._k, self._v)

    def _bytes(self, *tensors: Tensor | None) -> int:
        state = () if self.state is None else self.state.tensors
        return sum(tensor.nbytes for tensor in (*tensors, *state) if tensor is not None)


class KVCache:
    """One `LayerCache` for each layer, and for an encoder-decoder those of the memory.

    Attributes:
        layers: The cache of each layer's self-attention; `cache[i]` is `cache.layers[i]`.
        cross: The cache of each layer's cross-attention, filled once, from the memory.

    Example:
        >>> import torch
        >>> cache = KVCache(n_layer=1)
        >>> k, v, start = cache[0].append(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
        >>> start, cache.length, cache.bytes
        (0, 3, 192)
    """

    def __init__(self, n_layer: int, *, block: int = 256) -> None:
        """Create an empty cache.

        Args:
            n_layer: Number of layers.
            block: The buffers' capacity is a multiple of this many positions.

        Raises:
            ArgumentError: If `n_layer` is negative, or `block` is below 1.
        """
        if n_layer < 0:
            raise ArgumentError(f"n_layer must not be negative. Got {n_layer}.")
        self.layers = [LayerCache(block) for _ in range(n_layer)]
        self.cross = [LayerCache(block=1) for _ in range(n_layer)]

    def __repr__(self) -> str:
        return f"KVCache({len(self)} layers, {self.length} positions, {self.bytes / 1e6:.1f} MB)"

    def __getitem__(self, layer: int) -> LayerCache:
        return self.layers[layer]

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def length(self) -> int:
        """How many positions are held."""
        return self.layers[0].length if self.layers else 0

    @property
    def read(self) -> int:
        """How many positions have been read: those held, and those that were let go."""
        return self.layers[0].read if self.layers else 0

    def crop(self, length: int) -> None:
        """Forget every position from `length` on; the memory stays."""
        for layer in self.layers:
            layer.crop(length)

    def reorder(self, sequences: Int[Tensor, "new_batch"]) -> None:
        """Keep these sequences in this order, in every layer."""
        for layer in (*self.layers, *self.cross):
            layer.reorder(sequences)

    @property
    def bytes(self) -> int:
        """Bytes of all keys and values held."""
        return sum(layer.bytes for layer in (*self.layers, *self.cross))

    @property
    def bytes_reserved(self) -> int:
        """Bytes of all buffers."""
        return sum(layer.bytes_reserved for layer in (*self.layers, *self.cross))
