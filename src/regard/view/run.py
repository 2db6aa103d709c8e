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
from regard.heads.model import layers_of, tokenizer_of
from regard.heads.nulls import null_maker
from regard.layers.attention import MultiHeadAttention
from regard.models.model import Model, Output
from regard.models.seq2seq import Seq2Seq
from regard.tracing.generation import trace_generation
from regard.tracing.interventions import intervene
from regard.tracing.take import trace
from regard.view.document import Document, Json, Predicts

PREDICTS: dict[str, Predicts] = {"language": "next", "masked": "masked", "none": "vector"}
_ANSWERED = 24  # tokens an encoder-decoder writes where no answer is given
_RIVALS = 5

Off = tuple[tuple[int, int], ...]  # heads that are switched off, (layer, head) as a trace counts them


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run of a model: all that decides its trace."""

    model: str
    text: str
    target: str | None = None
    off: Off = ()
    max_new: int = 0

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
def heads_off(loaded: Loaded, off: Off) -> Iterator[None]:
    """A block in which these heads give nothing in what this thread asks of the model."""
    if not off:
        yield
        return
    model = loaded.model
    layers = [(name, 1) for name in model.attention_names]
    if not isinstance(model, Seq2Seq):  # a layer whose heads were all pruned has no trace
        layers = [(name, len(heads)) for name, heads in layers_of(loaded).items() if heads]
    with intervene(loaded, this_thread=True) as run:
        for layer, head in off:
            if not (0 <= layer < len(layers) and 0 <= head < layers[layer][1]):
                shape = f"{loaded.facts.name} has {len(layers)} layers of {model.sizes.n_head} heads"
                raise ArgumentError(f"there is no head {head} in layer {layer}: {shape}.")
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
    return {
        "kind": kind,
        "predicts": PREDICTS[loaded.model.lm_head],
        "source": source,
        "special_ids": special,
    }


def run_model(
    loaded: Loaded, ids: list[int], source: list[int] | None = None, off: Off = (), **options: Any
) -> Output:
    """One pass over these tokens, and over what an encoder reads, without the heads that are `off`."""
    lines = [torch.tensor([line], device=loaded.device) for line in (source, ids) if line is not None]
    with heads_off(loaded, off):
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
    if asked.max_new and asked.off:
        raise ArgumentError("text is written with all heads: switch them on first.")
    known, target = describe_model(loaded, asked.text), None
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
            with heads_off(loaded, asked.off):
                traced = trace(loaded, [ids], target=target, keep_v=True, to_disk=True)
    known |= {"id": asked.id, "model_key": asked.model, "text": asked.text, "target": asked.target}
    known |= {"title": loaded.facts.name, "notices": tuple(notices), "off": asked.off}
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


def ranked_tokens(names: list[str], values: list[float]) -> list[Json]:
    return [{"token": name, "p": value} for name, value in zip(names, values, strict=True)]
