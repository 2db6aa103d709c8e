"""Run a model for the page: what one run is, how far it is, and the document of its trace."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.decoding.loop import generate
from regard.errors import ArgumentError, RegardError
from regard.files.loading import Loaded
from regard.heads.model import attention_of, layers_of, tokenizer_of
from regard.heads.nulls import null_maker
from regard.layers.attention import MultiHeadAttention
from regard.layers.layer_id import LayerId
from regard.models.mechanisms import why_not
from regard.models.model import Model, Output
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Transformer
from regard.tracing.generation import trace_generation
from regard.tracing.interventions import intervene
from regard.tracing.take import trace
from regard.view.document import Document, Json, Predicts

PREDICTS: dict[str, Predicts] = {"language": "next", "masked": "masked", "none": "vector"}
_ANSWERED = 24  # tokens an encoder-decoder writes where no answer is given
_RIVALS = 5

# What a model is run without: heads (layer, head) and links (layer, head, query, key), as a trace counts.
Off = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run of a model: all that decides its trace."""

    model: str
    text: str
    target: str | None = None
    off: Off = ()
    max_new: int = 0
    cut: Off = ()

    @property
    def id(self) -> str:
        return hashlib.sha256(json.dumps(astuple(self)).encode()).hexdigest()[:16]


class RunProgress:
    """How far the run of a model is, in layers. `stop` ends it before its next layer."""

    def __init__(self, tell: Callable[[int, int], None] | None = None) -> None:
        self.done, self.total, self.stopped, self._tell = 0, 0, False, tell

    @contextmanager
    def of(self, model: Model, n_pass: int) -> Iterator[None]:
        """Count the layers that this thread runs."""
        layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
        self.total = len(layers) * n_pass
        runner = threading.get_ident()

        def reached(*_: object) -> None:
            if threading.get_ident() != runner:  # the same model, on another text
                return
            if self.stopped:
                raise RegardError("This run was stopped.")
            self.done += 1
            if self._tell is not None:
                self._tell(self.done, self.total)

        with ExitStack() as hooks:
            for layer in layers:
                hooks.enter_context(layer.register_forward_pre_hook(reached))
            yield


@contextmanager
def without(loaded: Loaded, off: Off) -> Iterator[None]:
    """Run what is in the block without these heads and links, for this thread alone."""
    if not off:
        yield
        return
    model = loaded.model
    layers = [(name, 1) for name in model.attention_names]
    if not isinstance(model, Seq2Seq):  # a layer whose heads were all pruned has no trace
        layers = [(name, len(heads)) for name, heads in layers_of(loaded).items() if heads]
    with intervene(loaded, this_thread=True) as run:
        for layer, head, *link in off:
            if not (0 <= layer < len(layers) and 0 <= head < layers[layer][1]):
                shape = f"{loaded.facts.name} has {len(layers)} layers of {model.sizes.n_head} heads"
                raise ArgumentError(f"there is no head {head} in layer {layer}: {shape}.")
            if link:
                query, key = link
                run.knock_out(layer=layers[layer][0], head=head, query=query, key=key)
            else:
                run.gate(layer=layers[layer][0], head=head, by=0.0)
        yield


def encode(loaded: Loaded, text: str) -> tuple[list[int], list[str]]:
    """The ids of a text, cut at the model's limit with a notice."""
    tokenizer, limit = tokenizer_of(loaded), loaded.model.sizes.n_position
    ids = tokenizer.encode(text)
    if not ids:
        raise ArgumentError("The text has no token: type at least one word.")
    if limit is None or len(ids) <= limit:
        return ids, []
    notice = f"The text has {len(ids)} tokens, {loaded.facts.name} reads {limit}: the rest is cut."
    ends = ids[-1:] if ids[-1] in tokenizer.special.all() else []  # it ends a cut text too
    return [*ids[: limit - len(ends)], *ends], [notice]


def describe_model(loaded: Loaded, text: str) -> Json:
    """What a document of that text says about its model, and what an encoder beside a decoder read."""
    kind = loaded.model.kind
    source = encode(loaded, text)[0] if kind == "encoder-decoder" else None
    special = tokenizer_of(loaded).special.all()
    predicts, recipes = PREDICTS[loaded.model.lm_head], _recipes(loaded.model)
    return {"kind": kind, "predicts": predicts, "source": source, "special_ids": special, "recipes": recipes}


def _recipes(model: Model) -> dict[str, Json]:
    """Return what each layer does to queries, keys and a head's output, by its name."""
    if not isinstance(model, Transformer):
        return {}
    config, recipes = model.config, {}
    for name in model.attention_names:
        attention = attention_of(model, name)
        # Where layers that see everything have no positions, those with a window still do.
        positioned = config.full_positions or attention.rule.visible.window is not None
        recipes[name] = {
            "rotary": config.positions == "rotary" and LayerId.parse(name).kind == "self" and positioned,
            "qkNorm": attention.query_norm is not None,
            "bias": attention.query.bias is not None,
            "gate": config.block.output_gate,
            "writesAsIs": why_not(config.block, "machine") is None,
        }
    return recipes


def run_model(
    loaded: Loaded, ids: list[int], source: list[int] | None = None, off: Off = (), **options: Any
) -> Output:
    """One pass over these tokens, and over what an encoder reads, without the heads that are `off`."""
    lines = [torch.tensor([line], device=loaded.device) for line in (source, ids) if line is not None]
    with without(loaded, off):
        output: Output = loaded.model(*lines, **options)
    return output


def probabilities(
    loaded: Loaded, ids: list[int], source: list[int] | None, at: int | slice, off: Off = ()
) -> Tensor:
    """Probabilities of what follows some positions, one (vocab) or several (position, vocab)."""
    logits = run_model(loaded, ids, source, off).logits
    assert logits is not None  # only those with a head are asked
    return logits[0, at].float().softmax(-1).cpu()


@torch.no_grad()
def make_document(loaded: Loaded, asked: RunRequest, progress: RunProgress | None = None) -> Document:
    """Run the model and keep its trace."""
    ids, notices = encode(loaded, asked.text)
    if asked.max_new and (asked.off or asked.cut):
        raise ArgumentError("text is written with all heads: switch them on first.")
    known, target = describe_model(loaded, asked.text), None
    _check_links(loaded, asked.cut, len(ids))
    start = len(ids) if known["source"] is None else 1
    with (progress or RunProgress()).of(loaded.model, max(1, asked.max_new)):
        if known["source"] is not None and (asked.target is None or asked.max_new):
            done = generate(loaded, torch.tensor([ids]), max_new=asked.max_new or _ANSWERED)
            target = [list(done.tokens[0]) or [loaded.start_token or 0]]  # so that there is a row
        elif asked.target is not None and known["source"] is not None:
            written, more = encode(loaded, asked.target)
            target, notices = [written], notices + more
        if known["kind"] == "decoder" and asked.max_new:
            traced = trace_generation(loaded, ids, max_new=asked.max_new, keep_v=True)
        else:
            with without(loaded, asked.off + asked.cut):
                traced = trace(loaded, [ids], target=target, keep_v=True, to_disk=True)
    known |= {"id": asked.id, "model_key": asked.model, "text": asked.text, "target": asked.target}
    known |= {"title": loaded.facts.name, "notices": tuple(notices), "off": asked.off, "cut": asked.cut}
    known["make_null"] = null_maker(loaded, len(ids))
    document = Document(traced, **known)
    if document.source is None and len(document.ids) == start:  # nothing was written
        return document
    # For each token that was written, and for the one that would come next, the likeliest of its step.
    top = probabilities(loaded, document.ids, document.source, slice(start - 1, None)).topk(_RIVALS)
    ranked = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    *steps, following = [
        ranked_tokens(tokenizer_of(loaded).tokens(tokens), values) for tokens, values in ranked
    ]
    generated = {"start": start, "steps": steps} if asked.max_new and steps else None
    return replace(document, generated=generated, written_last=following[0]["token"])


def _check_links(loaded: Loaded, cut: Off, n_token: int) -> None:
    """Raise ArgumentError for a link of a token that is not there."""
    if cut and loaded.model.kind == "encoder-decoder":
        raise ArgumentError("links are cut in models that read one text, an encoder or a decoder.")
    for layer, head, query, key in cut:
        if max(query, key) >= n_token:
            raise ArgumentError(
                f"there is no link from {query} to {key} in head {layer}.{head}: there are {n_token} tokens."
            )


def ranked_tokens(names: list[str], values: list[float]) -> list[Json]:
    return [{"token": name, "p": value} for name, value in zip(names, values, strict=True)]
