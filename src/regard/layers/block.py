"""The block that Transformers are made of: attention and feed-forward, each with a residual and a norm."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.data import Ranges, check_fields
from regard.attention.scores import Bias
from regard.attention.shapes import Vectors, check_dropout, check_sizes
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError
from regard.layers.attention import MultiHeadAttention, Record
from regard.layers.cache import LayerCache
from regard.layers.positions import RotaryCosSin

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": partial(nn.functional.gelu, approximate="tanh"),  # no lambda: a layer can be pickled
    "silu": nn.functional.silu,
}


class FeedForward(nn.Module):
    """Feed-forward network: down(act(up(x))), or gated: down(act(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(
        self, model_dim: int, ff_dim: int, *, activation: str, gated: bool, bias: bool, dropout: float
    ) -> None:
        """Create the network with freshly initialised weights.

        Args:
            model_dim: Size of the input and output vectors.
            ff_dim: Size of the hidden layer.
            activation: relu, gelu, gelu_tanh or silu.
            gated: Whether the activation is applied to a gate, which multiplies the hidden layer.
            bias: Whether the linear layers have a bias.
            dropout: Dropout probability of the hidden activations, in training mode.

        Raises:
            ShapeError: If a size is below 1.
            ArgumentError: If the activation is unknown, or `dropout` is not at least 0 and below 1.
        """
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ArgumentError(f"activation must be one of {', '.join(ACTIVATIONS)}. Got {activation!r}.")
        check_sizes(model_dim=model_dim, ff_dim=ff_dim)
        check_dropout(dropout)
        self.activation = ACTIVATIONS[activation]
        self.up = nn.Linear(model_dim, ff_dim, bias)
        self.gate = nn.Linear(model_dim, ff_dim, bias) if gated else None
        self.down = nn.Linear(ff_dim, model_dim, bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Vectors) -> Vectors:
        """Apply the network to every position by itself.

        Args:
            x: Inputs, ``(batch, position, model_dim)``.

        Returns:
            ``(batch, position, model_dim)``.
        """
        up = self.up(x)
        hidden = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        out: Tensor = self.down(self.dropout(hidden))
        return out


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """Options of a Transformer block; the model families differ in these fields.

    Attributes:
        model_dim: Size of the vectors between blocks.
        n_head: Number of query heads.
        ff_dim: Size of the feed-forward network's hidden layer.
        n_kv_head: Number of key and value heads. None: `n_head` (multi-head).
        qk_dim: Size of a head's queries and keys. None: `model_dim / n_head`.
        v_dim: Size of a head's values. None: `model_dim / n_head`.
        norm: LayerNorm ("layer") or RMSNorm ("rms").
        norm_first: Whether norms come before attention and feed-forward (pre-norm), or after the residual is
            added (post-norm).
        norm_after: Whether the outputs of attention and feed-forward have a norm too, before they are added
            to the residual (Gemma 2 and 3). Pre-norm only.
        parallel: Whether the feed-forward network reads the block's input, as attention does, and both
            outputs are added to it (GPT-NeoX). Pre-norm only.
        norm_eps: Epsilon of all norms.
        activation: Activation of the feed-forward network: relu, gelu, gelu_tanh or silu.
        gated: Whether the feed-forward network is gated (Shazeer 2020).
        attention_bias: Whether the attention's projections have a bias.
        out_bias: Whether the attention's output projection has a bias. None: the same as `attention_bias`.
        ff_bias: Whether the feed-forward network's linear layers have a bias.
        scale: Factor of the dot products. None: 1 / sqrt(qk_dim).
        feature_map: Name of a feature map: linear attention in place of softmax. None: softmax.
        window: In causal self-attention a query sees only keys less than this many positions away, itself
            included. None: any distance.
        softcap: Scores become cap * tanh(score / cap) (Gemma 2). None: scores are not capped.
        qk_norm: Whether each head's queries and keys have an RMS norm (Qwen3, Gemma 3).
        sinks: Whether each head learns the score of a sink, which takes part in the softmax and has no value
            (gpt-oss).
        alibi: Whether scores are lowered in proportion to distance (Press et al. 2022).
        output_gate: Whether the heads' outputs are multiplied by a sigmoid of the attention's input
            (Qiu et al. 2025).
        dropout: Dropout probability of attention weights (softmax attention only), hidden activations and
            what is added to the residual.

    Raises:
        ArgumentError: If a field has another type or is out of range, or `norm_after` or `parallel` is
            combined with post-norm.
    """

    model_dim: int
    n_head: int
    ff_dim: int
    n_kv_head: int | None = None
    qk_dim: int | None = None
    v_dim: int | None = None
    norm: Literal["layer", "rms"] = "layer"
    norm_first: bool = True
    norm_after: bool = False
    parallel: bool = False
    norm_eps: float = 1e-5
    activation: str = "gelu"
    gated: bool = False
    attention_bias: bool = True
    out_bias: bool | None = None
    ff_bias: bool = True
    scale: float | None = None
    feature_map: str | None = None
    window: int | None = None
    softcap: float | None = None
    qk_norm: bool = False
    sinks: bool = False
    alibi: bool = False
    output_gate: bool = False
    dropout: float = 0.0
    ranges: ClassVar[Ranges] = {
        **dict.fromkeys("model_dim n_head ff_dim n_kv_head qk_dim v_dim window".split(), (1, math.inf)),
        "norm_eps": (0, 1),
        "softcap": (1e-6, math.inf),
    }

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.norm_first and (self.norm_after or self.parallel):
            raise ArgumentError("norm_after and parallel are of blocks whose norms come first.")


def make_norm(config: BlockConfig) -> nn.Module:
    """LayerNorm or RMSNorm."""
    kind = nn.LayerNorm if config.norm == "layer" else nn.RMSNorm
    return kind(config.model_dim, eps=config.norm_eps)


class Block(nn.Module):
    """A Transformer block: self-attention, optional cross-attention and a feed-forward network.

    Each has a residual connection and a norm.
    """

    def __init__(self, config: BlockConfig, *, causal: bool = False, cross: bool = False) -> None:
        """Create the block with freshly initialised weights.

        Args:
            config: Sizes and options.
            causal: Whether self-attention sees only keys up to the query's own position.
            cross: Whether the block has cross-attention, between self-attention and feed-forward.

        Raises:
            ShapeError: If the sizes do not fit together.
            ArgumentError: If an option is unknown or out of range, or `cross` is combined with `norm_after`
                or `parallel`.
            UnsupportedError: If a feature map is combined with an option that needs scores.
        """
        super().__init__()
        self.norm_first, self.parallel = config.norm_first, config.parallel
        self.attention = MultiHeadAttention(**attention_options(config, causal=causal))
        self.attention_norm = make_norm(config)
        self.cross = MultiHeadAttention(**attention_options(config, causal=False)) if cross else None
        self.cross_norm = make_norm(config) if cross else None
        options = {name: getattr(config, name) for name in ("activation", "gated", "dropout")}
        self.ff = FeedForward(config.model_dim, config.ff_dim, bias=config.ff_bias, **options)
        self.ff_norm = make_norm(config)
        self.attention_norm_after = make_norm(config) if config.norm_after else None
        self.ff_norm_after = make_norm(config) if config.norm_after else None
        self.dropout = nn.Dropout(config.dropout)
        if cross and (config.norm_after or config.parallel):
            raise ArgumentError("norm_after and parallel are of blocks without cross-attention.")

    def forward(
        self,
        x: Vectors,
        memory: Float[Tensor, "batch memory_position memory_dim"] | None = None,
        *,
        visible: Visibility | None = None,
        memory_visible: Visibility | None = None,
        bias: Bias | None = None,
        rotary: RotaryCosSin | None = None,
        cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
        record: Record | None = None,
        name: str = "block",
    ) -> Vectors:
        """Apply the block.

        Args:
            x: Inputs, ``(batch, position, model_dim)``.
            memory: The encoder's output, ``(batch, memory_position, model_dim)``, for cross-attention.
            visible: Which positions each query may look at, combined with the block's own causality.
            memory_visible: Which positions of the memory each query may look at. Default: all.
            bias: Added to the scores of self-attention. Default: nothing.
            rotary: Cosines and sines of the positions of `x`, for self-attention. Default: no rotation.
            cache: Keys and values of earlier positions; the new ones are appended.
            cross_cache: Keys and values of the memory, filled at the first call.
            record: Callback that is given what attention used and computed, and may replace its output.
            name: Prefix of the names in calls of `record`: `name`.self and `name`.cross.

        Returns:
            ``(batch, position, model_dim)``.

        Raises:
            ArgumentError: If `memory` is missing in a block with cross-attention, or given to one without.
            ShapeError: If an input has another shape, dtype or device than the layers expect.
            UnsupportedError: If the attention cannot use the `bias` or mask given.
        """
        if self.cross is None and memory is not None:
            raise ArgumentError("a block without cross-attention takes no `memory`: build with cross=True.")
        if self.cross is not None and memory is None:
            raise ArgumentError("a block with cross-attention needs the encoder's output as `memory`.")
        more = {"visible": visible, "bias": bias, "rotary": rotary, "cache": cache, "name": f"{name}.self"}
        look = partial(self.attention, record=record, **more)
        attended = self._residual(x, self.attention_norm, look, self.attention_norm_after)
        if self.parallel:
            return self._residual(x, self.ff_norm, self.ff, self.ff_norm_after, onto=attended)
        if self.cross is not None and self.cross_norm is not None:
            more = {"visible": memory_visible, "cache": cross_cache, "name": f"{name}.cross"}
            look = partial(self.cross, memory=memory, record=record, **more)
            attended = self._residual(attended, self.cross_norm, look)
        return self._residual(attended, self.ff_norm, self.ff, self.ff_norm_after)

    def _residual(
        self,
        x: Tensor,
        norm: nn.Module,
        sublayer: Callable[[Tensor], Tensor],
        after: nn.Module | None = None,
        onto: Tensor | None = None,
    ) -> Tensor:
        """x + f(norm(x)), with a norm `after` f where there is one; or norm(x + f(x))."""
        if self.norm_first:
            made = sublayer(norm(x))
            added: Tensor = self.dropout(made if after is None else after(made))
            return (x if onto is None else onto) + added
        normed: Tensor = norm(x + self.dropout(sublayer(x)))
        return normed


def attention_options(config: BlockConfig, *, causal: bool) -> dict[str, Any]:
    """What `MultiHeadAttention` is made of in such a block."""
    same = (
        "model_dim n_head n_kv_head qk_dim v_dim out_bias scale feature_map softcap sinks alibi output_gate"
    )
    return {
        **{name: getattr(config, name) for name in same.split()},
        "bias": config.attention_bias,
        "dropout": config.dropout if config.feature_map is None else 0.0,
        "causal": causal,
        "window": config.window if causal else None,
        "qk_norm": config.norm_eps if config.qk_norm else None,
    }
