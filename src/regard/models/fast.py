"""Decoding one token at a time at the speed at which memory gives the weights.

    engine(model) -> Engine | None      Engine.step(tokens, cache, visible) -> scores | None

The readable `forward` says what a model computes; this computes the same for one new token of each sequence,
to rounding. What is faster: weights laid out once as the kernel reads them (MKL, or 8-bit integers), q, k
and v as one product, gate and up as one, and nothing checked twice. Attention goes through `attention` as
everywhere. None means that something is unusual (`why_not` says what): the caller then takes `forward`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from regard.attention import kernels
from regard.attention.softmax import attend_one
from regard.layers.attention import MultiHeadAttention
from regard.layers.block import Block, FeedForward
from regard.layers.cache import KVCache, LayerCache
from regard.layers.norms import RMSNorm, rms_norm
from regard.layers.positions import LearnedPositions, RelativeBias, Rotary, SinusoidalPositions
from regard.models.packing import (
    Linear,
    Smooth,
    calibrated,
    evened,
    pack_float,
    pack_int8,
    why_not_int8,
)

if TYPE_CHECKING:
    from regard.models.transformer import Transformer

# Modules whose forward this file repeats; a model with any other in its decoder takes the readable path.
_KNOWN = (
    *(nn.Linear, nn.Embedding, nn.LayerNorm, RMSNorm, nn.Dropout, nn.ModuleList),
    *(MultiHeadAttention, FeedForward, Block, RelativeBias, Rotary, LearnedPositions, SinusoidalPositions),
)
_TABLE_BLOCK = 512  # positions by which the table of relative biases grows


@dataclass(frozen=True, slots=True, eq=False)
class _Attention:
    """One packed attention; `project` is q, k and v of self-attention, q alone of cross-attention."""

    norm: Callable[[Tensor], Tensor]
    project: Linear
    out: Linear


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    attention: _Attention
    cross: _Attention | None
    ff_norm: Callable[[Tensor], Tensor]
    up: Linear  # gate above up where gated
    down: Linear


class Engine:
    """A decoder's weights, packed. Holds weights only: all that a decode remembers is in its cache."""

    def __init__(self, model: Transformer) -> None:
        assert model.decoder is not None  # why_not made sure
        pack = pack_int8 if model.packed == "int8" else pack_float
        config, block = model.config, model.config.block
        blocks = cast(list[Block], list(model.decoder.blocks))
        attention = blocks[0].attention
        self.n_head, self.n_kv_head, self.dim = attention.n_head, attention.n_kv_head, attention.qk_dim
        self.scale = attention.rule.scale_for(self.dim)
        self.norm_first = block.norm_first
        self.activation, self.gated, self.ff_dim = blocks[0].ff.activation, block.gated, block.ff_dim
        self.token = model.token.weight.detach()
        self.place = None if model.position is None else cast(Tensor, model.position.weight).detach()
        self.embed_norm = None if model.embed_norm is None else _norm(model.embed_norm)
        smooth = calibrated(model, blocks) if model.packed == "int8" else [Smooth()] * len(blocks)
        self.layers = [
            _pack_layer(block, pack, factors) for block, factors in zip(blocks, smooth, strict=True)
        ]
        head = (model.token if model.unembed is None else model.unembed).weight.detach() * config.head_scale
        norm = model.decoder.norm
        even = evened(head) if model.packed == "int8" and norm is not None else None
        self.norm = None if norm is None else _norm(norm, even)
        self.unembed = pack(head if even is None else head * even, None, two_digits=True)
        self.relative = model.decoder.relative
        self.biases: Tensor | None = None
        self.rotary = None
        if model.rotary is not None:
            half, one = self.dim // 2, torch.eye(self.dim)
            # Row i of `swap` says where x_i goes: x @ (one * cos + swap * sin) is `Turn`'s x turned.
            self.rotary = model.rotary.rate().repeat(2), one, torch.cat([one[half:], -one[:half]])

    def step(
        self, tokens: Int[Tensor, "batch"], cache: KVCache, visible: Tensor | None, *, memory: bool = False
    ) -> Float[Tensor, "batch vocab"] | None:
        """The scores of the token after these, which are added to the cache; None if `forward` must do it.

        `visible` (batch, key) covers the cached and new tokens, or with `memory` the encoder's.
        """
        start, held = cache.length, cache[0].k
        if held is None or not start or tokens.shape != (held.shape[0],) or held.dtype != torch.float32:
            return None
        if cache[0].held is not None:
            return None  # positions were let go: a slot is no position any more
        if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
            return None
        if visible is not None and not memory and visible.shape != (len(tokens), start + 1):
            return None
        with torch.inference_mode():
            positions = None if visible is None or memory else visible.sum(1) - 1
            last = start if positions is None else int(positions.max())
            if self.place is not None and last >= self.place.shape[0]:
                return None
            try:
                x = F.embedding(tokens, self.token)
            except IndexError:
                return None  # forward says which token is wrong
            scores = self._run(x, start, positions, cache, visible, memory)
        return scores.clone()  # a tensor that may be used anywhere

    def _run(
        self,
        x: Tensor,
        start: int,
        positions: Tensor | None,
        cache: KVCache,
        visible: Tensor | None,
        memory: bool,
    ) -> Tensor:
        batch = x.shape[0]
        if self.place is not None:
            x = x + (self.place[start] if positions is None else F.embedding(positions, self.place))
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        added = cross_added = turn = None
        if visible is not None:
            hidden = torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)[:, None, None]
            added, cross_added = (None, hidden) if memory else (hidden, None)
        if self.relative is not None:
            bias = self._bias(start)
            added = bias if added is None else bias + added
        if self.rotary is not None:
            turn = self._turn(start if positions is None else positions)
        n_head, n_kv_head, dim, scale = self.n_head, self.n_kv_head, self.dim, self.scale
        split, width = n_head + n_kv_head, n_head * dim
        first, activation, ff_dim = self.norm_first, self.activation, self.ff_dim
        for layer, past, across in zip(self.layers, cache.layers, cache.cross, strict=True):
            look = layer.attention
            qkv = look.project.call(look.norm(x) if first else x).view(batch, split + n_kv_head, 1, dim)
            qk = qkv[:, :split]
            if turn is not None:
                qk = (qk.view(batch, split, dim) @ turn).unsqueeze(2)
            k, v = past.push(qk[:, n_head:], qkv[:, split:])
            heads = attend_one(qk[:, :n_head], k, v, added, scale)
            x = look.out.add(heads.view(batch, width), x)
            if not first:
                x = look.norm(x)
            if layer.cross is not None:
                look = layer.cross
                q = look.project.call(look.norm(x) if first else x).view(batch, n_head, 1, dim)
                heads = attend_one(q, across.k, across.v, cross_added, scale)  # type: ignore[arg-type]  # filled
                x = look.out.add(heads.view(batch, width), x)
                if not first:
                    x = look.norm(x)
            up = layer.up.call(layer.ff_norm(x) if first else x)
            up = activation(up[:, :ff_dim]).mul_(up[:, ff_dim:]) if self.gated else activation(up)
            x = layer.down.add(up, x)
            if not first:
                x = layer.ff_norm(x)
        if self.norm is not None:
            x = self.norm(x)
        return self.unembed.call(x)

    def _turn(self, position: int | Tensor) -> Tensor:
        """Rotary positions as a matrix, (qk_dim, qk_dim) or one for each sequence: one product a layer."""
        assert self.rotary is not None
        rate, one, swap = self.rotary
        angle = rate * position if isinstance(position, int) else position[:, None, None] * rate
        return torch.addcmul(one * angle.cos(), swap, angle.sin())

    def _bias(self, start: int) -> Tensor:
        """The relative bias of the query at position `start` over all keys up to it."""
        assert self.relative is not None
        if self.biases is None or self.biases.shape[1] <= start:
            n = -(-(start + 1) // _TABLE_BLOCK) * _TABLE_BLOCK
            # The row of the last of n queries; that of an earlier one is the end of it.
            self.biases = self.relative(1, n, n - 1).values[:, :n].contiguous()
        return self.biases[:, self.biases.shape[1] - 1 - start :][None, :, None]


def _norm(norm: nn.Module, smooth: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """The norm as a function; its output divided by `smooth`, by which the matrix after it is multiplied."""
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)  # why_not made sure
    bias = getattr(norm, "bias", None)
    weight, bias = norm.weight.detach(), None if bias is None else bias.detach()
    if smooth is not None:
        weight, bias = weight / smooth, None if bias is None else bias / smooth
    shape, eps = norm.normalized_shape, cast(float, norm.eps)  # a config has one
    if isinstance(norm, nn.LayerNorm):
        return lambda x: F.layer_norm(x, shape, weight, bias, eps)
    least = torch.tensor(eps)
    return lambda x: rms_norm(x, weight, least)


def _pack_layer(block: Block, pack: Callable[..., Linear], smooth: Smooth) -> _Layer:
    look, across, ff = block.attention, block.cross, block.ff
    cross = None
    if across is not None and block.cross_norm is not None:
        cross = _Attention(
            _norm(block.cross_norm),
            _joined(pack, [across.query]),
            _joined(pack, [across.out], two_digits=True),
        )
    return _Layer(
        _Attention(
            _norm(block.attention_norm, smooth.project),
            _joined(pack, [look.query, look.key, look.value], smooth.project),
            _joined(pack, [look.out], two_digits=True),
        ),
        cross,
        _norm(block.ff_norm, smooth.up),
        _joined(pack, [ff.up] if ff.gate is None else [ff.gate, ff.up], smooth.up, divide_last=smooth.down),
        _joined(pack, [ff.down], smooth.down, two_digits=True),
    )


def _joined(
    pack: Callable[..., Linear],
    linears: list[nn.Linear],
    smooth: Tensor | None = None,
    *,
    divide_last: Tensor | None = None,
    **options: bool,
) -> Linear:
    """Matrices of the same input, as one: columns times `smooth`, the last's outputs over `divide_last`."""
    weights = [linear.weight.detach() for linear in linears]
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    if divide_last is not None:
        weights[-1] = weights[-1] / divide_last[:, None]
        biases[-1:] = [bias / divide_last for bias in biases[-1:]]
    weight = torch.cat(weights)
    return pack(
        weight if smooth is None else weight * smooth, torch.cat(biases) if biases else None, **options
    )


def why_not(model: Transformer) -> str | None:
    """The reason why this model takes the readable path, or None."""
    config, decoder = model.config, model.decoder
    if model.packed == "int8" and (reason := why_not_int8()) is not None:
        return reason
    if model.training:
        return "the model is in training mode"
    if type(model).__name__ != "Transformer":
        return f"a {type(model).__name__} may compute something else than a Transformer"
    if decoder is None or config.head != "language":
        return "only a decoder with a language head generates"
    if config.block.window is not None or config.n_token_type:
        return "windows and token types are left to the readable path"
    block, scaling = config.block, config.rotary_scaling
    if block.sinks or block.norm_after or block.parallel or block.output_gate or config.head_softcap:
        return "sinks, gates, parallel blocks and norms after them are left to the readable path"
    if not config.scores_products:
        return "scores that are more than turned products are left to the readable path"
    if scaling is not None and scaling.kind in ("dynamic", "yarn"):
        return f"{scaling.kind} scaling is left to the readable path"
    blocks = cast(list[Block], list(decoder.blocks))
    looks = [look for block in blocks for look in (block.attention, block.cross) if look is not None]
    if len({(look.n_head, look.n_kv_head, look.qk_dim, look.rule.scale) for look in looks}) > 1:
        return "attention layers differ, as after pruning"
    if looks[0].v_dim != looks[0].qk_dim:
        return "the attention kernel needs v_dim = qk_dim"
    weights = list(model.parameters())
    if any(weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in weights):
        return "packed weights are for float32 on the CPU"
    if any(weight.is_inference() for weight in weights):
        return "weights made in inference mode do not tell when they change"
    if (reason := kernels.why_not(weights[0][None, None], weights[0][None, None], masked=True)) is not None:
        return reason
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return "hooks on all modules are set"
    for name, module in model.named_modules():
        inside = name.startswith(("decoder.", "token", "position", "rotary", "unembed", "embed_norm"))
        if inside and type(module) not in _KNOWN:
            return f"{name} is a {type(module).__name__}"
        if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
            return f"{name or 'the model'} has hooks"
    return None


# Packed weights live as long as their model, and are packed anew when it changes.
_ENGINES: weakref.WeakKeyDictionary[nn.Module, tuple[object, Engine]] = weakref.WeakKeyDictionary()


def engine(model: Transformer) -> Engine | None:
    """The engine of this model as it is now; None where something is unusual.

    A changed weight is noticed by its version, as autograd does: changes through `.data` are not.
    """
    if why_not(model) is not None:
        return None
    state = (model.packed, tuple((weight.data_ptr(), weight._version) for weight in model.parameters()))
    kept = _ENGINES.get(model)
    if kept is None or kept[0] != state:
        with torch.no_grad():
            kept = (state, Engine(model))
        _ENGINES[model] = kept
    return kept[1]


class FastSteps:
    """The steps of one running decode: taken by the model's engine, which is looked for at the first."""

    def __init__(self, model: Transformer, *, plain: bool) -> None:
        self.model = model
        self.engine: Engine | None = None
        self._looked = not plain  # what is recorded takes the readable path

    def step(
        self, tokens: Int[Tensor, "batch"], cache: KVCache, visible: Tensor | None, *, memory: bool = False
    ) -> Float[Tensor, "batch vocab"] | None:
        """As `Engine.step`; None too where there is no engine, or nothing in the cache yet."""
        if self.model.training or not cache.length:
            return None
        if not self._looked:
            self._looked = True
            # What is hidden may hold NaN or inf, which only the readable path keeps apart.
            if visible is None or all(_finite(layer) for layer in (*cache.layers, *cache.cross)):
                self.engine = engine(self.model)
        return None if self.engine is None else self.engine.step(tokens, cache, visible, memory=memory)


def _finite(layer: LayerCache) -> bool:
    return all(held is None or bool(torch.isfinite(held.sum())) for held in (layer.k, layer.v))
