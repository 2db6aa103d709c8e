"""Recurrent encoder and decoder with attention (Bahdanau et al. 2015), or without (Cho et al. 2014).

The encoder reads the source. At each step of the decoder the last layer's previous state looks at the
encoder's outputs; what it sees and the embedding of the previous word feed the recurrent layers:

    context_t = attend(h_{t-1}, outputs)          weights: softmax over the source
    h_t       = cell([context_t; embedding(y_{t-1})], h_{t-1})
    logits_t  = W h_t + b
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.attention.data import Ranges, check_field, check_fields
from regard.attention.scores import ScoreRule, no_autocast
from regard.attention.shapes import check_dropout
from regard.attention.softmax import attend
from regard.attention.visibility import Visibility
from regard.errors import ArgumentError, LoadError, ShapeError
from regard.layers.attention import AdditiveAttention, Record, reported
from regard.layers.layer_id import LayerId
from regard.models.model import Model, Output, Sizes, check_tokens

Cell = Literal["gru", "lstm", "rnn"]
Score = Literal["additive", "dot", "general", "none"]
# What the layers carry from step to step: (hidden,), and for an LSTM (hidden, cell).
State = tuple[Float[Tensor, "layer batch hidden_dim"], ...]
LayerState = tuple[Float[Tensor, "batch hidden_dim"], ...]  # of one of them

# PyTorch's layers, and one step of theirs.
_CELLS: dict[str, Callable[..., nn.RNNBase]] = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}
_STEPS: dict[str, Any] = {"GRU": torch.gru_cell, "LSTM": torch.lstm_cell, "RNN_TANH": torch.rnn_tanh_cell}


@dataclass(frozen=True, slots=True)
class Seq2SeqConfig:
    """What a recurrent encoder and decoder are made of.

    Attributes:
        source_vocab: How many tokens the encoder knows.
        target_vocab: How many the decoder knows.
        embed_dim: Size of a token's vector.
        hidden_dim: Of each direction of the encoder, and of the decoder.
        n_layer: Of the encoder, and of the decoder.
        cell: "gru", "lstm" or "rnn".
        bidirectional: Whether the encoder also reads from the end.
        score: How attention compares; "none": the encoder's last state is the context of every step.
        attention_dim: Width of additive scores; None: hidden_dim.
        dropout: Probability, of attention weights and between recurrent layers.
        bos: The token that decoding starts with; None: it must be given.
        eos: The token that ends a sequence; None: there is none.
        pad: The token that stands after the end; None: there is none.

    Raises:
        ArgumentError: If a number is out of range.
    """

    source_vocab: int
    target_vocab: int
    embed_dim: int
    hidden_dim: int  # of each direction of the encoder, and of the decoder
    n_layer: int = 1  # of the encoder, and of the decoder
    cell: Cell = "gru"
    bidirectional: bool = False  # the encoder also reads from the end
    score: Score = "additive"  # none: the encoder's last state is the context of every step
    attention_dim: int | None = None  # width of additive scores; None: hidden_dim
    dropout: float = 0.0  # of attention weights, and between recurrent layers
    bos: int | None = None  # what decoding starts with
    eos: int | None = None  # what ends a sequence
    pad: int | None = None  # what stands after the end

    ranges: ClassVar[Ranges] = {
        **dict.fromkeys("source_vocab target_vocab embed_dim hidden_dim n_layer".split(), (1, math.inf)),
        "attention_dim": (1, math.inf),
        **dict.fromkeys(("bos", "eos", "pad"), (0, math.inf)),
    }

    def __post_init__(self) -> None:
        check_fields(self)
        check_dropout(self.dropout)
        for name in ("bos", "eos", "pad"):  # tokens of the target
            check_field(Seq2SeqConfig, name, getattr(self, name), most=self.target_vocab - 1)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Seq2SeqConfig:
        """Return the config whose `dataclasses.asdict` this is.

        >>> sizes = {"source_vocab": 11, "target_vocab": 13, "embed_dim": 4, "hidden_dim": 8}
        >>> Seq2SeqConfig.from_dict(sizes).cell
        'gru'
        """
        known = {field.name: field.default for field in fields(cls)}
        unknown = [name for name in values if name not in known]
        missing = [name for name, usual in known.items() if usual is MISSING and name not in values]
        if unknown or missing:
            raise LoadError(
                "this is no config of a Seq2Seq model: "
                f"unknown fields {unknown}, missing fields {missing}. It must hold those of Seq2SeqConfig."
            )
        return cls(**values)


def run(recurrent: nn.RNNBase, x: Any, state: State | None = None) -> tuple[Any, State]:
    """The layers' outputs and last state, the state always a tuple, whatever the cell."""
    weight = next(recurrent.parameters())
    if state is not None:
        state = tuple(part.to(weight.dtype) for part in state)  # autocast makes projections half
    given = state if state is None or len(state) > 1 else state[0]
    with no_autocast(weight.device):  # oneDNN has half-precision recurrences for few processors
        outputs, last = recurrent(x, given)
    return outputs, last if isinstance(last, tuple) else (last,)


def read(
    recurrent: nn.RNNBase, x: Float[Tensor, "batch position dim"], lengths: Int[Tensor, "batch"]
) -> tuple[Float[Tensor, "batch position out_dim"], State]:
    """Outputs and last state of sequences that end before `position`; outputs past an end are 0."""
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    outputs, state = run(recurrent, packed)
    return pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])[0], state


def step(
    recurrent: nn.RNNBase, x: Float[Tensor, "batch dim"], layers: Sequence[LayerState]
) -> list[LayerState]:
    """The state of every layer after one step: for a decoder that knows its input when its turn comes."""
    new: list[LayerState] = []
    for weights, old in zip(recurrent.all_weights, layers, strict=True):
        if new:
            x = nn.functional.dropout(new[-1][0], recurrent.dropout, recurrent.training)
        dtype = weights[0].dtype  # autocast makes products half: that would add up
        state = tuple(part.to(dtype) for part in old)
        with no_autocast(x.device):
            after = _STEPS[recurrent.mode](x.to(dtype), state if len(state) > 1 else state[0], *weights)
        new.append(after if isinstance(after, tuple) else (after,))
    return new


class DotAttention(nn.Module):
    """Scores q . k, or with `general` q . W k (Luong et al. 2015, eq. 8); no scale, as the paper has it.

    Called as `AdditiveAttention` is. W stands on the side of the keys, so that a step projects nothing.
    """

    def __init__(self, dim: int, *, general: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.key = nn.Linear(dim, dim, bias=False) if general else None

    def forward(
        self,
        queries: Float[Tensor, "batch query dim"],
        keys: Float[Tensor, "batch key dim"],
        values: Float[Tensor, "batch key v_dim"],
        *,
        visible: Visibility | None = None,
        record: Record | None = None,
        name: str = "attention",
        projected_keys: Float[Tensor, "batch 1 key dim"] | None = None,
    ) -> Float[Tensor, "batch query v_dim"]:
        """The context of each query. `projected_keys` saves projecting the same keys at every step."""
        k = self.project_keys(keys) if projected_keys is None else projected_keys
        q, v = queries[:, None].to(k.dtype), values[:, None].to(k.dtype)  # autocast makes projections half
        rule = ScoreRule(scale=1.0, visible=visible or Visibility())
        out, lse = attend(q, k, v, rule, dropout=self.dropout if self.training else 0.0)
        return reported(record, name, q, k, v, out, lse, rule)[:, 0]

    def project_keys(self, keys: Float[Tensor, "batch key dim"]) -> Float[Tensor, "batch 1 key dim"]:
        """W k, or the keys themselves, as one head."""
        projected: Tensor = keys if self.key is None else self.key(keys)
        return projected[:, None]


class Encoder(nn.Module):
    """Reads the source: an output for each token, and the state in which each layer ends.

    Two directions have `hidden_dim` units each, and a linear layer brings every pair of them back to
    `hidden_dim`: one for the outputs, one (with tanh, as Bahdanau et al. 2015, A.2.2) for the hidden states,
    one for an LSTM's cells. So the decoder and every score are the same for one direction and two.
    Without attention nobody looks at the outputs, and there are none.
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        dim = config.hidden_dim
        self.embedding = nn.Embedding(config.source_vocab, config.embed_dim)
        self.recurrent = _recurrent(config, config.embed_dim, bidirectional=config.bidirectional)
        self.looked_at = config.score != "none"
        self.merge_outputs = self.merge_hidden = self.merge_cell = None
        if config.bidirectional:
            # No parameter without a gradient: distributed training would wait for it.
            self.merge_outputs = nn.Linear(2 * dim, dim) if self.looked_at else None
            self.merge_hidden = nn.Linear(2 * dim, dim)
            self.merge_cell = nn.Linear(2 * dim, dim) if config.cell == "lstm" else None

    def forward(
        self, tokens: Int[Tensor, "batch position"], key_mask: Bool[Tensor, "batch position"] | None = None
    ) -> tuple[Float[Tensor, "batch position hidden_dim"] | None, State]:
        """The outputs and the last states. Tokens whose `key_mask` is False are not read."""
        if key_mask is None:
            outputs, state = run(self.recurrent, self.embedding(tokens))
        else:  # the real tokens first, in their order
            order = key_mask.int().argsort(dim=1, descending=True, stable=True)
            outputs, state = read(self.recurrent, self.embedding(tokens.gather(1, order)), key_mask.sum(1))
            outputs = outputs.gather(1, order.argsort(dim=1)[..., None].expand_as(outputs))
        if self.merge_outputs is not None:
            outputs = self.merge_outputs(outputs)
        if self.merge_hidden is not None:  # both directions as one
            merged = (torch.tanh(self.merge_hidden(_side_by_side(state[0]))),)
            state = merged if self.merge_cell is None else (*merged, self.merge_cell(_side_by_side(state[1])))
        return outputs if self.looked_at else None, state


class Source(NamedTuple):
    """What the decoder looks at, the same at every step."""

    values: Float[Tensor, "batch key hidden_dim"] | None  # the encoder's outputs; None: no attention
    keys: Float[Tensor, "batch 1 key qk_dim"] | None  # projected, once
    key_mask: Bool[Tensor, "batch key"] | None  # None: all
    context: Float[Tensor, "batch hidden_dim"]  # the last layer's last state: what is seen without attention


class Decoder(nn.Module):
    """Writes the target: the state after each word, with all that was seen of the source."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        dim = config.hidden_dim
        self.embedding = nn.Embedding(config.target_vocab, config.embed_dim)
        self.recurrent = _recurrent(config, dim + config.embed_dim)
        self.attention: AdditiveAttention | DotAttention | None = None
        if config.score == "additive":
            self.attention = AdditiveAttention(dim, dim, config.attention_dim or dim, dropout=config.dropout)
        elif config.score != "none":
            self.attention = DotAttention(dim, general=config.score == "general", dropout=config.dropout)
        self.out = nn.Linear(dim, config.target_vocab)

    def forward(
        self,
        tokens: Int[Tensor, "batch position"],
        source: Source,
        state: State,
        *,
        record: Record | None = None,
    ) -> tuple[Float[Tensor, "batch position hidden_dim"], State]:
        """The last layer's state after each token, and all layers' state after the last."""
        embedded = self.embedding(tokens)
        if self.attention is None or source.values is None:
            # Every input is known beforehand: no need to go step by step.
            context = source.context[:, None].expand(-1, tokens.shape[1], -1)
            return run(self.recurrent, torch.cat([context, embedded], -1), state)
        visible = None if source.key_mask is None else Visibility(key_mask=source.key_mask)
        look = partial(self.attention, visible=visible, record=record, name=_NAME, projected_keys=source.keys)
        layers: list[LayerState] = list(zip(*(part.unbind(0) for part in state), strict=True))
        hidden = []
        for word in embedded.unbind(1):
            context = look(layers[-1][0][:, None], source.values, source.values)[:, 0]
            layers = step(self.recurrent, torch.cat([context, word.to(context.dtype)], -1), layers)
            hidden.append(layers[-1][0])
        return torch.stack(hidden, 1), tuple(torch.stack(parts) for parts in zip(*layers, strict=True))


class Seq2Seq(Model):
    """An encoder and a decoder over tokens: `model(source, target)` gives the logits of each next word.

    `record` gets the alignment of each step as a layer with one head, "decoder.cross".

    Args:
        config: What it is made of.

    Example:
        >>> config = Seq2SeqConfig(source_vocab=11, target_vocab=13, embed_dim=4, hidden_dim=8)
        >>> output = Seq2Seq(config)(torch.tensor([[5, 7, 2]]), torch.tensor([[1, 3]]))
        >>> output.logits.shape
        torch.Size([1, 2, 13])
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.family, self.kind, self.lm_head = "seq2seq", "encoder-decoder", "language"
        self.start_token = config.bos
        self.stop_tokens = () if config.eos is None else (config.eos,)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    @property
    def sizes(self) -> Sizes:
        n_layer, n_head = 2 * self.config.n_layer, len(self.attention_names)  # of encoder and decoder
        return Sizes(n_layer, n_head, n_head, self.config.hidden_dim, self.config.target_vocab, None)

    @property
    def attention_names(self) -> list[str]:
        return [] if self.decoder.attention is None else [_NAME]

    def forward(
        self,
        source: Int[Tensor, "batch position"],
        target: Int[Tensor, "batch target_position"],
        *,
        key_mask: Bool[Tensor, "batch position"] | None = None,
        target_key_mask: Bool[Tensor, "batch target_position"] | None = None,
        logits: Literal["all", "none"] = "all",
        record: Record | None = None,
    ) -> Output:
        """Compute logits after each target token, the true ones before it given (teacher forcing).

        Args:
            source: ``(batch, position)``, what the encoder reads.
            target: ``(batch, target_position)``, what the decoder reads.
            key_mask: ``(batch, position)``, False where a source token is padding, which changes nothing.
            target_key_mask: Changes nothing: a word of the target sees only those before it.
            logits: Of all positions, or of none.
            record: Called with what attention used and gave at every step.

        Returns:
            Hidden states and logits.

        Raises:
            ArgumentError: If tokens are outside of the vocabulary.
            ShapeError: If shapes do not fit together.
        """
        seen, state = self.encode(source, key_mask)
        check_tokens("target", target, self.config.target_vocab)
        if target.shape[0] != source.shape[0]:
            raise ShapeError(
                f"source has {source.shape[0]} sequences and target {target.shape[0]}: each needs the other. "
                f"Got source {tuple(source.shape)}, target {tuple(target.shape)} as (batch, position)."
            )
        hidden, _ = self.decoder(target, seen, state, record=record)
        scores = None if logits == "none" else self.decoder.out(hidden)
        return Output(hidden=hidden, logits=scores, memory=seen.values)

    def encode(
        self,
        source: Int[Tensor, "batch position"],
        key_mask: Bool[Tensor, "batch position"] | None = None,
    ) -> tuple[Source, State]:
        """Encode the source: return what the decoder looks at, and its first state."""
        check_tokens("source", source, self.config.source_vocab)
        if key_mask is not None:
            _check_key_mask(key_mask, source)
        values, state = self.encoder(source, key_mask)
        attention = self.decoder.attention
        keys = None if attention is None or values is None else attention.project_keys(values)
        return Source(values, keys, key_mask, context=state[0][-1]), state

    def _decoding(self, prompt: Tensor, key_mask: Tensor | None, record: Record | None) -> Seq2SeqDecoding:
        return Seq2SeqDecoding(self, *self.encode(prompt, key_mask), record)


class Seq2SeqDecoding:
    """Sequences being written, one word each at a time. It changes, as a cache does, with each word."""

    def __init__(self, model: Seq2Seq, source: Source, state: State, record: Record | None) -> None:
        self.model, self.record = model, record
        self.source, self.state = source, state

    def next(self, tokens: Int[Tensor, "batch"]) -> Float[Tensor, "batch vocab"]:
        """The logits of the word that follows `tokens`, one for each sequence."""
        batch = self.source.context.shape[0]
        if tuple(tokens.shape) != (batch,):
            raise ShapeError(
                f"tokens must be (batch,) = ({batch},), one word for each sequence. "
                f"Got shape {tuple(tokens.shape)}."
            )
        check_tokens("tokens", tokens[:, None], self.model.config.target_vocab)
        decoder = self.model.decoder
        hidden, self.state = decoder(tokens[:, None], self.source, self.state, record=self.record)
        logits: Tensor = decoder.out(hidden[:, 0])
        return logits

    def reorder(self, sequences: Int[Tensor, "new_batch"]) -> None:
        """Keep these sequences in this order, as beam search does; one may come several times."""
        batch = self.source.context.shape[0]
        check_tokens("sequences", sequences, batch, "(batch,)", f": {batch} are being decoded")
        parts = (None if part is None else part.index_select(0, sequences) for part in self.source)
        self.source = Source(*parts)  # type: ignore[arg-type]  # None where it was None
        self.state = tuple(part.index_select(1, sequences) for part in self.state)


_NAME = str(LayerId("decoder", None, "cross"))


def _recurrent(config: Seq2SeqConfig, input_dim: int, *, bidirectional: bool = False) -> nn.RNNBase:
    sizes = input_dim, config.hidden_dim, config.n_layer
    # PyTorch warns of dropout where there is no second layer for it to stand before.
    dropout = config.dropout if config.n_layer > 1 else 0.0
    return _CELLS[config.cell](*sizes, batch_first=True, dropout=dropout, bidirectional=bidirectional)


def _side_by_side(state: Tensor) -> Tensor:
    """(layer * direction, batch, hidden) as (layer, batch, direction * hidden)."""
    directions: Tensor = state.unflatten(0, (-1, 2))
    return directions.transpose(1, 2).flatten(2)


def _check_key_mask(key_mask: Tensor, source: Tensor) -> None:
    if key_mask.dtype != torch.bool:
        raise ShapeError(f"key_mask must be boolean, True = a real token. Got dtype {key_mask.dtype}.")
    if key_mask.shape != source.shape:
        raise ShapeError(
            f"key_mask must cover the source, (batch, position) = {tuple(source.shape)}. "
            f"Got shape {tuple(key_mask.shape)}."
        )
    empty = (~key_mask.any(1)).nonzero().flatten()
    if empty.numel():
        raise ArgumentError(
            f"sequence {int(empty[0])} has no real token: the encoder needs at least one to read."
        )
