"""The model that settings describe, and what it is trained to do."""

from collections.abc import Mapping
from dataclasses import replace

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.files.loading import Loaded, described, random_seq2seq
from regard.files.tokenizer import TextTokenizer
from regard.models.families import FAMILIES, initialise
from regard.models.model import Model, Output
from regard.models.seq2seq import Seq2SeqConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.train.batches import IGNORED
from regard.train.settings import Settings


def build_model(settings: Settings, tokenizer: TextTokenizer, *, dropout: float | None = None) -> Model:
    """Return the model with its first weights, which depend on the seed alone."""
    dropout = settings.dropout if dropout is None else dropout
    if settings.model != "seq2seq":
        config = transformer_config(settings, tokenizer)
        config = replace(config, block=replace(config.block, dropout=dropout))
        return initialise(Transformer(config), settings.seed)
    same = ("embed_dim", "hidden_dim", "n_layer", "cell", "bidirectional", "score")
    sizes = {name: getattr(settings, name) for name in same}
    sizes |= {name: getattr(tokenizer.special, name) for name in ("bos", "eos", "pad")}
    vocab = tokenizer.vocab_size
    return random_seq2seq(Seq2SeqConfig(vocab, vocab, dropout=dropout, **sizes), settings.seed)


def transformer_config(settings: Settings, tokenizer: TextTokenizer) -> TransformerConfig:
    """Return the config of a Transformer: its family's, in the sizes of the settings."""
    sizes = {
        "vocab": tokenizer.vocab_size,
        "n_encoder_layer": settings.n_layer,
        "n_decoder_layer": settings.n_layer,
        "n_position": settings.context,
        "block.model_dim": settings.model_dim,
        "block.n_head": settings.n_head,
        "block.qk_dim": settings.model_dim // settings.n_head,
        "block.ff_dim": settings.ff_dim or 4 * settings.model_dim,
    }
    return FAMILIES[settings.model].sized(sizes)


def start_token(settings: Settings, tokenizer: TextTokenizer) -> int:
    """Return what an answer begins with: as the family has it, or `bos`."""
    family = FAMILIES.get(settings.model)
    token = tokenizer.special.bos if family is None or family.start_token is None else family.start_token
    assert token is not None  # every vocabulary of ours has one
    return token


def finished(settings: Settings, tokenizer: TextTokenizer, weights: Mapping[str, Tensor]) -> Loaded:
    """Return a model with these weights for use: evaluation mode, no dropout in its config."""
    model = build_model(settings, tokenizer, dropout=0.0).eval()
    model.load_state_dict(dict(weights), strict=False)  # buffers follow from the config
    answers, eos = settings.task != "lm", tokenizer.special.eos
    return Loaded(
        model,
        tokenizer,
        described(model, f"{settings.task} ({settings.model})", settings.out),
        start_token=start_token(settings, tokenizer) if answers else None,
        stop_tokens=(eos,) if answers and eos is not None else (),
    )


class Objective(nn.Module):
    """The model with its loss: what is wrapped to be compiled, copied or sharded."""

    def __init__(self, model: Model, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(
        self,
        source: Int[Tensor, "batch position"] | None,
        source_key_mask: Bool[Tensor, "batch position"] | None,
        inputs: Int[Tensor, "batch target_position"],
        labels: Int[Tensor, "batch target_position"],
    ) -> Float[Tensor, ""]:
        """Compute the cross entropy summed over the labels, without padding."""
        given = (inputs,) if source is None else (source, inputs)
        output: Output = self.model(*given, key_mask=source_key_mask)
        assert output.logits is not None
        smoothing = self.label_smoothing if self.training else 0.0
        return nn.functional.cross_entropy(
            output.logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=smoothing,
        )
