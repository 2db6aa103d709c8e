"""The model that settings describe, and what it is trained to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.files.loading import Loaded, assembled
from regard.files.tokenizer import TextTokenizer
from regard.layers.block import BlockConfig
from regard.models.families import FAMILIES
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.transformer import Transformer, TransformerConfig, initialise
from regard.train.batches import IGNORED
from regard.train.settings import Settings

Model = Transformer | Seq2Seq


def model_config(settings: Settings, tokenizer: TextTokenizer) -> TransformerConfig | Seq2SeqConfig:
    """The config of the model, its sizes from the settings and its vocabulary from the tokenizer."""
    vocab, special = tokenizer.vocab_size, tokenizer.special
    if settings.model == "seq2seq":
        return Seq2SeqConfig(
            source_vocab=vocab,
            target_vocab=vocab,
            embed_dim=settings.embed_dim,
            hidden_dim=settings.hidden_dim,
            n_layer=settings.n_layer,
            cell=settings.cell,
            bidirectional=settings.bidirectional,
            score=settings.score,
            dropout=settings.dropout,
            bos=special.bos,
            eos=special.eos,
            pad=special.pad,
        )
    width, ff_dim = settings.model_dim, settings.ff_dim or 4 * settings.model_dim
    n_layer, n_head = settings.n_layer, settings.n_head
    # Said as each family's config.json says it, so that the result is of that family.
    said: dict[str, dict[str, Any]] = {
        "gpt2": {
            "n_embd": width,
            "n_inner": ff_dim,
            "n_layer": n_layer,
            "n_head": n_head,
            "n_positions": settings.context,
        },
        "llama": {
            "hidden_size": width,
            "intermediate_size": ff_dim,
            "num_hidden_layers": n_layer,
            "num_attention_heads": n_head,
            "max_position_embeddings": settings.context,
            "head_dim": width // n_head,
        },
        "bert": {
            "hidden_size": width,
            "intermediate_size": ff_dim,
            "num_hidden_layers": n_layer,
            "num_attention_heads": n_head,
            "max_position_embeddings": settings.context,
            "architectures": ["BertForMaskedLM"],
        },
        "t5": {
            "d_model": width,
            "d_ff": ff_dim,
            "d_kv": width // n_head,
            "num_layers": n_layer,
            "num_heads": n_head,
        },
    }
    config = FAMILIES[settings.model].config({"vocab_size": vocab, **said[settings.model]})
    return replace(config, block=_with_dropout(config.block, settings.dropout))


def build_model(settings: Settings, tokenizer: TextTokenizer) -> Model:
    """The model with its first weights, which depend on the seed alone."""
    config = model_config(settings, tokenizer)
    if isinstance(config, TransformerConfig):
        return initialise(Transformer(config), settings.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return Seq2Seq(config)


def start_token(settings: Settings, tokenizer: TextTokenizer) -> int:
    """What an answer begins with: T5 takes its padding."""
    token = tokenizer.special.pad if settings.model == "t5" else tokenizer.special.bos
    assert token is not None  # every vocabulary of ours has both
    return token


def finished(model: Model, settings: Settings, tokenizer: TextTokenizer, source: str) -> Loaded:
    """A copy of the model for use: evaluation mode, no dropout in its config."""
    config = model.config
    if isinstance(config, TransformerConfig):
        plain: Model = Transformer(replace(config, block=_with_dropout(config.block, 0.0)))
    else:
        plain = Seq2Seq(replace(config, dropout=0.0))
    plain.load_state_dict(model.state_dict())
    plain = plain.to(next(model.parameters()).device).eval()
    answers = settings.task != "lm"
    eos = tokenizer.special.eos
    return assembled(
        plain,
        tokenizer,
        f"{settings.task} ({settings.model})",
        source,
        start_token=start_token(settings, tokenizer) if answers else None,
        stop_tokens=(eos,) if answers and eos is not None else (),
    )


def _with_dropout(block: BlockConfig, dropout: float) -> BlockConfig:
    return replace(block, dropout=dropout)


class Objective(nn.Module):
    """The model with its loss: what is wrapped to be compiled, copied or sharded."""

    def __init__(self, model: Model, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(
        self,
        source: Int[Tensor, "batch position"] | None,
        visible: Bool[Tensor, "batch position"] | None,
        inputs: Int[Tensor, "batch target_position"],
        labels: Int[Tensor, "batch target_position"],
    ) -> Float[Tensor, ""]:
        """Cross entropy summed over the labels that count, padding left out."""
        if source is None:
            output = self.model(inputs)
        elif isinstance(self.model, Seq2Seq):
            output = self.model(source, inputs, source_visible=visible)
        else:
            output = self.model(source, inputs, visible=visible)
        smoothing = self.label_smoothing if self.training else 0.0
        return nn.functional.cross_entropy(
            output.logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=smoothing,
        )
