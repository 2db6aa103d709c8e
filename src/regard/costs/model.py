"""What a model costs: operations, bytes moved, cache and parameters, as formulas and as numbers.

    found = cost(config, "decode", batch=8, length=8191)
    found.operations, found.bytes, found.intensity, found.cache_bytes
    for row in found.rows: row.name, str(row.operations), row.n_operation

Operations are those of matrix products, two for each multiplication with its addition: what PyTorch's
`FlopCounterMode` counts on the plain path. Bytes are those of operands and results, each once for each
product, and of the softmax; norms, residuals and activations, which a compiler folds into their neighbours,
are left out. Hidden scores are computed and counted, as the plain path does.

    b batch      t new tokens   n tokens in the cache before them   m tokens of the memory (encoder)
    d model_dim  h heads        g key heads   k qk_dim   v v_dim    f ff_dim   V vocabulary   L layers
    p features of a feature map c, r latent and rotary numbers of multi-head latent attention
    w keys that a layer with a window reads and keeps

When it decodes, a layer with a window reads and keeps the window alone, as a cache that rolls does; our own
cache keeps all. E are an encoder's layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from regard.attention.feature_maps import feature_map
from regard.costs.formula import Formula, symbols
from regard.errors import ArgumentError, UnsupportedError
from regard.layers.block import BlockConfig
from regard.models import mechanisms
from regard.models.transformer import TransformerConfig

Phase = Literal["train", "prefill", "decode"]
NOTHING = Formula()
ONE = Formula() + 1
b, t, n, m, d, h, g, k, v, f, V, E, L, w, p, c, r = symbols("b t n m d h g k v f V E L w p c r")
OPTIMISER = 7  # Adam reads a weight, its gradient and two moments, and writes all but the gradient


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-AI 2024, 2.1): the cache holds one short vector for each token.

    Decoding never makes keys and values: their up-projections are absorbed into queries and outputs.

    Attributes:
        latent: Size of the latent vector from which the keys and values of all heads are made.
        rotary: Size of the rotary key, which carries the position and is shared by all heads.
    """

    latent: int
    rotary: int

    @classmethod
    def usual(cls, qk_dim: int) -> Latent:
        """Return the sizes that the paper chooses: a latent vector of 4 qk_dim, a rotary key of qk_dim / 2.

        Args:
            qk_dim: Size of one head's queries and keys, without the rotary part.

        Returns:
            The sizes.
        """
        return cls(4 * qk_dim, qk_dim // 2)


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of operation, summed over all layers: its formulas, and their values.

    Formulas count numbers, not bytes.

    Attributes:
        name: What is computed, such as "scores" or "ff up".
        operations: Operations of matrix products, two for each multiplication with its addition.
        activations: Activations read and written, those of the cache included.
        weights: Parameters read; in the optimiser's row, all that it reads and writes.
        sizes: The value of each symbol.
        number_bytes: Bytes of one number.
    """

    name: str
    operations: Formula = NOTHING
    activations: Formula = NOTHING
    weights: Formula = NOTHING
    sizes: Mapping[str, int] = field(default_factory=dict, repr=False)
    number_bytes: int = 4

    @property
    def n_operation(self) -> int:
        """How many operations there are for these sizes."""
        return self.operations.value(self.sizes)

    @property
    def n_byte(self) -> int:
        """How many bytes are moved for these sizes."""
        return self.moved.value(self.sizes) * self.number_bytes

    @property
    def intensity(self) -> float:
        """Operations for each byte moved."""
        return self.n_operation / self.n_byte if self.n_byte else 0.0

    @property
    def moved(self) -> Formula:
        """All numbers read and written: weights and activations."""
        return self.weights + self.activations

    def times(self, operations: Formula | int, moved: Formula | int, prefix: str = "") -> Row:
        """Multiply the row, for example by the number of layers.

        Args:
            operations: What the operations are multiplied by.
            moved: What the numbers moved are multiplied by.
            prefix: Put before the name.

        Returns:
            A new row, without sizes.
        """
        activations, weights = moved * self.activations, moved * self.weights
        return Row(prefix + self.name, operations * self.operations, activations, weights)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one step of a phase.

    Attributes:
        phase: "train", "prefill" or "decode".
        rows: The operations, one row for each kind.
        sizes: The value of each symbol in the formulas.
        number_bytes: Bytes of one number.
        parameters: How many parameters the model has.
        cache: How many numbers the cache holds after the step; 0 in training.
    """

    phase: Phase
    rows: tuple[Row, ...]
    sizes: Mapping[str, int]
    number_bytes: int
    parameters: Formula
    cache: Formula

    @property
    def operations(self) -> int:
        """Operations of matrix products, over the whole model and batch."""
        return sum(row.n_operation for row in self.rows)

    @property
    def bytes(self) -> int:
        """Bytes moved to and from memory."""
        return sum(row.n_byte for row in self.rows)

    @property
    def intensity(self) -> float:
        """Operations for each byte moved."""
        return self.operations / self.bytes

    @property
    def n_parameter(self) -> int:
        """How many parameters the model has."""
        return self.parameters.value(self.sizes)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters."""
        return self.n_parameter * self.number_bytes

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values, or of a linear layer's state, held after the step."""
        return self.cache.value(self.sizes) * self.number_bytes


def check_alike(config: TransformerConfig) -> None:
    """Raise `UnsupportedError` unless the formulas know all that the config has."""
    reason = mechanisms.why_not(config, "costs")
    if reason is not None:
        raise UnsupportedError(f"{reason}.")


def cost(
    config: TransformerConfig,
    phase: Phase,
    *,
    batch: int = 1,
    length: int,
    memory: int | None = None,
    dtype: torch.dtype = torch.float32,
    latent: Latent | None = None,
    fused: bool = False,
) -> Cost:
    """Compute the cost of one training step, of a prefill, or of one decoding step.

    Args:
        config: The model.
        phase: "train", "prefill" or "decode".
        batch: How many sequences are processed together.
        length: Tokens of each sequence; when decoding, tokens in the cache before the new one. The decoder
            of an encoder-decoder starts with one token in prefill and reads `length` in training.
        memory: Tokens that the encoder of an encoder-decoder reads. Default: `length`.
        dtype: The type of weights and activations.
        latent: Sizes of multi-head latent attention, which then replaces the config's own attention.
        fused: Whether a fused kernel computes attention: scores are then never written to memory.

    Returns:
        The cost, with the formula of each operation.

    Raises:
        ArgumentError: If there is no such phase, a size is too small, or `memory` is given for a model that
            is not an encoder-decoder.
        UnsupportedError: If the formulas do not cover what the config has, an encoder is asked to decode, or
            `latent` is given for anything but a decoder with softmax attention without biases.
    """
    check_alike(config)
    check_lengths(phase, batch, length, memory)
    block, both = config.block, config.kind == "encoder-decoder"
    if memory is not None and not both:
        raise ArgumentError(
            f"only an encoder-decoder has a memory; this is a model that is {config.kind} only."
        )
    if phase == "decode" and not config.n_decoder_layer:
        raise UnsupportedError("an encoder sees its whole input at once: it has no decoding step.")
    if latent is not None and (config.kind != "decoder" or block.feature_map or block.attention_bias):
        raise UnsupportedError("latent attention is costed for a decoder with softmax and without biases.")
    memory = (length if memory is None else memory) if both else 0
    new, cached = (1, length) if phase == "decode" else (1 if both and phase == "prefill" else length, 0)
    seen = min(cached + new, block.window or cached + new) if phase == "decode" else cached + new
    sizes = sizes_of(config, latent) | {"b": batch, "t": new, "n": cached, "m": memory, "w": seen}
    embedded, rows = NOTHING, list[Row]()
    if config.n_encoder_layer and phase != "decode":
        embedded = span = m if both else t
        rows += [row.times(E, E, "encoder ") for row in _block(block, span, span, fused=fused)]
    if config.n_decoder_layer:
        embedded = embedded + t
        keys, read_anew = n + t if block.window is None else w, NOTHING if phase == "decode" else m
        looked_at = _block(block, t, keys, m if both else None, read_anew, latent, fused)
        rows += [row.times(L, L, "decoder " if both else "") for row in looked_at]
    rows.insert(0, Row("embedding", activations=2 * b * embedded * d))
    asked, masked = (
        b * (t if phase == "train" or config.lm_head == "masked" else ONE),
        config.lm_head == "masked",
    )
    if masked:
        rows.append(_product("head projection", asked, d, d, bias=True))
    if config.lm_head != "none":
        rows.append(_product("vocabulary", asked, d, V, bias=masked))
    if config.pooler:
        rows.append(_product("pooler", b, d, d, bias=True))
    n_parameter = parameters(config, latent)
    if phase == "train":
        # The backward pass of a product has two more of the same size, that of softmax reads a table more.
        rows = [row.times(3, 3 if row.operations.terms else 2) for row in rows]
        rows.append(Row("optimiser", weights=OPTIMISER * n_parameter))
    size, held = dtype.itemsize, NOTHING if phase == "train" else _held(config, latent)
    counted = tuple(replace(row, sizes=sizes, number_bytes=size) for row in rows if row.moved.terms)
    return Cost(phase, counted, sizes, size, n_parameter, held)


def sizes_of(config: TransformerConfig, latent: Latent | None = None) -> dict[str, int]:
    """The value of each symbol that the config fixes."""
    block = config.block
    head = block.model_dim // block.n_head
    qk_dim = block.qk_dim or head
    sizes = {
        "d": block.model_dim,
        "h": block.n_head,
        "g": block.n_kv_head or block.n_head,
        "k": qk_dim,
        "v": block.v_dim or head,
        "f": block.ff_dim,
        "V": config.vocab,
        "E": config.n_encoder_layer,
        "L": config.n_decoder_layer,
    }
    if block.feature_map is not None:
        sizes["p"] = feature_map(block.feature_map, qk_dim=qk_dim).dim(qk_dim)
    if latent is not None:
        sizes |= {"c": latent.latent, "r": latent.rotary}
    return sizes


def _product(name: str, rows: Formula, inner: Formula, outer: Formula, bias: bool = False) -> Row:
    """rows x inner times a matrix of inner x outer parameters."""
    return Row(name, 2 * rows * inner * outer, rows * (inner + outer), inner * outer + bias * outer)


def _block(
    block: BlockConfig,
    new: Formula,
    keys: Formula,
    memory: Formula | None = None,
    read_anew: Formula = NOTHING,
    latent: Latent | None = None,
    fused: bool = False,
) -> list[Row]:
    """All the products of one block."""
    rows = _attention(block, new, keys, new, fused) if latent is None else _latent_attention(new, keys, fused)
    if memory is not None:
        rows += [row.times(1, 1, "cross ") for row in _attention(block, new, memory, read_anew, fused)]
    tokens, bias = b * new, block.ff_bias
    rows += [_product(name, tokens, d, f, bias) for name in ("ff up", "ff gate")[: 1 + block.gated]]
    return [*rows, _product("ff down", tokens, f, d, bias)]


def _attention(
    block: BlockConfig, queries: Formula, keys: Formula, projected: Formula, fused: bool
) -> list[Row]:
    """Grouped attention of one layer; g = h is multi-head, g = 1 multi-query."""
    tokens, bias = b * queries, block.attention_bias
    parts = [_product("query", tokens, d, h * k, bias)]
    if projected.terms:
        parts += [_product(name, b * projected, d, g * dim, bias) for name, dim in (("key", k), ("value", v))]
    if block.feature_map is None:
        parts += _look(queries, keys, g, k, v, fused)
    else:
        parts += _linear(block.feature_map, queries, projected)
    if block.output_gate:
        parts.append(_product("gate", tokens, d, h * v, bias))
    return [*parts, _product("output", tokens, h * v, d, bias if block.out_bias is None else block.out_bias)]


def _look(
    queries: Formula, keys: Formula, key_heads: Formula, qk_dim: Formula, v_dim: Formula, fused: bool
) -> list[Row]:
    """Scores, softmax and weighted values of one layer."""
    table, asked, held = b * h * queries * keys, b * h * queries, b * keys * key_heads
    shown = NOTHING if fused else table
    return [
        Row("scores", 2 * table * qk_dim, (asked + held) * qk_dim + shown),
        Row("softmax", activations=2 * shown),
        Row("weighted values", 2 * table * v_dim, (asked + held) * v_dim + shown),
    ]


def _linear(name: str, queries: Formula, projected: Formula) -> list[Row]:
    """Kernelised attention: sums over keys, read by queries; z is one column more than v.

    Causal training and prefill add, inside each chunk, products that depend on the chunk's length alone.
    """
    state = b * g * p * (v + 1)
    collected, read = b * g * projected, b * h * queries
    parts = []
    if name == "favor":  # its features are products themselves
        parts.append(Row("features", 2 * (collected + read) * k * p, weights=k * p))
    if projected.terms:
        parts.append(Row("state", 2 * collected * p * (v + 1), collected * (k + v) + state))
    return [*parts, Row("read state", 2 * read * p * (v + 1), read * (k + v) + state)]


def _latent_attention(queries: Formula, keys: Formula, fused: bool) -> list[Row]:
    """Multi-head latent attention with the up-projections absorbed, as it decodes."""
    rows = b * queries
    return [
        _product("query", rows, d, h * (k + r)),
        _product("latent", rows, d, c + r),
        _product("query to latent", rows, k, c).times(h, h),
        *_look(queries, keys, ONE, c + r, c, fused),
        _product("latent to value", rows, c, v).times(h, h),
        _product("output", rows, h * v, d),
    ]


def parameters(config: TransformerConfig, latent: Latent | None = None) -> Formula:
    """Count the parameters of a model.

    Args:
        config: The model.
        latent: Sizes of multi-head latent attention, which then replaces the config's own attention.

    Returns:
        The number of parameters as a formula. Weights that are tied count once.
    """
    block = config.block
    norm = 2 * d if block.norm == "layer" else d
    total = (
        (V + config.n_token_type) * d
        + (config.lm_head == "masked") * (d * d + d + V + norm)
        + (config.lm_head != "none" and not config.tied) * (V * d)
        + config.pooler * (d * d + d)
        + (config.positions == "learned") * (config.n_position or 0) * d
        + config.embed_norm * norm
    )
    both = config.kind == "encoder-decoder"
    for count, n_layer, cross in ((E, config.n_encoder_layer, False), (L, config.n_decoder_layer, both)):
        if n_layer:
            rows = _block(block, t, n + t, m if cross else None, m, latent)
            matrices = sum((row.weights for row in rows if row.name != "features"), NOTHING)
            small = (1 + cross) * (block.qk_norm * 2 * k + block.sinks * h)
            total += count * (matrices + (2 + cross + 2 * block.norm_after) * norm + small)
            total += config.final_norm * norm + (config.positions == "relative") * config.n_bucket * h
    return total


def _held(config: TransformerConfig, latent: Latent | None) -> Formula:
    """Numbers in the cache after the step."""
    if not config.n_decoder_layer:
        return NOTHING
    kept, both = n + t if config.block.window is None else w, config.kind == "encoder-decoder"
    if latent is not None:
        return L * b * kept * (c + r)
    if config.block.feature_map is not None:
        return (1 + both) * L * b * g * p * (v + 1)
    return L * b * (kept + both * m) * g * (k + v)


def leading(
    kind: Literal["multi-head", "grouped", "multi-query"], what: Literal["operations", "bytes"]
) -> str:
    """Return the leading terms of one decoding step of one attention layer, with qk_dim = v_dim = d / h.

    Args:
        kind: How many key heads there are: "multi-head" (h), "grouped" (g) or "multi-query" (1).
        what: "operations" or "bytes"; bytes up to the factor of one number's size.

    Returns:
        The terms inside O( ), written as a formula.

    Raises:
        ArgumentError: If `kind` or `what` is something else.

    Example:
        >>> leading("multi-head", "operations"), leading("multi-query", "operations")
        ('b n d + b d²', 'b n d + b d²')
        >>> leading("multi-head", "bytes")
        'b d + d² + b n d'
        >>> leading("multi-query", "bytes")
        'b n d / h + b d + d² + b n h'
    """
    heads = {"multi-head": h, "grouped": g, "multi-query": ONE}
    if kind not in heads or what not in ("operations", "bytes"):
        raise ArgumentError(
            f"kind is one of {', '.join(heads)}, what operations or bytes. Got {kind!r}, {what!r}."
        )
    block = BlockConfig(model_dim=1, n_head=1, ff_dim=1, attention_bias=False)
    parts = _attention(block, t, n + t, t, False)
    total = sum((part.operations if what == "operations" else part.moved for part in parts), NOTHING)
    return str(total.substituted({"k": d / h, "v": d / h, "t": 1, "g": heads[kind]}).leading())


def what_if(config: TransformerConfig) -> dict[str, tuple[TransformerConfig, Latent | None]]:
    """Build the same model with other numbers of key heads, and with multi-head latent attention.

    Args:
        config: The model.

    Returns:
        Config and latent sizes of each variant by its name, as `cost` takes them. All have softmax attention;
        of the possible numbers of key heads, the two smallest and the two largest are there.
    """
    block, n_head = config.block, config.block.n_head
    counts = [count for count in range(1, n_head + 1) if n_head % count == 0]
    models: dict[str, tuple[TransformerConfig, Latent | None]] = {}
    for count in counts if len(counts) <= 4 else (*counts[:2], *counts[-2:]):
        kind = "multi-query" if count == 1 else "multi-head" if count == n_head else "grouped"
        grouped = replace(block, n_kv_head=count, feature_map=None)
        models[f"{count} kv ({kind})"] = (replace(config, block=grouped), None)
    bare = replace(block, n_kv_head=None, feature_map=None, attention_bias=False, out_bias=None)
    qk_dim = block.qk_dim or block.model_dim // n_head
    return models | {"latent": (replace(config, block=bare), Latent.usual(qk_dim))}


def check_lengths(phase: str, batch: int, length: int, memory: int | None = None) -> None:
    """Raise unless there is such a step."""
    if phase not in ("train", "prefill", "decode"):
        raise ArgumentError(f"phase must be 'train', 'prefill' or 'decode'. Got {phase!r}.")
    least = 0 if phase == "decode" else 1
    if batch < 1 or length < least or (memory is not None and memory < 1):
        raise ArgumentError(
            f"batch and memory must be at least 1, length at least {least}. "
            f"Got batch {batch}, length {length}, memory {memory}."
        )
