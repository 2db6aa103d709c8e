"""Decoding one token at a time at the speed at which memory gives the weights.

    engine(model) -> Engine | None      Engine.step(tokens, cache, visible) -> scores | None

The readable `forward` says what a model computes; this computes the same for one new token of each sequence,
to rounding. What is faster: products that all threads read at once (`packing`), q, k and v as one
product, gate and up as one, and nothing checked twice. Attention goes through `attention` as everywhere. None
means that something is unusual (`why_not` says what): the caller then takes `forward`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
from regard.layers.positions import LearnedPositions, RelativeBias, Rotary, SinusoidalPositions
from regard.models.packing import Product, pack

if TYPE_CHECKING:
    from regard.models.transformer import Transformer

# Modules whose forward this file repeats; a model with any other in its decoder takes the readable path.
_KNOWN = (
    *(nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.ModuleList),
    *(MultiHeadAttention, FeedForward, Block, RelativeBias, Rotary, LearnedPositions, SinusoidalPositions),
)
_TABLE_BLOCK = 512  # positions by which the table of relative biases grows


Norm = Callable[[Tensor], Tensor]
# The angle from one position to the next, and two matrices: see `_turn`.
Rotation = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class _Attention:
    """One packed attention; `project` is q, k and v of self-attention, q alone of cross-attention."""

    norm: Norm
    project: Product
    out: Product
    qk_norm: Norm | None = None
    norm_after: Norm | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    attention: _Attention
    cross: _Attention | None
    ff_norm: Norm
    up: Product  # gate above up where gated
    down: Product
    ff_norm_after: Norm | None
    local: bool


class Engine:
    """A decoder's weights, packed. Holds weights only: all that a decode remembers is in its cache."""

    def __init__(self, model: Transformer) -> None:
        assert model.decoder is not None  # why_not made sure
        half = model.packed == "float16"
        config, block = model.config, model.config.block
        blocks = cast(list[Block], list(model.decoder.blocks))
        attention = blocks[0].attention
        self.n_head, self.n_kv_head, self.dim = attention.n_head, attention.n_kv_head, attention.qk_dim
        self.scale = attention.rule.scale_for(self.dim)
        self.norm_first, self.parallel = block.norm_first, block.parallel
        self.activation, self.gated, self.ff_dim = blocks[0].ff.activation, block.gated, block.ff_dim
        self.token, self.embed_scale = model.token.weight.detach(), config.embed_scale
        self.place = None if model.position is None else cast(Tensor, model.position.weight).detach()
        self.embed_norm = _norm(model.embed_norm)
        self.layers = [
            _pack_layer(block, local, partial(pack, half=half))
            for block, local in zip(blocks, model.decoder.local, strict=True)
        ]
        self.norm = _norm(model.decoder.norm)
        self.head_scale = config.head_scale
        head = model.token if model.unembed is None else model.unembed
        self.unembed = pack(head.weight.detach(), half=half)
        self.relative = model.decoder.relative
        self.biases: Tensor | None = None
        self.rotation = _rotation(model.rotary)
        self.local_rotation = _rotation(model.local_rotary) if model.local_rotary else self.rotation

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
        if self.embed_scale != 1.0:
            x = x * self.embed_scale
        if self.place is not None:
            x = x + (self.place[start] if positions is None else F.embedding(positions, self.place))
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        added = cross_added = None
        if visible is not None:
            hidden = torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)[:, None, None]
            added, cross_added = (None, hidden) if memory else (hidden, None)
        if self.relative is not None:
            bias = self._bias(start)
            added = bias if added is None else bias + added
        turn = local_turn = _turn(self.rotation, start if positions is None else positions)
        if self.local_rotation is not self.rotation:
            local_turn = _turn(self.local_rotation, start if positions is None else positions)
        n_head, n_kv_head, dim, scale = self.n_head, self.n_kv_head, self.dim, self.scale
        split, width = n_head + n_kv_head, n_head * dim
        first, activation, ff_dim = self.norm_first, self.activation, self.ff_dim
        for layer, past, across in zip(self.layers, cache.layers, cache.cross, strict=True):
            look = layer.attention
            qkv = look.project(look.norm(x) if first else x).view(batch, split + n_kv_head, 1, dim)
            qk = qkv[:, :split]
            if look.qk_norm is not None:
                qk = look.qk_norm(qk)
            if (turned := local_turn if layer.local else turn) is not None:
                qk = (qk.view(batch, split, dim) @ turned).unsqueeze(2)
            with torch.inference_mode(False), torch.no_grad():  # buffers that may be written to anywhere
                k, v, _ = past.append(qk[:, n_head:], qkv[:, split:])
            seen = added
            if look.window is not None and look.window <= start:
                k, v = k[:, :, -look.window :], v[:, :, -look.window :]
                seen = None if added is None else added[..., -look.window :]
            heads = attend_one(qk[:, :n_head], k, v, seen, scale)
            made = look.out(heads.view(batch, width))
            attended = (made if look.norm_after is None else look.norm_after(made)).add_(x)
            if not first:
                attended = look.norm(attended)
            if layer.cross is not None:
                look = layer.cross
                q = look.project(look.norm(attended) if first else attended).view(batch, n_head, 1, dim)
                heads = attend_one(q, across.k, across.v, cross_added, scale)  # type: ignore[arg-type]  # filled
                attended = look.out(heads.view(batch, width)).add_(attended)
                if not first:
                    attended = look.norm(attended)
            source = x if self.parallel else attended
            up = layer.up(layer.ff_norm(source) if first else source)
            up = activation(up[:, :ff_dim]).mul_(up[:, ff_dim:]) if self.gated else activation(up)
            made = layer.down(up)
            x = (made if layer.ff_norm_after is None else layer.ff_norm_after(made)).add_(attended)
            if not first:
                x = layer.ff_norm(x)
        if self.norm is not None:
            x = self.norm(x)
        return self.unembed(x if self.head_scale == 1.0 else x * self.head_scale)

    def _bias(self, start: int) -> Tensor:
        """The relative bias of the query at position `start` over all keys up to it."""
        assert self.relative is not None
        if self.biases is None or self.biases.shape[1] <= start:
            n = -(-(start + 1) // _TABLE_BLOCK) * _TABLE_BLOCK
            # The row of the last of n queries; that of an earlier one is the end of it.
            self.biases = self.relative(1, n, n - 1).values[:, :n].contiguous()
        return self.biases[:, self.biases.shape[1] - 1 - start :][None, :, None]


def _rotation(rotary: Rotary | None) -> Rotation | None:
    if rotary is None:
        return None
    half, turned, one = rotary.turned // 2, rotary.turned, torch.eye(rotary.qk_dim)
    still = torch.zeros(rotary.qk_dim - turned)
    # Row i of `swap` says where x_i goes: x @ (one * cos + swap * sin) is `Turn`'s x turned.
    swap = torch.cat([one[half:turned], -one[:half], 0 * one[turned:]])
    return torch.cat([rotary.rate().repeat(2), still]), one, swap


def _turn(rotation: Rotation | None, position: int | Tensor) -> Tensor | None:
    """Rotary positions as a matrix, (qk_dim, qk_dim) or one for each sequence: one product a layer."""
    if rotation is None:
        return None
    rate, one, swap = rotation
    angle = rate * position if isinstance(position, int) else position[:, None, None] * rate
    return torch.addcmul(one * angle.cos(), swap, angle.sin())


def _norm(norm: nn.Module | None) -> Norm | None:
    return None if norm is None else _known_norm(norm)


def _known_norm(norm: nn.Module) -> Norm:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)  # why_not made sure
    bias = getattr(norm, "bias", None)
    weight, bias = norm.weight.detach(), None if bias is None else bias.detach()
    shape, eps = norm.normalized_shape, cast(float, norm.eps)  # a config has one
    if isinstance(norm, nn.LayerNorm):
        return lambda x: F.layer_norm(x, shape, weight, bias, eps)
    return lambda x: F.rms_norm(x, shape, weight, eps)


def _qk_norm(look: MultiHeadAttention) -> Norm | None:
    """The norms of each head's query and key, as one."""
    query, key = look.query_norm, look.key_norm
    if query is None or key is None:
        return None
    gains = query.weight.expand(look.n_head, 1, -1), key.weight.expand(look.n_kv_head, 1, -1)
    weight, shape, eps = torch.cat(gains).detach(), (look.qk_dim,), query.eps
    return lambda x: F.rms_norm(x, shape, None, eps) * weight


def _pack_layer(block: Block, local: bool, packed: Callable[..., Product]) -> _Layer:
    look, across, ff = block.attention, block.cross, block.ff
    cross = None
    if across is not None and block.cross_norm is not None:
        cross = _Attention(
            _known_norm(block.cross_norm), _joined(packed, across.query), _joined(packed, across.out)
        )
    return _Layer(
        _Attention(
            _known_norm(block.attention_norm),
            _joined(packed, look.query, look.key, look.value),
            _joined(packed, look.out),
            _qk_norm(look),
            _norm(block.attention_norm_after),
            look.rule.visible.window,
        ),
        cross,
        _known_norm(block.ff_norm),
        _joined(packed, ff.up) if ff.gate is None else _joined(packed, ff.gate, ff.up),
        _joined(packed, ff.down),
        _norm(block.ff_norm_after),
        local,
    )


def _joined(packed: Callable[..., Product], *linears: nn.Linear) -> Product:
    """Matrices of the same input, as one."""
    weights = [linear.weight.detach() for linear in linears]
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    joined = weights[0] if len(weights) == 1 else torch.cat(weights)
    return packed(joined, torch.cat(biases) if biases else None)


def why_not(model: Transformer) -> str | None:
    """The reason why this model takes the readable path, or None."""
    config, decoder = model.config, model.decoder
    if model.training:
        return "the model is in training mode"
    if type(model).__name__ != "Transformer":
        return f"a {type(model).__name__} may compute something else than a Transformer"
    if decoder is None or config.head != "language":
        return "only a decoder with a language head generates"
    block, scaling = config.block, config.rotary_scaling
    if block.sinks or block.output_gate or block.kernel or block.softcap or block.alibi:
        return "sinks, gates, feature maps, softcaps and ALiBi are left to the readable path"
    if config.n_token_type or config.head_softcap:
        return "token types and a softcap of the head are left to the readable path"
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
