"""A model that the page talks to: what it reads, what it says, and what each of its heads does to that; and
one weight taken apart, every number the model's own, from the vectors that were read to the next token.
"""

import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.decoding.loop import generate
from regard.errors import ArgumentError, RegardError, UnsupportedError
from regard.files.loading import Loaded
from regard.heads.circuits import Norm, seeing
from regard.heads.flow import logit_attribution
from regard.heads.model import attention_of, layers_of, strongest, tokenizer_of
from regard.heads.relations import score_pairs
from regard.layers.attention import MultiHeadAttention
from regard.models.model import Model, Output
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Transformer
from regard.tracing.generation import trace_generation
from regard.tracing.gradients import ScoreGradients, score_gradients
from regard.tracing.interventions import intervene
from regard.tracing.take import trace
from regard.view.document import Document, Inside, Json, Predicts

# What an encoder without a head of words is asked: which of these its sentence vector is nearest to.
EXAMPLES = (
    "The dog was too tired to walk.",
    "A car drove down the road.",
    "She gave him a book to read.",
    "The weather is cold today.",
    "Stock prices fell on Monday.",
    "He cooked rice for dinner.",
)
TOP = 8
_ANSWERED = 24  # tokens an encoder-decoder writes where no answer is given
_RIVALS = 5
_MOST_TOKENS = 256  # of a text whose heads are switched off one after the other
_MOST_SENTENCES = 200
MOST_KEYS = 256  # of a row; beyond, the largest are shown and the rest is one number
MOST_RUN_AGAIN = 1024  # tokens of a text that is read once more for what comes before a query
_TOKENS = 4  # raised most, and as many lowered most
_WORD = re.compile(r"\*(?P<looks>[^*\[\]]+)\*|\[(?P<at>[^*\[\]]+)\]|([^\s*\[\]]+)")  # others: by no name
_PREDICTS: dict[str, Predicts] = {"language": "next", "masked": "masked", "none": "vector"}

Off = tuple[tuple[int, int], ...]  # heads that are switched off, (layer, head) as a trace counts them


@dataclass(frozen=True, slots=True)
class Asked:
    """One run of a model: all that decides its trace."""

    model: str
    text: str
    target: str | None = None
    off: Off = ()
    max_new: int = 0

    @property
    def id(self) -> str:
        return hashlib.sha256(json.dumps(astuple(self)).encode()).hexdigest()[:16]


class Progress:
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


def about(loaded: Loaded, text: str) -> Json:
    """What a document of that text says about its model, and what an encoder beside a decoder read."""
    kind = loaded.model.kind
    source = encode(loaded, text)[0] if kind == "encoder-decoder" else None
    special = tokenizer_of(loaded).special.all()
    return {
        "kind": kind,
        "predicts": _PREDICTS[loaded.model.lm_head],
        "source": source,
        "special_ids": special,
    }


def run(
    loaded: Loaded, ids: list[int], source: list[int] | None = None, off: Off = (), **options: Any
) -> Output:
    """One pass over these tokens, and over what an encoder reads, without the heads that are `off`."""
    lines = [torch.tensor([line], device=loaded.device) for line in (source, ids) if line is not None]
    with without(loaded, off):
        output: Output = loaded.model(*lines, **options)
    return output


def chances(
    loaded: Loaded, ids: list[int], source: list[int] | None, at: int | slice, off: Off = ()
) -> Tensor:
    """Probabilities of what follows some positions, one (vocab) or several (position, vocab)."""
    logits = run(loaded, ids, source, off).logits
    assert logits is not None  # only those with a head are asked
    return logits[0, at].float().softmax(-1).cpu()


def sentence_vector(output: Output) -> Tensor:
    """The mean of the last layer's vectors, of length 1: how sentence encoders are compared."""
    return F.normalize(output.hidden.float().mean(1), dim=-1)[0]


@torch.no_grad()
def make_document(loaded: Loaded, asked: Asked, progress: Progress | None = None) -> Document:
    """Run the model and keep its trace."""
    ids, notices = encode(loaded, asked.text)
    if asked.max_new and asked.off:
        raise ArgumentError("text is written with all heads: switch them on first.")
    known, target = about(loaded, asked.text), None
    start = len(ids) if known["source"] is None else 1
    with (progress or Progress()).of(loaded.model, max(1, asked.max_new)):
        if known["source"] is not None and (asked.target is None or asked.max_new):
            done = generate(loaded, torch.tensor([ids]), max_new=asked.max_new or _ANSWERED)
            target = [list(done.tokens[0]) or [loaded.start_token or 0]]  # so that there is a row
        elif asked.target is not None and known["source"] is not None:
            written, more = encode(loaded, asked.target)
            target, notices = [written], notices + more
        if known["kind"] == "decoder" and asked.max_new:
            traced = trace_generation(loaded, ids, max_new=asked.max_new, keep_v=True)
        else:
            with without(loaded, asked.off):
                traced = trace(loaded, [ids], target=target, keep_v=True, to_disk=True)
    known |= {"id": asked.id, "model_key": asked.model, "text": asked.text, "target": asked.target}
    known |= {"title": loaded.facts.name, "notices": tuple(notices), "off": asked.off}
    document = Document(traced, **known)
    if document.source is None and len(document.ids) == start:  # nothing was written
        return document
    # For each token that was written, and for the one that would come next, the likeliest of its step.
    top = chances(loaded, document.ids, document.source, slice(start - 1, None)).topk(_RIVALS)
    ranked = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    *steps, following = [_listed(tokenizer_of(loaded).tokens(tokens), values) for tokens, values in ranked]
    generated = {"start": start, "steps": steps} if asked.max_new and steps else None
    return replace(document, generated=generated, written_last=following[0]["token"])


def _listed(names: list[str], values: list[float]) -> list[Json]:
    return [{"token": name, "p": value} for name, value in zip(names, values, strict=True)]


class Prediction:
    """What a model says at one position of a text: words and their probabilities, or a sentence encoder's
    cosines with EXAMPLES. Without a position it is that of the last token, or of the last word, masked.
    """

    def __init__(self, loaded: Loaded, document: Document, position: int | None = None) -> None:
        self.loaded, self.document, self.fed = loaded, document, document.ids
        self.kind, tokenizer = _PREDICTS[loaded.model.lm_head], tokenizer_of(loaded)
        self.at = len(self.fed) - 1 if position is None else position
        if not 0 <= self.at < len(self.fed):
            raise ArgumentError(f"there is no position {self.at}: there are {len(self.fed)} tokens.")
        if self.kind == "vector":
            self.at, texts = 0, [*map(tokenizer.encode, EXAMPLES), self.fed]
            self.vectors = torch.stack([sentence_vector(run(loaded, ids)).cpu() for ids in texts])
        if self.kind == "masked":
            special = tokenizer.special
            if special.mask is None:
                raise UnsupportedError("this tokenizer has no mask token.")
            if position is None:
                words = [place for place, token in enumerate(self.fed) if token not in special.all()]
                self.at = max(words, default=0)
            self.fed[self.at] = special.mask

    def scores(self, off: Off = ()) -> tuple[Tensor, float]:
        """The probability of each word, or the cosine with each example, without some heads; and how far
        they move the sentence vector, 1 - cosine.
        """
        if self.kind == "vector":
            *cosines, own = self.vectors @ sentence_vector(run(self.loaded, self.fed, off=off)).cpu()
            return torch.stack(cosines), 1 - float(own)
        return chances(self.loaded, self.fed, self.document.source, self.at, off), math.nan

    def names(self, choices: Tensor) -> list[str]:
        """What those words or examples are called."""
        if self.kind == "vector":
            return [EXAMPLES[choice] for choice in choices.tolist()]
        return tokenizer_of(self.loaded).tokens(choices)


@torch.no_grad()
def predict(loaded: Loaded, document: Document, position: int | None = None) -> Json:
    """The likeliest words at a position, or the nearest examples, before and after switching heads off."""
    said, off = Prediction(loaded, document, position), document.off
    before, (after, moved) = said.scores()[0], said.scores(off) if off else (None, math.nan)
    top = before.topk(min(TOP, len(before)))
    names = said.names(top.indices)
    return {
        "kind": said.kind,
        "position": said.at,
        "before": _listed(names, top.values.tolist()),
        "after": None if after is None else _listed(names, after[top.indices].tolist()),
        "moved": moved,
    }


@torch.no_grad()
def effects(loaded: Loaded, document: Document) -> Json:
    """What each head does to the prediction, [layer][head], and in words what that number is.

    In a decoder with norms before its layers that is what a head adds to the score of the likeliest token
    (`logit_attribution`). Elsewhere each head is switched off in turn.
    """
    if not isinstance(loaded.model, Transformer):
        raise UnsupportedError("this model has one alignment and no heads to compare.")
    said, config = Prediction(loaded, document), loaded.model.config
    scores, _ = said.scores()
    likeliest = scores.argmax()
    name = said.names(likeliest[None])[0]
    adds_up = (
        config.block.writes_as_is and config.block.feature_map is None and config.lm_head_softcap is None
    )
    if config.kind == "decoder" and config.lm_head == "language" and adds_up:
        written = logit_attribution(loaded, torch.tensor([said.fed]), int(likeliest))
        return {"what": f"what the head adds to the score of “{name}”", "values": written.heads.tolist()}
    if len(said.fed) > _MOST_TOKENS:
        raise ArgumentError(f"each head is switched off in a run of its own: at most {_MOST_TOKENS} tokens.")
    what = f"by how much log p(“{name}”) falls without the head"
    if said.kind == "vector":
        what = "how far the sentence vector moves without the head (1 − cosine)"

    def effect(off: Off) -> float:
        left, moved = said.scores(off)
        return moved if said.kind == "vector" else float(scores[likeliest].log() - left[likeliest].log())

    heads = [range(layer.n_head) for layer in document.trace.layers]
    values = [[effect(((layer, head),)) for head in numbers] for layer, numbers in enumerate(heads)]
    return {"what": what, "values": values}


def gradients(loaded: Loaded, document: Document, position: int) -> tuple[ScoreGradients, str]:
    """The gradient of one prediction on every score, and what the prediction is."""
    if isinstance(loaded.model, Seq2Seq):
        raise UnsupportedError("gradients are shown for Transformers.")
    ids, source, device = document.ids, document.source, loaded.device
    options: dict[str, Any] = {} if source is None else {"target": torch.tensor([ids], device=device)}
    at = min(position, len(ids) - 1)
    with torch.no_grad():
        if loaded.model.lm_head == "none":
            said = Prediction(loaded, document)
            nearest = int(said.scores()[0].argmax())
            example = said.vectors[nearest].to(device)
            options["objective"] = lambda output: sentence_vector(output) @ example
            name = f"cosine with “{EXAMPLES[nearest]}”"
        else:
            token = int(chances(loaded, ids, source, at).argmax())
            options |= {"position": at, "token": token}
            name = f"log p({tokenizer_of(loaded).tokens([token])[0]!r}) at {at}"
    return score_gradients(loaded, torch.tensor([source or ids], device=device), **options), name


def search(loaded: Loaded, lines: list[str]) -> Json:
    """Which heads send the word in *stars* to the word in [brackets], over sentences that mark both.

    The share of sentences where that is the word looked at most, for the best heads; beside it the share that
    the best fixed distance gets right, and that of a blind guess.

    >>> _marked("The [cat] slept: *it* was tired")
    ('The cat slept: it was tired', [(0, 3), (4, 7), (8, 14), (15, 17), (18, 21), (22, 27)], (3, 1))
    """
    if isinstance(loaded.model, Seq2Seq):
        raise UnsupportedError("this model has one alignment and no heads to search.")
    examples = [_marked(line) for line in lines if line.strip()]
    if not 1 <= len(examples) <= _MOST_SENTENCES:
        raise ArgumentError(f"give 1 to {_MOST_SENTENCES} sentences. Got {len(examples)}.")
    scored = score_pairs(loaded, [(text, spans, [pair]) for text, spans, pair in examples])
    if not scored.n_pair:
        raise ArgumentError("this model looks back only, and every [word] stands after its *word*.")
    heads = strongest(scored.accuracy, 8)
    return {
        "heads": [{"layer": at[0], "head": at[1], "share": float(scored.accuracy[at])} for at in heads],
        "pairs": scored.n_pair,
        "offset": scored.offset,
        "baseline": scored.baseline,
        "chance": sum(1 / max(1, len(spans) - 1) for _, spans, _ in examples) / len(examples),
    }


def _marked(line: str) -> tuple[str, list[tuple[int, int]], tuple[int, int]]:
    """A sentence without its marks, where its words are, and which two are marked."""
    text, last = "", 0
    spans: list[tuple[int, int]] = []
    marks: dict[str | None, int] = {}
    for match in _WORD.finditer(line):
        (word,) = filter(None, match.groups())
        marks[match.lastgroup] = len(spans)
        text += line[last : match.start()]
        spans.append((len(text), len(text) + len(word)))
        text, last = text + word, match.end()
    if not marks.keys() >= {"looks", "at"}:
        raise ArgumentError(f"mark who looks with *stars* and at what with [brackets]. Got {line.strip()!r}.")
    return text + line[last:], spans, (marks["looks"], marks["at"])


@torch.no_grad()
def machine(
    document: Document, layer: int, head: int, query: int, key: int, loaded: Loaded | None = None
) -> Json:
    """The row of a weight: raw scores of its keys and who may be seen, values, and the parts of one score.

    Softmax over `scores` where `visible`, and over one more key of score `rest`, gives the model's weights.
    The model adds the vectors before query and key, and what the head writes.
    """
    parts = document.parts(layer, head, query, key)
    traced, batch = document.trace.layers[layer], document.batch
    if traced.rule is None:
        return {"parts": parts, "keys": []}
    row = traced.row(batch, head, query).float()
    keys = list(range(traced.n_key))
    if len(keys) > MOST_KEYS:
        keys = sorted({key, *row.topk(MOST_KEYS - 1).indices.tolist()})
    visible = traced.visible(slice(query, query + 1), slice(None), batch, head)[0]
    left_out = 1.0 - float(row[keys].sum())
    kept = None if traced.v is None else traced.of_head(traced.v, batch, head)[0, 0, keys]
    shown = {
        "parts": parts,
        "keys": keys,
        "scores": [traced.score_parts(batch, head, query, index).unhidden for index in keys],
        "visible": visible[keys].tolist(),
        "rest": parts["lse"] + math.log(left_out) if len(keys) < traced.n_key and left_out > 1e-9 else None,
        "values": None if kept is None else kept.float().tolist(),
    }
    if loaded is not None and traced.n_query > MOST_RUN_AGAIN:
        shown["without"] = f"Of more than {MOST_RUN_AGAIN} tokens the machine begins at query and key."
    elif loaded is not None and (vectors := inside(loaded, document, layer)) is not None:
        wrote = written(loaded, document, vectors, layer, head, query)
        if wrote.get("push") is not None:
            wrote["push"]["byKey"] = [wrote["push"]["byKey"][index] for index in keys]
        shown["model"] = {
            "x": vectors.x[query].tolist(),
            "xKey": vectors.x_key[key].tolist(),
            "q": vectors.q[head, query].tolist(),
            "k": vectors.k[head * len(vectors.k) // len(vectors.q), key].tolist(),
            **wrote,
        }
    return shown


@torch.no_grad()
def inside(loaded: Loaded, document: Document, layer: int) -> Inside | None:
    """What a layer's queries and keys were made from, which the model must be run for.

    None for a model without the matrices, which a recurrent one is.
    """
    model, name = loaded.model, document.trace.names[layer]
    if not isinstance(model, Transformer):
        return None
    attention = attention_of(model, name)
    stack = model.decoder if name.startswith("decoder") else model.encoder
    assert stack is not None  # the layer is in it
    with seeing(filter(None, (attention, stack.norm, model.encoder))) as seen:
        run(loaded, document.ids, document.source, document.off, logits="none")
    x = x_key = seen[attention][0][0]
    if name.endswith("cross") and model.encoder is not None:
        x_key = seen[model.encoder][1][0]
    q = attention.query(x).unflatten(-1, (attention.n_head, -1)).transpose(0, 1)
    k = attention.key(x_key).unflatten(-1, (attention.n_kv_head, -1)).transpose(0, 1)
    if attention.query_norm is not None and attention.key_norm is not None:
        q, k = attention.query_norm(q), attention.key_norm(k)
    return Inside(x, x_key, q, k, None if stack.norm is None else seen[stack.norm][0][0])


@torch.no_grad()
def written(loaded: Loaded, document: Document, vectors: Inside, layer: int, head: int, query: int) -> Json:
    """What a head writes to a query's vector: its length, and the push on the next token.

    Nothing where what a head adds is changed before it is added. The push is by how much each key's value
    raises the scores of a few next tokens, at weight 1 and the scale of the last norm held (Elhage et al.
    2021); None where what a head adds does not reach the scores as it is.
    """
    model, traced = loaded.model, document.trace.layers[layer]
    assert isinstance(model, Transformer)  # or there were no vectors
    config = model.config
    if traced.v is None or not config.block.writes_as_is:
        return {}
    attention = attention_of(model, traced.name)
    out = attention.out.weight.unflatten(1, (attention.n_head, -1))[:, head]  # (model_dim, v_dim)
    v = traced.of_head(traced.v, document.batch, head)[0, 0].float()
    row = traced.row(document.batch, head, query).float()
    adds = v @ out.float().T  # what each key would add to the query's vector at weight 1
    push = None
    reaches_scores = (
        config.kind == "decoder" and config.lm_head == "language" and config.lm_head_softcap is None
    )
    if reaches_scores and vectors.last is not None:
        assert model.decoder is not None  # its last norm read that
        last = vectors.last[query].float()
        unembed = (
            model.token if model.unembed is None else model.unembed
        ).weight.float() * config.lm_head_scale
        raised = Norm.of(model.decoder.norm, last).held(last.double(), adds.double()).float()
        order = (unembed @ (row @ raised)).argsort(descending=True)
        tokens = [*order[:_TOKENS].tolist(), *order[-_TOKENS:].tolist()]
        push = {"tokens": tokenizer_of(loaded).tokens(tokens), "byKey": (raised @ unembed[tokens].T).tolist()}
    length = float(vectors.x[query].float().norm())
    return {"added": float((row @ adds).norm()), "length": length, "push": push}


def with_insides(document: Document, loaded: Loaded, views: Iterable[Json]) -> Document:
    """The document with what the machine needs beyond queries and keys, of the layers that `views` show.

    What a head writes is kept of the queries shown. A long text is left as it is.
    """
    if document.trace.layers[0].n_query > MOST_RUN_AGAIN:
        return document
    kept: dict[str, Inside] = {}
    for view in views:
        layer, head, query = (view.get(name) for name in ("layer", "head", "query"))
        if type(layer) is int and type(head) is int and type(query) is int:
            document.parts(layer, head, query, 0)  # refuses a place that is not there
            traced = document.trace.layers[layer]
            vectors = kept.get(traced.name) or inside(loaded, document, layer)
            if vectors is not None and traced.rule is not None:
                wrote = written(loaded, document, vectors, layer, head, query)
                kept[traced.name] = replace(vectors, wrote={**vectors.wrote, (head, query): wrote})
    return replace(document, insides=kept)
