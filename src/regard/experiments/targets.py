"""What is asked of a model: the score of one token at one position, and how parts of the model are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.shapes import whole_index
from regard.errors import ArgumentError, UnsupportedError
from regard.experiments.engine import LogitReading, Progress
from regard.files.loading import Loaded
from regard.heads.model import loaded_of
from regard.layers.layer_id import LayerId, layer_labels
from regard.models.model import Model
from regard.tracing.take import ModelInput, foreign_input, labels, module_of, our_input

Token = int | str


@dataclass(frozen=True, slots=True, eq=False)
class PredictionTarget:
    """A model, what it reads, and what is asked of it: the score of a token at a position.

    Attributes:
        loaded: The model.
        given: What it is given, one sequence.
        token: The token that is asked about.
        against: The token whose score is subtracted; None: the log-probability of `token` is asked for.
        position: Where the logits are read; None: the model has one row of logits, as a classifier has.
    """

    loaded: Loaded
    given: ModelInput
    token: int
    against: int | None
    position: int | None

    @classmethod
    def about(
        cls,
        model: Loaded | nn.Module,
        text: Any,
        target: Token | None = None,
        against: Token | None = None,
        position: int | None = None,
        tokenizer: Any = None,
        answer: Any = None,
    ) -> PredictionTarget:
        """Read a text or ids, and a token or its text.

        Args:
            model: Ours, or anybody's that can be watched.
            text: A text, ids, or what somebody else's model takes, of one sequence.
            target: The token to ask about; None: the likeliest after the last, or at the mask.
            against: The token whose score is subtracted.
            position: Where; None: the last position, or the mask.
            tokenizer: Where the model has none.
            answer: What an encoder-decoder has written so far; None: nothing but its start token.

        Returns:
            The question.

        Raises:
            UnsupportedError: The model has no head that gives tokens a score.
            ArgumentError: There is not exactly one text, or a word is not one token.
        """
        loaded = loaded_of(model, tokenizer)
        given = _given(loaded, text, answer)
        n_batch = next((len(t) for t in (*given.args, *given.kwargs.values()) if isinstance(t, Tensor)), 1)
        if n_batch != 1:
            raise ArgumentError(f"one text is asked about. Got {n_batch}.")
        with torch.no_grad():
            logits = _logits(loaded, given)
        if logits.dim() == 2:
            place = None
        else:
            place = (
                _mask(loaded, given.ids)
                if position is None and loaded.model.lm_head == "masked"
                else position
            )
            place = whole_index("position", -1 if place is None else place, logits.shape[1])
        chosen = _token(loaded, target, "target")
        row = logits[0] if place is None else logits[0, place]
        return cls(
            loaded,
            given,
            int(row.argmax()) if chosen is None else chosen,
            _token(loaded, against, "against"),
            place,
        )

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens of the sequence that queries stand for, as a person reads them."""
        spelled = labels(self.given.ids, self.loaded.tokenizer)
        return spelled[0] if spelled else ()

    def score(self, logits: Float[Tensor, "*row vocab"]) -> Float[Tensor, "*row"]:
        """Return the number that is asked for, of each row of logits."""
        logits = logits.float()
        if self.against is None:
            return logits.log_softmax(-1)[..., self.token]
        return logits[..., self.token] - logits[..., self.against]

    @property
    def reading(self) -> LogitReading:
        """What an engine reads: the number that is asked for, then the log-probability of the token."""

        def read(logits: Tensor) -> Tensor:
            row = logits[:, 0]
            return torch.stack([self.score(row), row.float().log_softmax(-1)[..., self.token]], -1)

        return LogitReading(read, None if self.position is None else torch.tensor([self.position]))

    def name(self, token: int) -> str:
        """Return a token as a person reads it."""
        tokenizer = self.loaded.tokenizer
        return str(token) if tokenizer is None else tokenizer.tokens([token])[0]


def _given(loaded: Loaded, text: Any, answer: Any) -> ModelInput:
    """What the model is given: as `regard.trace` reads it, and an answer that has only begun."""
    model, module = loaded.model, module_of(loaded)
    if model.lm_head == "none" and isinstance(module, Model):
        raise UnsupportedError(
            f"{loaded.facts.name} is {model.kind} with lm_head {model.lm_head!r}: this needs a "
            "language-model or masked head."
        )
    if answer is None and model.kind == "encoder-decoder":
        start = loaded.start_token if loaded.start_token is not None else model.start_token
        if start is None:
            raise ArgumentError("an encoder-decoder starts its answer with a token: give `answer`.")
        answer = torch.tensor([[start]], device=loaded.device)
    if isinstance(module, Model):
        return our_input(module, text, answer, loaded.tokenizer, loaded.start_token)
    given = foreign_input(module, text, answer, loaded.tokenizer)
    if given.ids is not None and given.args and getattr(module, "config", None) is not None:
        return foreign_input(module, {"input_ids": given.args[0]}, None, loaded.tokenizer)
    return given


def _logits(loaded: Loaded, given: ModelInput) -> Tensor:
    out = module_of(loaded)(*given.args, **given.kwargs)
    logits = out if isinstance(out, Tensor) else getattr(out, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() not in (2, 3):
        raise UnsupportedError(
            f"{loaded.facts.name} gives no logits, (batch, position, vocab) or (batch, class): this needs a "
            "model with a language-model, masked or classification head."
        )
    return logits


def _token(loaded: Loaded, token: Token | None, what: str) -> int | None:
    """A token's id, given as it is or as its text, which must be one token."""
    vocab = loaded.model.sizes.vocab
    if isinstance(token, int) and vocab and not 0 <= token < vocab:
        raise ArgumentError(f"{what} must lie between 0 and {vocab - 1}. Got {token}.")
    if token is None or isinstance(token, int):
        return token
    if loaded.tokenizer is None:
        raise ArgumentError(f"{loaded.facts.name} has no tokenizer: give {what} as an id.")
    # As it is spelled within a text, after a space, where there is such a token.
    spelled = [loaded.tokenizer.encode(text, add_special=False) for text in (f" {token}", token)]
    whole = [ids[0] for ids in spelled if len(ids) == 1]
    if not whole:
        pieces = loaded.tokenizer.tokens(spelled[1])
        raise ArgumentError(
            f"{what} must be one token, and {token!r} is {len(pieces)}: {' | '.join(pieces)}."
        )
    return whole[0]


def _mask(loaded: Loaded, ids: Tensor | None) -> int:
    mask = None if loaded.tokenizer is None else loaded.tokenizer.special.mask
    places = [] if mask is None or ids is None else (ids[0] == mask).nonzero()[:, 0].tolist()
    if len(places) != 1:
        raise ArgumentError(
            f"the text must have the model's mask token in it once, or say `position`. Got {len(places)}."
        )
    return int(places[0])


def layer_words(names: Iterable[str]) -> dict[str, str]:
    """Return layers as people say them, by name: "layer 23", and more only where it is needed.

    >>> layer_words(["decoder.0.self", "decoder.1.self"])
    {'decoder.0.self': 'layer 0', 'decoder.1.self': 'layer 1'}
    """
    names = list(names)
    return dict(zip(names, layer_labels([LayerId.parse(name) for name in names]), strict=True))


@contextmanager
def progress_bar(words: str, shown: bool) -> Iterator[Progress | None]:
    """A block with a callback that draws a bar on the terminal, with the time to come; None: no bar."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, all_rows: bar.update(task, completed=done, total=all_rows)
