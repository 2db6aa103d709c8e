"""The block that Transformers are made of: attention and feed-forward, each with a residual and a norm."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, Literal, cast

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.data import Ranges, check_fields
from regard.attention.delta import DeltaState
from regard.attention.scores import Bias
from regard.attention.shapes import Vectors, check_dropout, check_sizes
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, UnsupportedError
from regard.layers.attention import MultiHeadAttention, Record, head_dims
from regard.layers.cache import LayerCache
from regard.layers.delta import UNTRACED, DeltaAttention
from regard.layers.latent import LatentAttention
from regard.layers.positions import RotaryCosSin

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": partial(nn.functional.gelu, approximate="tanh"),  # no lambda: a layer can be pickled
    "silu": nn.functional.silu,
}

# Fields of a block that latent attention and the delta rule do not have.
_MULTI_HEAD_ONLY = "n_kv_head out_bias scale feature_map window softcap qk_norm sinks alibi output_gate"


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
        latent_dim: Multi-head latent attention (`LatentAttention`): how many numbers of a token its keys and
            values are made from. None: keys and values are made from the token itself.
        latent_rotary_dim: In latent attention, how many numbers a head's queries and keys have for rotary
            positions, beside `qk_dim`.
        delta: Whether the gated delta rule (`DeltaAttention`) takes the place of softmax; in decoders only.
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
        ArgumentError: If a field has another type or is out of range, or fields exclude each other.
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
    latent_dim: int | None = None
    latent_rotary_dim: int | None = None
    delta: bool = False
    window: int | None = None
    softcap: float | None = None
    qk_norm: bool = False
    sinks: bool = False
    alibi: bool = False
    output_gate: bool = False
    dropout: float = 0.0
    ranges: ClassVar[Ranges] = {
        **dict.fromkeys(
            "model_dim n_head ff_dim n_kv_head qk_dim v_dim latent_dim window".split(), (1, math.inf)
        ),
        "latent_rotary_dim": (2, math.inf),
        "norm_eps": (0, 1),
        "softcap": (1e-6, math.inf),
    }

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.norm_first and (self.norm_after or self.parallel):
            raise ArgumentError("norm_after and parallel are of blocks whose norms come first.")
        if (self.latent_dim is None) != (self.latent_rotary_dim is None):
            raise ArgumentError(
                "latent attention needs both of its sizes. "
                f"Got latent_dim={self.latent_dim}, latent_rotary_dim={self.latent_rotary_dim}."
            )
        if self.latent_rotary_dim is not None and self.latent_rotary_dim % 2:
            raise ArgumentError(
                "rotary positions rotate pairs: latent_rotary_dim must be even. "
                f"Got {self.latent_rotary_dim}."
            )
        if self.latent_dim is not None or self.delta:
            kind = "the delta rule" if self.delta else "latent attention"
            excluded = {*_MULTI_HEAD_ONLY.split(), "latent_dim" if self.delta else "delta"}
            given = [
                f.name for f in fields(self) if f.name in excluded and getattr(self, f.name) != f.default
            ]
            if given:
                raise ArgumentError(f"a block with {kind} cannot have {', '.join(given)}.")


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
        self.attention = make_attention(config, causal=causal)
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
        if cross and (config.latent_dim is not None or config.delta):
            raise ArgumentError("latent attention and the delta rule are of blocks without cross-attention.")

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
        own = self.attention
        look = partial(delta_attention, own) if isinstance(own, DeltaAttention) else own
        look = partial(look, record=record, **more)
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


def make_attention(
    config: BlockConfig, *, causal: bool
) -> MultiHeadAttention | LatentAttention | DeltaAttention:
    """Return the self-attention of such a block."""
    if config.delta:
        if not causal:
            raise ArgumentError("the delta rule reads tokens in their order: it is of causal blocks.")
        sizes = {name: getattr(config, name) for name in ("qk_dim", "v_dim")}
        return DeltaAttention(config.model_dim, config.n_head, bias=config.attention_bias, **sizes)
    if config.latent_dim is None or config.latent_rotary_dim is None:
        return MultiHeadAttention(**attention_options(config, causal=causal))
    qk_dim, v_dim = head_dims(config.model_dim, config.n_head, config.qk_dim, config.v_dim)
    return LatentAttention(
        config.model_dim,
        config.n_head,
        latent_dim=config.latent_dim,
        rotary_dim=config.latent_rotary_dim,
        qk_dim=qk_dim,
        v_dim=v_dim,
        bias=config.attention_bias,
        norm_eps=config.norm_eps,
        dropout=config.dropout,
        causal=causal,
    )


def delta_attention(
    layer: DeltaAttention,
    x: Vectors,
    *,
    visible: Visibility | None,
    bias: Bias | None,
    rotary: RotaryCosSin | None,
    cache: LayerCache | None,
    record: Record | None,
    name: str,
) -> Vectors:
    """Run a layer with the delta rule as a block runs its attention: its state is in the cache."""
    if record is not None:
        raise UnsupportedError(f"{name}: {UNTRACED}.")
    if bias is not None or rotary is not None:
        raise UnsupportedError("the delta rule takes no rotary or relative positions.")
    if visible is not None and (visible.by_pair or visible.window is not None):
        raise UnsupportedError("the delta rule masks padding and the future only: no pairs, no window.")
    start = 0 if cache is None else cache.length
    stop = start + x.shape[1]
    key_mask = None if visible is None else visible.combined_key_mask(stop)
    key_mask = None if key_mask is None else key_mask.expand(x.shape[0], -1)[:, start:stop]
    before = None if cache is None else cache.state
    if before is not None and not isinstance(before, DeltaState):
        raise UnsupportedError("this cache holds the state of a layer of linear attention.")
    out, state = layer(x, None if before is None else before.S, key_mask=key_mask)
    if cache is not None:
        cache.append_state(DeltaState(state), x.shape[1])
    return cast(Tensor, out)


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
