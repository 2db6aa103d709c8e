"""The residual stream of a decoder: what stands in it, its norms, and the matrices that read and write it.

Nothing here knows an architecture. The model runs on a few tokens, and what went into its modules and came
out of them says which is which; where it does not, that is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import UnsupportedError
from regard.files.loading import Loaded
from regard.heads.model import head_outputs, layers_of, path_of, probe
from regard.models.transformer import Transformer
from regard.tracing.calls import Called
from regard.tracing.layers import LayerTrace
from regard.tracing.recorder import Recorder
from regard.tracing.take import module_of, trace
from regard.tracing.watch import watching

Seen = dict[nn.Module, tuple[Tensor, Tensor]]  # what a module was given and gave, the last to run at the end

_N_TEXT = 8  # of a probe: so many numbers tell one output of a matrix from another
_FACTORS = (0.0, -0.5, -0.25)  # powers of qk_dim that queries or keys may be multiplied by before attention
_LARGE = 1e3  # beside numbers of this size the eps of a norm is nothing


@contextmanager
def seeing(modules: Iterable[nn.Module]) -> Iterator[Seen]:
    """A block in which is kept what these modules are given and give."""
    seen: Seen = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        given = args[0] if args else kwargs.get("hidden_states")
        made = out if isinstance(out, Tensor) else out[0]
        if isinstance(given, Tensor) and isinstance(made, Tensor):
            seen.pop(module, None)
            seen[module] = given, made

    handles = [module.register_forward_hook(note, with_kwargs=True) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def close(one: Tensor, other: Tensor, of: Tensor | None = None) -> bool:
    """Equal to what float32 loses on the way through a model; `of`: what they are differences of."""
    if one.shape != other.shape:
        return False
    rounding = 0.0 if of is None else 1e-6 * float(of.abs().max())
    return float((one - other).abs().max()) <= 1e-4 * float(other.abs().max()) + rounding


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """A norm as what it does: weight * x / length of x + bias, of x less its mean where it is centred."""

    module: nn.Module | None
    weight: Float[Tensor, "model_dim"]
    bias: Float[Tensor, "model_dim"]
    centred: bool

    @classmethod
    def of(cls, module: nn.Module | None, like: Tensor) -> Norm:
        """Read off what the module makes of some vectors, in float64, whatever its class."""
        rising = torch.arange(like.shape[-1], dtype=torch.float64, device=like.device)
        if module is None:
            return cls(None, torch.ones_like(rising), torch.zeros_like(rising), False)
        module = deepcopy(module).double()
        x = _LARGE * (1 - 2 * (rising % 2))
        there, back = module(x), module(-x)
        bias, centred = (there + back) / 2, close(module(x + 0.5 * _LARGE), there)
        bare = x - x.mean() if centred else x
        norm = cls(module, (there - bias) / bare * bare.square().mean().sqrt(), bias, centred)
        if not close(norm.held(rising, rising) + bias, module(rising)):
            raise UnsupportedError(f"{type(module).__name__} is no norm that divides a vector by its length.")
        return norm

    def held(self, x: Tensor, parts: Tensor) -> Tensor:
        """Parts of a vector x behind the norm of x, without its bias: those that sum to x sum to norm(x)."""
        if self.module is None:
            return parts
        whole = self.weight * self._bare(x)
        lengths = ((self.module(x) - self.bias) * whole).sum(-1) / whole.square().sum(-1)
        behind: Tensor = self.weight * self._bare(parts) * lengths[..., None]
        return behind

    def folded(self, matrix: Float[Tensor, "*out model_dim"]) -> Float[Tensor, "*out model_dim"]:
        """A matrix that reads x through the norm as one that reads x itself; the length of x is left out."""
        return self._bare(matrix * self.weight.to(matrix.dtype))

    def _bare(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if self.centred else x


def projections(loaded: Loaded) -> dict[str, Float[Tensor, "model_dim head v_dim"]]:
    """The output projection of each attention layer, head by head."""
    heads, modules = layers_of(loaded), out_projections(loaded)
    return {name: matrix_of(module).unflatten(1, (len(heads[name]), -1)) for name, module in modules.items()}


def out_projections(loaded: Loaded) -> dict[str, nn.Module]:
    """What is given exactly the outputs of each layer's heads, side by side: an nn.Linear, or a Conv1D."""
    with torch.no_grad(), seeing(_matrices(module_of(loaded))) as seen, head_outputs(loaded) as outputs:
        loaded.model(probe(loaded))
    writers: dict[str, nn.Module] = {}
    for name, out in outputs.items():
        merged = out.transpose(1, 2).flatten(2)
        for module, (received, _) in seen.items():
            if received.numel() == merged.numel() and torch.equal(received.view_as(merged), merged):
                writers[name] = module
        if name not in writers:
            raise UnsupportedError(
                f"{loaded.facts.name}: no matrix is given what the heads of {name} give, as it is, so "
                "where they write is not known."
            )
    return writers


def matrix_of(module: nn.Module) -> Float[Tensor, "out model_dim"]:
    """The matrix of an nn.Linear, or of a Conv1D of transformers, which has it turned."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    return weight if isinstance(module, nn.Linear) else weight.T


def _matrices(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"]


def _norms(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if "norm" in type(m).__name__.lower()]


def blocks_of(loaded: Loaded) -> dict[str, nn.Module]:
    """The block of a stack in which each attention layer stands."""
    inner, blocks = module_of(loaded), dict[str, nn.Module]()
    for name in layers_of(loaded):
        parts = path_of(loaded.model, name).split(".")
        n_part = max((n + 1 for n, part in enumerate(parts) if part.isdigit()), default=0)
        if not n_part:
            raise UnsupportedError(f"{loaded.facts.name}: {name} stands in no block of a stack.")
        blocks[name] = inner.get_submodule(".".join(parts[:n_part]))
    return blocks


def check_residual(loaded: Loaded, ids: Tensor) -> None:
    """Raise unless each block adds what its attention gives to what it was given, and one more part."""
    inner, blocks = module_of(loaded), blocks_of(loaded)
    parts = {part for block in blocks.values() for part in (block, *block.children())}
    with seeing(parts) as seen:
        loaded.model(ids)
    for name, block in blocks.items():
        given, gave = (tensor.double() for tensor in seen[block])
        attention = inner.get_submodule(path_of(loaded.model, name))
        children = {part: seen[part][1].double() for part in block.children() if part in seen}
        of_attention = [out for part, out in children.items() if attention in part.modules()]
        if not of_attention or not any(
            out.numel() == gave.numel() and close(of_attention[0] + out.view_as(gave), gave - given, gave)
            for part, out in children.items()
            if attention not in part.modules()
        ):
            raise UnsupportedError(
                f"{loaded.facts.name}: {name} does not add its output to the residual stream as it is (a "
                "norm comes after it, it seems), so that what a head adds to a score is not known."
            )


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """How a decoder's residual stream becomes scores, in one forward pass of it."""

    before: Float[Tensor, "position model_dim"]  # what the last norm is given, in float64
    norm: Norm
    unembed: Float[Tensor, "vocab model_dim"]
    bias: Float[Tensor, "vocab"]
    logits: Float[Tensor, "position vocab"]

    @classmethod
    @torch.no_grad()
    def of(cls, loaded: Loaded, ids: Tensor) -> Ending:
        """Run the model; raises where its heads do not write into the residual stream as they are."""
        model = loaded.model
        if model.head != "language" or model.kind != "decoder":
            raise UnsupportedError(
                "what heads write toward a score is known of decoders with a language head. This is "
                f"{model.kind}, head {model.head!r}."
            )
        check_residual(loaded, ids)
        if isinstance(model, Transformer):
            table: Any = model.token if model.unembed is None else model.unembed
            unembed = table.weight * model.config.head_scale
        else:
            table = getattr(model, "unembed", None)
            unembed = getattr(table, "weight", None)
        if not isinstance(unembed, Tensor):
            raise UnsupportedError(f"{loaded.facts.name} names no matrix that gives its scores.")
        bias = getattr(table, "bias", None)
        bias = unembed.new_zeros(len(unembed)) if bias is None else bias
        with seeing(_norms(module_of(loaded))) as seen:
            out = model(ids)
        logits = out.logits[0]
        last = [(norm, before, after) for norm, (before, after) in reversed(seen.items())]
        for norm, before, after in (*last, (None, out.hidden, out.hidden)):
            if after.shape[-1] != unembed.shape[1]:
                continue
            scores = after[0] @ unembed.T
            factor = (scores * (logits - bias)).sum() / scores.square().sum()  # Cohere scales what comes out
            if close(factor * scores + bias, logits):
                scaled = unembed if abs(factor - 1) < 1e-4 else unembed * factor
                return cls(before[0].double(), Norm.of(norm, scaled), scaled, bias, logits)
        raise UnsupportedError(
            f"{loaded.facts.name}: its scores are not its last norm times one matrix, so that what a head "
            "adds to them is not known."
        )


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """The matrix that makes the queries, keys or values of a layer: which of its outputs are a head's."""

    module: nn.Module
    outputs: Int[Tensor, "head dim"]
    norm: nn.Module | None  # which its input comes out of

    def weight(self, head: int) -> Float[Tensor, "dim model_dim"]:
        """The head's part of the matrix."""
        return matrix_of(self.module)[self.outputs[head]]

    def bias(self, head: int) -> Float[Tensor, "dim"]:
        """The head's part of the bias, 0 where there is none."""
        bias: Tensor | None = self.module.bias  # type: ignore[assignment]
        outputs = self.outputs[head]
        return torch.zeros(len(outputs), device=outputs.device) if bias is None else bias[outputs]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """How an attention layer reads the stream; a projection is None where no matrix gives what it uses."""

    name: str
    sides: dict[str, Projection | None]  # of q, k and v
    n_head: int
    n_kv_head: int
    scale: float
    plain: bool  # scores are scaled products and nothing else

    def side(self, side: str, head: int) -> tuple[Projection, int]:
        """The projection of q, k or v, and which of its heads a query head uses."""
        projection = self.sides[side]
        if projection is None:
            words = {"q": "queries", "k": "keys", "v": "values"}[side]
            raise UnsupportedError(
                f"the {words} of {self.name} are not what one matrix (nn.Linear or Conv1D) gives: a norm of "
                "their own, it seems, or another step comes between. There is no circuit through them."
            )
        return projection, head if side == "q" else head * self.n_kv_head // self.n_head


@torch.no_grad()
def readings(loaded: Loaded) -> dict[str, Reading]:
    """How each attention layer of a decoder reads the stream.

    At the first position no rotary turn moves anything: queries and keys there are outputs of a matrix.
    """
    inner, layers = module_of(loaded), dict[str, Reading]()
    with seeing([*_matrices(inner), *_norms(inner)]) as seen:
        traced = trace(loaded, probe(loaded, _N_TEXT), keep_v=True)
    for layer, block in zip(traced.layers, blocks_of(loaded).values(), strict=True):
        if not isinstance(layer, LayerTrace) or layer.v is None:
            raise UnsupportedError(f"{layer.name} is no softmax attention whose queries and keys are known.")
        matrices = {module: seen[module] for module in _matrices(block) if module in seen}
        norms = {module: seen[module] for module in _norms(block) if module in seen}
        used = {"q": layer.q, "k": layer.k, "v": layer.v}
        sides = {side: _projection(tensor[:, :, 0], matrices, norms) for side, tensor in used.items()}
        scale = layer.rule.scale_for(layer.q.shape[3])
        plain = layer.rule.product_only
        layers[layer.name] = Reading(layer.name, sides, layer.n_head, layer.n_kv_head, scale, plain)
    return layers


def _projection(wanted: Float[Tensor, "batch head dim"], matrices: Seen, norms: Seen) -> Projection | None:
    """The matrix among whose outputs at the first position are all of `wanted`, and where they are."""
    columns = wanted.flatten(1).T.tolist()
    for module, (given, made) in matrices.items():
        first = made.reshape(wanted.shape[0], -1, made.shape[-1])[:, 0]
        for power in _FACTORS:
            scaled = first * wanted.shape[2] ** power
            places = {tuple(column): place for place, column in enumerate(scaled.T.tolist())}
            outputs = [places.get(tuple(column), -1) for column in columns]
            if -1 not in outputs:
                before = [norm for norm, (_, after) in norms.items() if torch.equal(after, given)]
                at = torch.tensor(outputs, device=wanted.device).view(wanted.shape[1:])
                return Projection(module, at, before[-1] if before else None)
    return None


class _DoneError(Exception):
    """The layer that was asked for has run."""


@torch.no_grad()
def turned(loaded: Loaded, reading: Reading, side: str, head: int, position: int) -> Float[Tensor, "dim dim"]:
    """The matrix by which a projection's output becomes a query or a key at a position: rotary turn, factor.

    Unit vectors are put in the place of the output, and what attention is then given is taken.
    """
    projection, at = reading.side(side, head)
    dim = projection.outputs.shape[1]
    vectors = torch.cat([torch.eye(dim), torch.linspace(-1, 2, dim)[None]]).to(loaded.device)

    def put(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        out = out.clone()
        out[:, position, projection.outputs[at]] = vectors.to(out.dtype)
        return out

    def stop(called: Called, out: Tensor) -> Tensor:
        if called.name == reading.name:
            raise _DoneError
        return out

    recorder = Recorder(layers=[reading.name])
    handle = projection.module.register_forward_hook(put)
    try:
        with suppress(_DoneError), watching(module_of(loaded), recorder, stop):
            loaded.model(probe(loaded, 1, position + 1).expand(dim + 1, -1))
    finally:
        handle.remove()
    layer = recorder.layers[0]
    assert isinstance(layer, LayerTrace)  # it was one in the probe
    given = (layer.q if side == "q" else layer.k)[:, at, position].double()
    turn = given[:-1].T
    if not close(turn @ vectors[-1].double(), given[-1]):
        raise UnsupportedError(f"what {reading.name} makes of its projections is no linear map of them.")
    return turn
