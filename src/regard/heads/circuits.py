"""What a head's weights do, whatever the text: circuits through the residual stream (Elhage et al. 2021).

    circuit = ov_circuit(load("smollm2"), layer=3, head=5)
    circuit.strongest(token)                 # what looking at this token makes likelier
    circuit.sign, circuit.copying()          # does it copy?
    composition(model).k                     # which earlier heads a later one listens to, on its key's side
    logit_lens(model, ids)                   # what each layer would say next
    score_split(model, ids, 3, 5, 9, 2)      # which earlier heads made one score

Of any decoder whose queries, keys, values, outputs and scores come from matrices that can be found. Nothing
here knows an architecture: the model runs on a few tokens, and what went into its modules and came out of
them says which is which; where it does not, that is refused. Norms come before what reads the stream. Of
matrices alone their weights count and, in a LayerNorm, the mean that it takes away; the length they divide by
depends on the text, and so do biases: they are left out. `logit_lens` and `score_split` are of a text, and
leave nothing out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.shapes import whole_index
from regard.decoding.prompts import Prompt, encoded
from regard.errors import ArgumentError, UnsupportedError
from regard.files.loading import Loaded
from regard.heads.model import head_outputs, layers_of, loaded_of, path_of, probe
from regard.layers.layer_id import LayerId
from regard.models.mechanisms import Tool, why_not
from regard.models.transformer import Transformer
from regard.tracing.calls import AttentionCall
from regard.tracing.layers import LayerTrace
from regard.tracing.recorder import Recorder
from regard.tracing.take import module_of, trace
from regard.tracing.watch import watching

Seen = dict[nn.Module, tuple[Tensor, Tensor]]  # what a module was given and gave, the last to run at the end

_N_TEXT = 8  # of a probe: so many numbers tell one output of a matrix from another
_FACTORS = (0.0, -0.5, -0.25)  # powers of qk_dim that queries or keys may be multiplied by before attention
_BLOCK = 1 << 22  # numbers of a circuit's table worked on at once
_LARGE = 1e3  # beside numbers of this size the eps of a norm is nothing


@contextmanager
def seeing(modules: Iterable[nn.Module]) -> Iterator[Seen]:
    """A block in which is kept what these modules are given and give in this thread."""
    seen: Seen = {}
    thread = threading.get_ident()  # others may run the same model on another text meanwhile

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        given = args[0] if args else kwargs.get("hidden_states")
        made = out if isinstance(out, Tensor) else out[0]
        if isinstance(given, Tensor) and isinstance(made, Tensor) and threading.get_ident() == thread:
            seen.pop(module, None)
            seen[module] = given, made

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(note, with_kwargs=True))
        yield seen


def close(one: Tensor, other: Tensor, of: Tensor | None = None) -> bool:
    """Equal to what float32 loses on the way through a model; `of`: what they are differences of."""
    rounding = 0.0 if of is None else 1e-6 * float(of.abs().max())
    most = 1e-4 * float(other.abs().max()) + rounding
    return one.shape == other.shape and float((one - other).abs().max()) <= most


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
    heads, writers = layers_of(loaded), _writers(loaded)
    return {name: matrix_of(module).unflatten(1, (len(heads[name]), -1)) for name, module in writers.items()}


def _writers(loaded: Loaded) -> dict[str, nn.Module]:
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
            raise UnsupportedError(f"{loaded.facts.name}: no matrix is given what the heads of {name} give.")
    return writers


def matrix_of(module: nn.Module) -> Float[Tensor, "out model_dim"]:
    """The matrix of an nn.Linear, or of a Conv1D of transformers, which has it turned."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    return weight if isinstance(module, nn.Linear) else weight.T


def _bias_of(module: nn.Module) -> Float[Tensor, "out"]:
    """Its bias, 0 where it has none."""
    bias: Tensor | None = module.bias  # type: ignore[assignment]
    return matrix_of(module).new_zeros(len(matrix_of(module))) if bias is None else bias


def _matrices(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"]


def _norms(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if "norm" in type(m).__name__.lower()]


def blocks_of(loaded: Loaded) -> dict[str, nn.Module]:
    """The block of a stack in which each attention layer stands."""
    inner, blocks = module_of(loaded), dict[str, nn.Module]()
    for name in layers_of(loaded):
        block = LayerId.parse(path_of(loaded.model, name)).block
        if block is None:
            raise UnsupportedError(f"{loaded.facts.name}: {name} stands in no block of a stack.")
        blocks[name] = inner.get_submodule(block)
    return blocks


def _check_mechanisms(loaded: Loaded, tool: Tool) -> None:
    """Raise `UnsupportedError` where a Transformer of ours has something that this tool does not know."""
    reason = why_not(loaded.model.config, tool) if isinstance(loaded.model, Transformer) else None
    if reason is not None:
        raise UnsupportedError(f"{reason}.")


def _check_decoder(what: str, loaded: Loaded) -> None:
    kind, head = loaded.model.kind, loaded.model.lm_head
    if kind != "decoder" or head != "language":
        raise UnsupportedError(f"{what} of decoders with a language head. This is {kind}, head {head!r}.")


class Stream:
    """The residual stream of one run of a decoder: what was written into it, and how it becomes scores.

    A model whose blocks do not add what their attention gives to what they were given, and one more part,
    is refused.
    """

    @torch.no_grad()
    def __init__(self, loaded: Loaded, ids: Int[Tensor, "1 position"]) -> None:
        self.blocks, self.matrices, inner = blocks_of(loaded), projections(loaded), module_of(loaded)
        parts = {part for block in self.blocks.values() for part in (block, *block.children())}
        with seeing({*parts, *_norms(inner)}) as self.seen, head_outputs(loaded) as self.heads:
            self.out = loaded.model(ids)
        for name, block in self.blocks.items():
            given, gave = (tensor.double() for tensor in self.seen[block])
            attention = inner.get_submodule(path_of(loaded.model, name))
            mine, others = list[Tensor](), list[Tensor]()
            for part in filter(self.seen.get, block.children()):
                (mine if attention in part.modules() else others).append(self.seen[part][1].double())
            alike = [out.view_as(gave) for out in others if out.numel() == gave.numel()]
            if not any(close(mine[0] + out, gave - given, gave) for out in alike if mine):
                which = f"{loaded.facts.name}: {name}"
                reason = "does not add its output to the residual stream as it is: a norm follows, it seems"
                raise UnsupportedError(f"{which} {reason}.")

    def written(self, name: str, places: list[int]) -> Float[Tensor, "head place model_dim"]:
        """What each head of a layer wrote at some places."""
        given, matrix = self.heads[name][0, :, places].double(), self.matrices[name].double()
        return torch.einsum("hpv,mhv->hpm", given, matrix)


class Ending(Stream):
    """How a decoder's residual stream becomes scores, in one forward pass of it."""

    before: Float[Tensor, "position model_dim"]  # what the last norm is given, in float64
    norm: Norm
    unembed: Float[Tensor, "vocab model_dim"]
    bias: Float[Tensor, "vocab"]
    logits: Float[Tensor, "position vocab"]

    @torch.no_grad()
    def __init__(self, loaded: Loaded, ids: Int[Tensor, "1 position"]) -> None:
        _check_decoder("what heads write toward a score is known", loaded)
        super().__init__(loaded, ids)
        model, hidden, self.logits = loaded.model, self.out.hidden, self.out.logits[0]
        if isinstance(model, Transformer):
            table: Any = model.token if model.unembed is None else model.unembed
            unembed = table.weight * model.config.lm_head_scale
        else:
            table = getattr(model, "unembed", None)
            unembed = getattr(table, "weight", None)
        if not isinstance(unembed, Tensor):
            raise UnsupportedError(f"{loaded.facts.name} names no matrix that gives its scores.")
        bias = getattr(table, "bias", None)
        self.bias = unembed.new_zeros(len(unembed)) if bias is None else bias
        norms = [(norm, *self.seen[norm]) for norm in reversed(self.seen) if norm in _norms(norm)]
        for norm, before, after in (*norms, (None, hidden, hidden)):
            if after.shape[-1] != unembed.shape[1]:
                continue
            scores = after[0] @ unembed.T
            factor = (scores * (self.logits - self.bias)).sum() / scores.square().sum()  # Cohere scales them
            if close(factor * scores + self.bias, self.logits):
                self.unembed = unembed if abs(factor - 1) < 1e-4 else unembed * factor
                self.before, self.norm = before[0].double(), Norm.of(norm, unembed)
                return
        raise UnsupportedError(f"{loaded.facts.name}: its scores are not its last norm times one matrix.")


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The matrix that makes the queries, keys or values of a layer: which of its outputs each head uses."""

    module: nn.Module
    outputs: Int[Tensor, "head dim"]
    norm: Norm  # which its input comes out of

    @property
    def folded(self) -> Float[Tensor, "head dim model_dim"]:
        """What each head reads of the stream itself, the norm before it folded in."""
        return self.norm.folded(matrix_of(self.module)[self.outputs])


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """How an attention layer reads the stream; a side is missing where no matrix gives what it uses."""

    layer: LayerTrace  # of a probe
    sides: dict[str, Side | None]  # of q, k and v

    def side(self, side: str) -> Side:
        """The matrix of q, k or v."""
        known = self.sides[side]
        if known is None:
            words = {"q": "queries", "k": "keys", "v": "values"}[side]
            raise UnsupportedError(
                f"the {words} of {self.layer.name} are not what one matrix gives: another step is between."
            )
        return known


@torch.no_grad()
def readings(loaded: Loaded) -> dict[str, Reading]:
    """How each attention layer of a decoder reads the stream; a model without circuits is refused.

    At the first position no rotary turn moves anything: queries and keys there are outputs of a matrix.
    """
    _check_decoder("circuits are", loaded)
    _check_mechanisms(loaded, "circuits")
    inner, layers = module_of(loaded), dict[str, Reading]()
    with seeing([*_matrices(inner), *_norms(inner)]) as seen:
        traced = trace(loaded, probe(loaded, _N_TEXT), keep_v=True)
    for layer, block in zip(traced.layers, blocks_of(loaded).values(), strict=True):
        if not isinstance(layer, LayerTrace) or layer.v is None:
            raise UnsupportedError(f"{layer.name} is no softmax attention whose queries and keys are known.")
        of_block = {module: seen[module] for module in block.modules() if module in seen}
        used = {"q": layer.q, "k": layer.k, "v": layer.v}
        sides = {side: _side(tensor[:, :, 0], layer.n_head, of_block) for side, tensor in used.items()}
        layers[layer.name] = Reading(layer, sides)
    return layers


def _side(wanted: Float[Tensor, "batch head dim"], n_head: int, seen: Seen) -> Side | None:
    """The matrix among whose outputs at the first position are all of `wanted`, and where they are."""
    columns = wanted.flatten(1).T.tolist()
    norms = [module for module in seen if module in _norms(module)]
    for module in (module for module in seen if module not in norms):
        given, made = seen[module]
        first = made.reshape(wanted.shape[0], -1, made.shape[-1])[:, 0]
        for power in _FACTORS:
            scaled = first * wanted.shape[2] ** power
            places = {tuple(column): place for place, column in enumerate(scaled.T.tolist())}
            outputs = [places.get(tuple(column), -1) for column in columns]
            if -1 not in outputs:
                before = [norm for norm in norms if torch.equal(seen[norm][1], given)]
                at = torch.tensor(outputs, device=wanted.device).view(wanted.shape[1:])
                norm = Norm.of(before[-1] if before else None, matrix_of(module))
                return Side(module, at.repeat_interleave(n_head // len(at), 0), norm)
    return None


class _DoneError(Exception):
    """The layer that was asked for has run."""


@torch.no_grad()
def turned(loaded: Loaded, reading: Reading, side: str, head: int, position: int) -> Float[Tensor, "dim dim"]:
    """The matrix by which a projection's output becomes a query or a key at a position: rotary turn, factor.

    Of a query with the scale of scores: its product with a key is one. Unit vectors are put in the place of
    the output, and what attention is then given is taken.
    """
    known, name = reading.side(side), reading.layer.name
    dim = known.outputs.shape[1]
    vectors = torch.cat([torch.eye(dim), torch.linspace(-1, 2, dim)[None]]).to(loaded.device)

    def put(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        out = out.clone()
        out[:, position, known.outputs[head]] = vectors.to(out.dtype)
        return out

    def stop(called: AttentionCall, out: Tensor) -> Tensor:
        if called.name == name:
            raise _DoneError
        return out

    recorder = Recorder(layers=[name])
    seen = watching(module_of(loaded), recorder, stop)
    with known.module.register_forward_hook(put), suppress(_DoneError), seen:
        loaded.model(probe(loaded, 1, position + 1).expand(dim + 1, -1))
    layer = recorder.layers[0]
    assert isinstance(layer, LayerTrace)  # it was one in the probe
    given = layer.of_head(layer.q if side == "q" else layer.k, head, None)[:, 0, position].double()
    turn = given[:-1].T
    if not close(turn @ vectors[-1].double(), given[-1]):
        raise UnsupportedError(f"what {name} makes of its projections is no linear map of them.")
    return turn * layer.rule.scale_for(dim) if side == "q" else turn


@dataclass(frozen=True, slots=True, eq=False)
class Circuit:
    """A table over pairs of tokens, of low rank: entry (a, b) is left[a] . right[b].

    Attributes:
        left: A vector for the token of each row, ``(vocab, dim)``.
        right: A vector for the token of each column, ``(vocab, dim)``.
    """

    left: Float[Tensor, "vocab dim"]
    right: Float[Tensor, "vocab dim"]

    def table(self, rows: slice = slice(None), cols: slice = slice(None)) -> Float[Tensor, "rows cols"]:
        """Compute a part of the table; the whole has vocab x vocab numbers.

        Args:
            rows: The tokens whose rows are computed. Default: all.
            cols: The tokens whose columns are computed. Default: all.

        Returns:
            ``(rows, cols)``.
        """
        return self.left[rows] @ self.right[cols].T

    def strongest(self, token: int, n: int = 10) -> list[tuple[int, float]]:
        """Find the largest entries of a token's row.

        Args:
            token: The id whose row it is.
            n: How many entries.

        Returns:
            (token, value), the largest first.

        Raises:
            ArgumentError: If the vocabulary has no such token.
        """
        values = self.right @ self.left[whole_index("token", token, len(self.left))]
        best, index = values.topk(min(n, len(values)))
        return list(zip(index.tolist(), best.tolist(), strict=True))

    @property
    def sign(self) -> float:
        """Sum of the eigenvalues over the sum of their absolute values: 1 copies, -1 suppresses."""
        # The product the other way round is small and has the same eigenvalues, but for those that are 0.
        values = torch.linalg.eigvals(self.right.T.double() @ self.left.double())
        return float(values.real.sum() / values.abs().sum())

    def copying(self, n: int = 5) -> float:
        """Compute the share of tokens that are among the `n` strongest of their own row.

        Args:
            n: How many of each row count as strongest.

        Returns:
            A share between 0 and 1; by chance n / vocab.
        """
        vocab, n_right = self.left.shape[0], 0
        step = max(1, _BLOCK // vocab)
        for first in range(0, vocab, step):
            block = self.table(slice(first, first + step))
            of_itself = block.diagonal(first)[:, None]
            n_right += int(((block > of_itself).sum(-1) < n).sum())
        return n_right / vocab


@torch.no_grad()
def ov_circuit(model: Loaded | nn.Module, layer: int, head: int) -> Circuit:
    """Compute what attending to a token adds to the logits of all tokens, through this head alone.

    Row a is W_U W_O W_V e_a, e_a being the embedding of the token attended to. Norms count by their weights;
    biases are left out.

    Args:
        model: A decoder with a language head, loaded or a module.
        layer: The attention layer, counted from 0; negative numbers count from the last.
        head: The head, counted in the same way.

    Returns:
        The circuit: rows are tokens attended to, columns the tokens whose logits change.

    Raises:
        ArgumentError: If there is no such layer or head.
        UnsupportedError: If the model is not a decoder with a language head, or its matrices cannot be found.
    """
    loaded, reading, head = _chosen(loaded_of(model), layer, head)
    ending = Ending(loaded, probe(loaded))
    writes = ending.matrices[reading.layer.name][:, head]
    reads = _vectors(loaded) @ reading.side("v").folded[head].T
    return Circuit(reads, ending.norm.folded(ending.unembed) @ writes)


@torch.no_grad()
def qk_circuit(model: Loaded | nn.Module, layer: int, head: int, *, distance: int = 0) -> Circuit:
    """Compute the score of every query token with every key token, from their embeddings alone.

    Norms count by their weights; biases are left out.

    Args:
        model: A decoder with a language head, loaded or a module.
        layer: The attention layer, counted from 0; negative numbers count from the last.
        head: The head, counted in the same way.
        distance: How many positions the key is before the query; it matters with rotary positions.

    Returns:
        The circuit: rows are queries, columns keys.

    Raises:
        ArgumentError: If there is no such layer or head, or `distance` is negative.
        UnsupportedError: If the model is not a decoder with a language head, or its matrices cannot be found.
    """
    if distance < 0:
        raise ArgumentError(f"distance counts the positions back to the key: at least 0. Got {distance}.")
    loaded, reading, head = _chosen(loaded_of(model), layer, head)
    _check_mechanisms(loaded, "qk_circuits")
    vectors = _vectors(loaded)
    queries, keys = (
        vectors @ (turned(loaded, reading, side, head, at).to(vectors) @ reading.side(side).folded[head]).T
        for side, at in (("q", distance), ("k", 0))
    )
    return Circuit(queries, keys)


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """How much later heads read what earlier heads write.

    Tables are ``(later, later_head, earlier, earlier_head)``, NaN where the second layer is not earlier.

    Attributes:
        layers: The names of the layers.
        q: Q-composition: through the queries of the later head.
        k: K-composition: through its keys.
        v: V-composition: through its values.
    """

    layers: tuple[str, ...]
    q: Float[Tensor, "later later_head earlier earlier_head"]
    k: Float[Tensor, "later later_head earlier earlier_head"]
    v: Float[Tensor, "later later_head earlier earlier_head"]


@torch.no_grad()
def composition(model: Loaded | nn.Module) -> Composition:
    """Compute how much each head reads what each earlier head writes (Elhage et al. 2021, "composition").

    It is |B A| / (|B| |A|) in the Frobenius norm. A is what the earlier head writes, W_O W_V; B is what the
    later head does with it: W_QK transposed (q), W_QK (k) or W_O W_V (v). Two random matrices have about
    1 / sqrt(model_dim).

    Args:
        model: A decoder with a language head, loaded or a module.

    Returns:
        The three tables, each ``(later, later_head, earlier, earlier_head)``, in float64.

    Raises:
        UnsupportedError: If the model is not a decoder with a language head, its matrices cannot be found, or
            its layers differ in their number of heads.
    """
    loaded = loaded_of(model)
    layers, stream = readings(loaded), Stream(loaded, probe(loaded))
    counts = {reading.layer.n_head for reading in layers.values()}
    if len(counts) != 1:
        raise UnsupportedError(f"layers of {loaded.facts.name} have {sorted(counts)} heads: not one number.")
    n_layer, n_head = len(layers), counts.pop()
    q, k, v = (torch.stack([one.side(side).folded.double() for one in layers.values()]) for side in "qkv")
    wrote = torch.stack([stream.matrices[name].movedim(1, 0).double() for name in layers])
    # The norm of a product needs no more of its first and last matrix than their triangles.
    carried = _triangle(v).mT
    sizes = torch.linalg.matrix_norm(_triangle(wrote.mT) @ carried)
    tables = torch.full((3, n_layer, n_head, n_layer, n_head), torch.nan, dtype=torch.float64)
    for kind, (reads, then) in enumerate(((q, k), (k, q), (v, wrote.mT))):
        ends = _triangle(then)
        whole = torch.linalg.matrix_norm(ends @ _triangle(reads).mT)
        for later, head in product(range(n_layer), range(n_head)):
            products = ends[later, head] @ (reads[later, head] @ wrote[:later]) @ carried[:later]
            shares = torch.linalg.matrix_norm(products) / (whole[later, head] * sizes[:later])
            tables[kind, later, head, :later] = shares.cpu()
    return Composition(tuple(layers), *tables)


def _triangle(matrix: Tensor) -> Tensor:
    """R of the transpose's QR: |R x| is |matrix.T x| for every x, and R is small."""
    triangle: Tensor = torch.linalg.qr(matrix.mT, mode="r").R
    return triangle


def _chosen(loaded: Loaded, layer: int, head: int) -> tuple[Loaded, Reading, int]:
    """The model, its layer of that number, and the head, counted from the front."""
    layers = list(readings(loaded).values())
    reading = layers[whole_index("layer", layer, len(layers))]
    return loaded, reading, whole_index("head", head, reading.layer.n_head)


def _vectors(loaded: Loaded) -> Float[Tensor, "vocab model_dim"]:
    """The vector of every token, as the first layer's stream has it but for a factor."""
    if isinstance(loaded.model, Transformer):
        return loaded.model.token.weight
    find: Any = getattr(module_of(loaded), "get_input_embeddings", None)
    weight = getattr(find() if callable(find) else None, "weight", None)
    if not isinstance(weight, Tensor) or weight.shape[-1] != loaded.model.sizes.model_dim:
        raise UnsupportedError(f"{loaded.facts.name} names no table of its tokens' vectors.")
    return weight


@torch.no_grad()
def logit_lens(
    model: Loaded | nn.Module, text_or_tokens: Prompt, *, position: int | None = -1, tokenizer: Any = None
) -> Float[Tensor, "layer batch *position vocab"]:
    """Compute the logits that the model would give after each layer, if it were the last.

    Every layer's vectors go through the model's last norm and its language head (nostalgebraist 2020).

    Args:
        model: A decoder with a language head, loaded or a module; or a `Transformer` encoder with a head.
        text_or_tokens: A text, several texts, or their ids.
        position: The position whose logits are computed. None: all positions.
        tokenizer: What reads the text, for a module that has no tokenizer of its own.

    Returns:
        ``(layer, batch, vocab)``, or ``(layer, batch, position, vocab)`` where `position` is None. The
        embeddings come first, then every layer; the last are the model's own logits.

    Raises:
        ArgumentError: If there is no such position, or a text comes without a tokenizer.
        UnsupportedError: If the model is an encoder-decoder, has no head, or its last norm and output
            matrix cannot be found.
    """
    loaded = loaded_of(model, tokenizer)
    own = loaded.model
    if own.kind == "encoder-decoder" or own.lm_head == "none":
        raise UnsupportedError("a logit lens needs one stack, a decoder or an encoder, with a head on it.")
    read = encoded(text_or_tokens, loaded.tokenizer, loaded.device)
    with seeing(blocks_of(loaded).values()) as seen:
        out = own(read.ids, key_mask=read.key_mask)
    streams = [next(iter(seen.values()))[0], *(gave for _, gave in seen.values())]
    if isinstance(own, Transformer):
        stack = own.encoder if own.decoder is None else own.decoder
        norm = nn.Identity() if stack is None or stack.norm is None else stack.norm
        scores = [own.logits(norm(stream)) for stream in streams[:-1]]
    else:
        ending = Ending(loaded, read.ids[:1])
        last = ending.norm.module or nn.Identity()
        scores = [last(x.double()).to(x.dtype) @ ending.unembed.T + ending.bias for x in streams[:-1]]
    lens = torch.stack([*scores, out.logits])  # type: ignore[list-item]  # there is a head
    return lens if position is None else lens[:, :, whole_index("position", position, lens.shape[2])]


@dataclass(frozen=True, slots=True, eq=False)
class ScoreSplit:
    """One score, by what wrote the query and what wrote the key.

    Attributes:
        names: What wrote each part: "embedding", then "head L.H" and "feed-forward L" of every earlier layer,
            then "bias".
        parts: What each pair adds to the score, ``(query_part, key_part)``.
        score: The score, which is the sum of all parts.
    """

    names: tuple[str, ...]
    parts: Float[Tensor, "query_part key_part"]
    score: float

    @property
    def query_side(self) -> dict[str, float]:
        """What each part of the query adds to the score."""
        return dict(zip(self.names, self.parts.sum(1).tolist(), strict=True))

    @property
    def key_side(self) -> dict[str, float]:
        """What each part of the key adds to the score."""
        return dict(zip(self.names, self.parts.sum(0).tolist(), strict=True))


@torch.no_grad()
def score_split(
    model: Loaded | nn.Module,
    text_or_tokens: Prompt,
    layer: int,
    head: int,
    query: int,
    key: int,
    *,
    tokenizer: Any = None,
) -> ScoreSplit:
    """Split the score of one query and key by what wrote the query's vector and what wrote the key's.

    The residual stream is the sum of what the embedding, every earlier head and every feed-forward layer
    wrote. With the norm held at the scale it had, query and key are such sums too, and the score is a sum
    over pairs.

    Args:
        model: A decoder with a language head, loaded or a module.
        text_or_tokens: One text, or its ids.
        layer: The attention layer, counted from 0; negative numbers count from the last.
        head: The head, counted in the same way.
        query: The position of the query.
        key: The position of the key, not after the query.
        tokenizer: What reads the text, for a module that has no tokenizer of its own.

    Returns:
        The score and its parts.

    Raises:
        ArgumentError: If there is no such layer, head or position, the key comes after the query, or there
            are several texts.
        UnsupportedError: If the model is not a decoder with a language head, its matrices cannot be found, or
            scores of the layer are more than scaled products.
    """
    loaded, reading, head = _chosen(loaded_of(model, tokenizer), layer, head)
    if not reading.layer.rule.product_only:
        raise UnsupportedError(f"{reading.layer.name}: scores with a bias or a cap are no mere products.")
    ids = encoded(text_or_tokens, loaded.tokenizer, loaded.device).ids
    if ids.shape[0] != 1:
        raise ArgumentError("a score is of one sequence: give one text, or the ids of one.")
    query, key = (whole_index(name, at, ids.shape[1]) for name, at in (("query", query), ("key", key)))
    if key > query:
        raise ArgumentError(f"key {key} comes after query {query}: a decoder hides it.")
    stream, writers, places = Stream(loaded, ids), _writers(loaded), [query, key]
    before = {name: stream.seen[block][0][0, places].double() for name, block in stream.blocks.items()}
    layers = list(before)[: list(before).index(reading.layer.name) + 1]
    # What was written into the stream before the layer, by whom; together it is the stream.
    written, names = [before[layers[0]]], ["embedding"]
    bias = torch.zeros_like(written[0])  # of output projections; a feed-forward layer's are its own
    for index, (name, after) in enumerate(pairwise(layers)):
        by_heads, of_bias = stream.written(name, places), _bias_of(writers[name]).double()
        written += [*by_heads, before[after] - before[name] - by_heads.sum(0) - of_bias]
        names += [*(f"head {index}.{at}" for at in range(len(by_heads))), f"feed-forward {index}"]
        bias = bias + of_bias
    parts, sides = torch.stack([*written, bias]), []
    for place, (side, at) in enumerate((("q", query), ("k", key))):
        known = reading.side(side)
        made = known.norm.held(parts[:, place].sum(0), parts[:, place])
        made[-1] += known.norm.bias
        made = made @ matrix_of(known.module)[known.outputs[head]].double().T
        made[-1] += _bias_of(known.module)[known.outputs[head]].double()
        sides.append(made @ turned(loaded, reading, side, head, at).T)
    table = sides[0] @ sides[1].T
    return ScoreSplit((*names, "bias"), table, float(table.sum()))
