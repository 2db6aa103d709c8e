"""Decoding one token at a time at the speed at which memory gives the weights.

    engine(model) -> Engine | None      Engine.step(model, tokens, cache, key_mask) -> scores | None

The readable `forward` says what a model computes; this computes the same for one new token of each sequence,
to rounding. What is faster: products that all threads read at once (`packing`), q, k and v as one
product, gate and up as one, and nothing checked twice. Attention is the kernel `ONE_QUERY` of the table that
`attend` asks, called without `attend`'s checks, which `why_not` makes once for the model. None means that
something is unusual (`why_not` says what): the caller then takes `forward`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from regard.attention import kernels
from regard.layers.attention import MultiHeadAttention
from regard.layers.block import Block, FeedForward
from regard.layers.cache import KVCache, LayerCache
from regard.layers.positions import LearnedPositions, RelativeBias, Rotary, RotaryCosSin, SinusoidalPositions
from regard.models import mechanisms
from regard.models.packing import Product, pack

if TYPE_CHECKING:
    from regard.models.transformer import Transformer

# Modules whose forward this file repeats; a model with any other in its decoder takes the readable path.
_KNOWN = (
    *(nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.ModuleList),
    *(MultiHeadAttention, FeedForward, Block, RelativeBias, Rotary, LearnedPositions, SinusoidalPositions),
)


class Engine:
    """A decoder's weights, packed. Holds weights only: all that a decode remembers is in its cache."""

    def __init__(self, model: Transformer) -> None:
        assert model.decoder is not None  # why_not made sure
        packed = partial(pack, half=model.packed == "float16")
        self.layers = [_packed_block(cast(Block, block), packed) for block in model.decoder.blocks]
        self.unembed = packed((model.unembed or model.token).weight.detach())

    def step(
        self,
        model: Transformer,
        tokens: Int[Tensor, "batch"],
        cache: KVCache,
        key_mask: Tensor | None,
        *,
        memory: bool = False,
    ) -> Float[Tensor, "batch vocab"] | None:
        """The scores of the token after these, which are added to the cache; None if `forward` must do it.

        `key_mask` (batch, key) covers the cached and new tokens, or with `memory` the encoder's.
        """
        start, held, stack = cache.length, cache[0].k, model.decoder
        unusual = model.training or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
        gone = cache[0].held is not None  # positions were let go: a slot is no position any more
        if stack is None or held is None or not start or unusual or gone:
            return None
        if tokens.shape != (held.shape[0],) or held.dtype != torch.float32:
            return None
        with torch.inference_mode():
            own = None if memory else key_mask
            if own is not None and own.shape != (len(tokens), start + 1):
                return None
            positions = torch.tensor([[start]]) if own is None else own.sum(1, keepdim=True) - 1
            try:
                x = model.embed(tokens[:, None], positions)[:, 0]
            except IndexError:
                return None  # forward says which token is wrong
            added = cross_added = None
            if key_mask is not None:
                hidden = torch.zeros(key_mask.shape).masked_fill_(~key_mask, -torch.inf)[:, None, None]
                added, cross_added = (None, hidden) if memory else (hidden, None)
            if stack.relative is not None:
                bias = stack.relative(1, start + 1, start).values.contiguous()[None, :, None]
                added = bias if added is None else bias + added
            rotary, local_rotary = model.rotary_cos_sin(positions)
            matrix = _matrix(rotary, held.shape[-1])  # one product rotates queries and keys
            local_matrix = matrix if local_rotary is rotary else _matrix(local_rotary, held.shape[-1])
            layers = zip(self.layers, stack.local, cache.layers, cache.cross, strict=True)
            for layer, local, past, across in layers:
                x = layer(x, past, across, added, cross_added, local_matrix if local else matrix)
            x = x if stack.norm is None else stack.norm(x)
            lm_head_scale = model.config.lm_head_scale
            scores = self.unembed(x if lm_head_scale == 1.0 else x * lm_head_scale)
        return scores.clone()  # a tensor that may be used anywhere


def _matrix(rotary: RotaryCosSin | None, dim: int) -> Tensor | None:
    """Return what the rotation makes of each unit vector: (dim, dim), or one for each sequence."""
    if rotary is None:
        return None
    units = torch.eye(dim)[None, :, None].expand(rotary.cos.shape[0], -1, -1, -1)
    return rotary(units)[:, :, 0].squeeze(0)


def _packed_block(block: Block, packed: Callable[..., Product]) -> Callable[..., Tensor]:
    """`block` for one token of each sequence, (batch, model_dim)."""
    look = cast(MultiHeadAttention, block.attention)  # or `why_not` had refused
    across, ff, norm_first = block.cross, block.ff, block.norm_first
    n_head, n_kv_head, dim, window = look.n_head, look.n_kv_head, look.qk_dim, look.rule.visible.window
    split, width, ff_dim = n_head + n_kv_head, n_head * dim, ff.up.out_features
    scale, activation, gated = look.rule.scale_for(dim), ff.activation, ff.gate is not None
    project, out = _joined(packed, look.query, look.key, look.value), _joined(packed, look.out)
    cross_project = cross_out = None
    if across is not None:
        cross_project, cross_out = _joined(packed, across.query), _joined(packed, across.out)
    up = _joined(packed, ff.up) if ff.gate is None else _joined(packed, ff.gate, ff.up)
    down = _joined(packed, ff.down)

    # Straight to what computes: `why_not` made sure that there are no hooks.
    norm, ff_norm = block.attention_norm.forward, block.ff_norm.forward
    cross_norm = None if block.cross_norm is None else block.cross_norm.forward

    def residual(made: Tensor, onto: Tensor, norm: Product, after: nn.Module | None = None) -> Tensor:
        """The residual, as `Block._residual` has it."""
        total = (made if after is None else after(made)).add_(onto)
        return total if norm_first else norm(total)

    def step(
        x: Tensor,
        past: LayerCache,
        remembered: LayerCache,
        added: Tensor | None,  # the bias where visible and -inf elsewhere
        cross_added: Tensor | None,
        rotary: Tensor | None,
    ) -> Tensor:
        batch = x.shape[0]
        read = norm(x) if norm_first else x
        qkv = project(read).view(batch, split + n_kv_head, 1, dim)
        qk = qkv[:, :split]
        if look.query_norm is not None and look.key_norm is not None:
            qk = torch.cat([look.query_norm(qk[:, :n_head]), look.key_norm(qk[:, n_head:])], 1)
        if rotary is not None:
            qk = (qk.view(batch, split, dim) @ rotary).unsqueeze(2)
        with torch.inference_mode(False), torch.no_grad():  # buffers that may be written to anywhere
            k, v, _ = past.append(qk[:, n_head:], qkv[:, split:])
        if window is not None:
            k, v = k[:, :, -window:], v[:, :, -window:]
            added = None if added is None else added[..., -window:]
        heads, _ = kernels.one_query(qk[:, :n_head], k, v, added, scale)
        attended = residual(out(heads.view(batch, width)), x, norm, block.attention_norm_after)
        if cross_project is not None and cross_out is not None and cross_norm is not None:
            q = cross_project(cross_norm(attended) if norm_first else attended)
            k, v = cast(Tensor, remembered.k), cast(Tensor, remembered.v)
            heads, _ = kernels.one_query(q.view(batch, n_head, 1, dim), k, v, cross_added, scale)
            attended = residual(cross_out(heads.view(batch, width)), attended, cross_norm)
        read = x if block.parallel else attended
        made = up(ff_norm(read) if norm_first else read)
        made = activation(made[:, :ff_dim]).mul_(made[:, ff_dim:]) if gated else activation(made)
        return residual(down(made), attended, ff_norm, block.ff_norm_after)

    return step


def _joined(packed: Callable[..., Product], *linears: nn.Linear) -> Product:
    """Matrices of the same input, as one."""
    weights = [linear.weight.detach() for linear in linears]
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    joined = weights[0] if len(weights) == 1 else torch.cat(weights)
    return packed(joined, torch.cat(biases) if biases else None)


def why_not(model: Transformer) -> str | None:
    """The reason why this model takes the readable path, or None."""
    config, decoder = model.config, model.decoder
    if type(model).__name__ != "Transformer":
        return f"a {type(model).__name__} may compute something else than a Transformer"
    if decoder is None or config.lm_head != "language":
        return "only a decoder with a language head generates"
    reason = mechanisms.why_not(config, "decoding")
    if reason is not None:
        return reason
    blocks = cast(list[Block], list(decoder.blocks))
    own_and_cross = (look for block in blocks for look in (block.attention, block.cross))
    # The table has refused latent attention and the delta rule.
    looks = [look for look in own_and_cross if isinstance(look, MultiHeadAttention)]
    weights = list(model.parameters())
    unusual = {
        "the model is in training mode": model.training,
        "attention layers differ, as after pruning": (
            len({(look.n_head, look.n_kv_head, look.qk_dim, look.rule.scale) for look in looks}) > 1
        ),
        "packed weights are for float32 on the CPU": any(
            weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in weights
        ),
        "weights made in inference mode do not tell when they change": any(
            weight.is_inference() for weight in weights
        ),
        "hooks on all modules are set": (
            torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
        ),
    }
    for reason, holds in unusual.items():
        if holds:
            return reason
    for name, module in model.named_modules():
        inside = name.startswith(("decoder.", "token", "position", "rotary", "unembed", "embed_norm"))
        if inside and type(module) not in _KNOWN:
            return f"{name} is a {type(module).__name__}"
        if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
            return f"{name or 'the model'} has hooks"
    query = weights[0].new_empty(1, looks[0].n_head, 1, looks[0].qk_dim)
    key = weights[0].new_empty(1, looks[0].n_kv_head, 1, looks[0].qk_dim)
    return kernels.ONE_QUERY.why_not(query, key, v_dim=looks[0].v_dim, mask=True)


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


def finite(cache: KVCache) -> bool:
    """Whether nothing in it is NaN or infinite: what is hidden and is, only the readable path keeps apart."""
    held = (tensor for layer in (*cache.layers, *cache.cross) for tensor in (layer.k, layer.v))
    return all(tensor is None or bool(torch.isfinite(tensor.sum())) for tensor in held)
