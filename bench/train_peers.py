"""What bench/train.py is compared with, from PyTorch's own modules."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.train.batches import Batch
from regard.train.settings import Settings


def gelu(x: Tensor) -> Tensor:
    """GPT-2's: with tanh."""
    return functional.gelu(x, approximate="tanh")


class TorchDecoder(nn.Module):
    """GPT-2's shape from PyTorch's own layers, its head the embedding."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.model_dim
        self.embedding = nn.Embedding(settings.vocab, width)
        self.position = nn.Embedding(settings.context, width)
        layer = nn.TransformerEncoderLayer(
            width, settings.n_head, 4 * width, 0.0, gelu, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(
            layer, settings.n_layer, nn.LayerNorm(width), enable_nested_tensor=False
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of each next token."""
        length = tokens.shape[1]
        x = self.embedding(tokens) + self.position.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.layers(x, mask=mask, is_causal=True)
        return functional.linear(x, self.embedding.weight)


class TorchEncoderDecoder(nn.Module):
    """`nn.Transformer` with one table of embeddings, which is its head too."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.model_dim
        self.embedding = nn.Embedding(settings.vocab, width)
        with warnings.catch_warnings():  # of a fast path for evaluation, which training does not take
            warnings.simplefilter("ignore")
            self.layers = nn.Transformer(
                width,
                settings.n_head,
                settings.n_layer,
                settings.n_layer,
                4 * width,
                0.0,
                batch_first=True,
                norm_first=True,
            )

    def forward(self, batch: Batch) -> Tensor:
        """The logits of each next token."""
        assert batch.source is not None
        hidden = None if batch.source_key_mask is None else ~batch.source_key_mask
        mask = nn.Transformer.generate_square_subsequent_mask(batch.inputs.shape[1])
        x = self.layers(
            self.embedding(batch.source),
            self.embedding(batch.inputs),
            tgt_mask=mask,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        return functional.linear(x, self.embedding.weight)


class StepLoop(nn.Module):
    """The same GRU encoder and decoder with additive attention, written step by step with `nn.GRUCell`."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        dim = config.hidden_dim
        self.source = nn.Embedding(config.source_vocab, config.embed_dim)
        self.target = nn.Embedding(config.target_vocab, config.embed_dim)
        self.ahead, self.back = nn.GRUCell(config.embed_dim, dim), nn.GRUCell(config.embed_dim, dim)
        self.merge_outputs, self.merge_hidden = nn.Linear(2 * dim, dim), nn.Linear(2 * dim, dim)
        self.query, self.key = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.score = nn.Linear(dim, 1, bias=False)
        self.cell = nn.GRUCell(dim + config.embed_dim, dim)
        self.out = nn.Linear(dim, config.target_vocab)

    @torch.no_grad()
    def take(self, model: Seq2Seq) -> StepLoop:
        """The weights of ours."""
        encoder, decoder = model.encoder, model.decoder
        pairs: list[tuple[nn.Module, Any]] = [
            (self.source, encoder.embedding),
            (self.target, decoder.embedding),
            (self.merge_outputs, encoder.merge_outputs),
            (self.merge_hidden, encoder.merge_hidden),
            (self.out, decoder.out),
        ]
        attention: Any = decoder.attention
        pairs += [(self.query, attention.query), (self.key, attention.key)]
        for mine, theirs in pairs:
            mine.load_state_dict(theirs.state_dict())
        self.score.weight.copy_(attention.score[None])
        for cell, recurrent, end in (
            (self.ahead, encoder.recurrent, "l0"),
            (self.back, encoder.recurrent, "l0_reverse"),
            (self.cell, decoder.recurrent, "l0"),
        ):
            for name, parameter in cell.named_parameters():
                parameter.copy_(getattr(recurrent, f"{name}_{end}"))
        return self

    def forward(self, batch: Batch) -> Tensor:
        """The logits of each next token."""
        assert batch.source is not None
        embedded = self.source(batch.source)
        real = (
            torch.ones_like(batch.source, dtype=torch.bool)
            if batch.source_key_mask is None
            else batch.source_key_mask
        )
        zero = embedded.new_zeros(embedded.shape[0], self.out.in_features)
        outputs: dict[str, list[Tensor]] = {}
        last = []
        order = range(embedded.shape[1])
        for name, cell, places in (("ahead", self.ahead, order), ("back", self.back, reversed(order))):
            state, states = zero, []
            for place in places:
                state = torch.where(real[:, place, None], cell(embedded[:, place], state), state)
                states.append(state)
            outputs[name] = states if name == "ahead" else states[::-1]
            last.append(state)
        both = torch.cat([torch.stack(outputs[name], dim=1) for name in ("ahead", "back")], dim=-1)
        values = self.merge_outputs(both)
        keys = self.key(values)
        state = torch.tanh(self.merge_hidden(torch.cat(last, dim=-1)))
        logits = []
        for place in range(batch.inputs.shape[1]):
            scores = self.score(torch.tanh(self.query(state)[:, None] + keys))[..., 0]
            weights = scores.masked_fill(~real, -torch.inf).softmax(-1)
            context = (weights[:, None] @ values)[:, 0]
            state = self.cell(torch.cat([context, self.target(batch.inputs[:, place])], dim=-1), state)
            logits.append(self.out(state))
        return torch.stack(logits, dim=1)
