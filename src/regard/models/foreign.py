"""A model of the transformers library as one of ours: read, traced, changed and decoded where it lives.

`Foreign(model)` answers what `Model` asks and leaves all computing to the model inside. Which layers of it
are attention is seen when it runs (`regard.tracing`), so that no list of architectures stands here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import LoadError, UnsupportedError
from regard.layers.attention import Record
from regard.models.model import Model, Output, Sizes

_LISTS = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel")


class Foreign(Model):
    """Anybody's model over tokens, with the arguments that models of transformers take."""

    def __init__(self, inner: nn.Module, processor: Any = None) -> None:
        super().__init__()
        self.inner = inner
        self.processor = processor  # what makes an image into what a vision model takes
        self.training = inner.training
        self.config: Any = getattr(inner, "config", None)
        self.text = text = getattr(self.config, "get_text_config", lambda: self.config)()
        self.family = str(getattr(self.config, "model_type", None) or type(inner).__name__)
        self.unembed: nn.Module | None = None
        find = getattr(inner, "get_output_embeddings", None)
        with suppress(NotImplementedError):  # some say so instead of having none
            self.unembed = find() if callable(find) else None
        self.lm_head: Literal["language", "masked", "none"] = "none" if self.unembed is None else "language"
        if "MaskedLM" in type(inner).__name__:
            self.lm_head = "masked"
        self.kind: Literal["encoder", "decoder", "encoder-decoder"] = "encoder"
        if getattr(self.config, "is_encoder_decoder", False):
            self.kind = "encoder-decoder"
        elif self.lm_head == "language":
            self.kind = "decoder"
        start = getattr(text, "decoder_start_token_id", None)
        self.start_token = start if isinstance(start, int) else None
        stop = getattr(getattr(inner, "generation_config", None), "eos_token_id", None)
        stop = getattr(text, "eos_token_id", None) if stop is None else stop
        self.stop_tokens = tuple(stop) if isinstance(stop, list) else () if stop is None else (int(stop),)

    @property
    def sizes(self) -> Sizes:
        """As the config states them; 0 where it does not."""

        def said(*names: str) -> int:
            values = (getattr(self.text, name, None) for name in names)
            return next((value for value in values if isinstance(value, int) and value > 0), 0)

        n_position = said("max_position_embeddings", "n_positions", "max_seq_len")
        for name, module in self.inner.named_modules():  # RoBERTa's positions begin after that of padding
            if "position" in name and isinstance(module, nn.Embedding) and module.padding_idx is not None:
                n_position = min(n_position, module.num_embeddings - module.padding_idx - 1)
        n_head = said("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads")
        return Sizes(
            n_layer=said("num_hidden_layers", "n_layer", "n_layers", "decoder_layers"),
            n_head=n_head,
            n_kv_head=said("num_key_value_heads") or n_head,
            model_dim=said("hidden_size", "n_embd", "d_model"),
            vocab=said("vocab_size"),
            n_position=n_position or None,
        )

    @property
    def attention_names(self) -> list[str]:
        """None that are known beforehand: a trace has them."""
        return []

    def forward(
        self,
        tokens: Int[Tensor, "batch position"],
        target: Int[Tensor, "batch target_position"] | None = None,
        *,
        key_mask: Bool[Tensor, "batch key"] | None = None,
        target_key_mask: Bool[Tensor, "batch target_key"] | None = None,
        record: Record | None = None,
        logits: Literal["all", "last", "none"] = "all",
        **more: Any,
    ) -> Output:
        """What the model inside gives, by our names."""
        _refuse(record)
        if self.config is None:  # written by somebody else altogether
            out = self.inner(tokens)
            out = out if isinstance(out, Tensor) else out[0] if isinstance(out, tuple) else out.logits
            return Output(hidden=out, logits=out)
        given = {"input_ids": tokens, "attention_mask": key_mask}
        given |= {"decoder_input_ids": target, "decoder_attention_mask": target_key_mask}
        whole = {name: part.long() for name, part in given.items() if part is not None}
        out = self.inner(**whole, return_dict=True, **more)
        scores = out.get("logits")
        if scores is not None and logits == "last":
            scores = scores[:, -1:]
        hidden = out.get("last_hidden_state")
        if hidden is None:
            hidden = scores if scores is not None else out[0]
        return Output(
            hidden=hidden, logits=None if logits == "none" else scores, pooled=out.get("pooler_output")
        )

    def _decoding(self, prompt: Tensor, key_mask: Tensor | None, record: Record | None) -> ForeignDecoding:
        _refuse(record)
        if self.lm_head != "language":
            raise UnsupportedError(
                f"{self.family} is {self.kind} with lm_head {self.lm_head!r} and generates no text. "
                "For masked words use fill_mask."
            )
        return ForeignDecoding(self, prompt, key_mask)


def _refuse(record: Record | None) -> None:
    if record is not None:
        raise UnsupportedError(
            "record is for models of this library: trace this one with regard.trace, or while it writes with "
            "regard.watch, and change it with regard.intervene."
        )


class ForeignDecoding:
    """One running decode: the model's own cache, and which positions are padding."""

    @torch.no_grad()
    def __init__(self, model: Foreign, prompt: Tensor, key_mask: Tensor | None) -> None:
        self.model, self.past = model, None
        self.key_mask = torch.ones_like(prompt, dtype=torch.bool) if key_mask is None else key_mask
        self.both = model.kind == "encoder-decoder"
        self.memory: Any = None
        if self.both:
            self.memory = model.inner.get_encoder()(input_ids=prompt, attention_mask=self.key_mask.long())  # type: ignore[operator]

    def next(self, tokens: Int[Tensor, "batch"]) -> Float[Tensor, "batch vocab"]:
        """The scores of the token after these, one new token for each sequence."""
        if not self.both:
            self.key_mask = torch.cat([self.key_mask, self.key_mask.new_ones(tokens.shape[0], 1)], 1)
        return self.feed(tokens[:, None])

    @torch.no_grad()
    def feed(self, tokens: Int[Tensor, "batch position"]) -> Float[Tensor, "batch vocab"]:
        """The scores of the token after the last of these."""
        given: dict[str, Any] = {"input_ids": tokens}
        if self.both:
            given = {"encoder_outputs": self.memory, "decoder_input_ids": tokens}
        elif not bool(self.key_mask.all()):  # how many real tokens stand before each
            given["position_ids"] = (self.key_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        given |= {"attention_mask": self.key_mask.long(), "past_key_values": self.past}
        out = self.model.inner(**given, use_cache=True, return_dict=True)
        self.past = out.get("past_key_values")
        if self.past is None:
            raise UnsupportedError(f"{self.model.family} has no cache that grows: it cannot be decoded here.")
        scores: Tensor = out.logits[:, -1].float()
        return scores

    def reorder(self, sequences: Int[Tensor, "new_batch"]) -> None:
        """Go on with these sequences in this order, as beam search does."""
        self.past.batch_select_indices(sequences)  # type: ignore[attr-defined]
        self.key_mask = self.key_mask.index_select(0, sequences)
        if self.memory is not None:
            states = self.memory.last_hidden_state.index_select(0, sequences)
            self.memory = type(self.memory)(last_hidden_state=states)


@contextmanager
def _quiet() -> Iterator[None]:
    """A block in which transformers prints neither bars nor advice."""
    import transformers

    logging: Any = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def open_folder(folder: Path, config: Mapping[str, Any], dtype: torch.dtype) -> Foreign:
    """The model in a Hugging Face folder, by the class its config names; code in the folder is never run."""
    try:
        import transformers
    except ImportError as error:
        raise LoadError(
            f"{folder}: model_type {config.get('model_type')!r} is none of ours, and the transformers "
            "library, which may know it, is not installed: pip install regard[hf]."
        ) from error
    stated = config.get("architectures") or []
    classes = [*stated, *_LISTS] if isinstance(stated, list) else list(_LISTS)
    reasons = []
    for name in classes:
        found = getattr(transformers, str(name), None)
        if found is None or not hasattr(found, "from_pretrained"):
            continue
        kind = getattr(getattr(found, "config_class", None), "model_type", None)
        if kind and kind != config.get("model_type"):
            reasons.append(f"{name} is of type {kind}")
            continue
        try:
            with _quiet():
                model, report = found.from_pretrained(
                    folder, local_files_only=True, dtype=dtype, output_loading_info=True, use_safetensors=True
                )
        except Exception as error:  # what a damaged folder makes that library raise has no end
            reasons.append(f"{name}: {str(error).strip().splitlines()[0] if str(error).strip() else error!r}")
            continue
        missing = sorted(report["missing_keys"])
        if missing:
            reasons.append(f"{name}: the files lack {len(missing)} weights, such as {missing[0]}")
            continue
        return Foreign(model.eval(), _processor(folder))
    listed = "\n    ".join(dict.fromkeys(reasons)) or "it knows no class for it"
    raise LoadError(
        f"{folder}: model_type {config.get('model_type')!r} is none of ours, and transformers cannot open it."
        f"\n    {listed}"
    )


def _processor(folder: Path) -> Any:
    """Return what makes an image or a sound into what the model takes; None where the folder has none."""
    if not (folder / "preprocessor_config.json").is_file():
        return None
    import transformers

    readers: tuple[Any, ...] = (transformers.AutoImageProcessor, transformers.AutoFeatureExtractor)
    for reader in readers:
        try:
            with _quiet():
                return reader.from_pretrained(folder, local_files_only=True)
        except Exception:  # of the other kind, or damaged: tensors can be given still
            continue
    return None
