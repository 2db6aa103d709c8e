"""Tiny random folders of model types that this library leaves to transformers, tokenizer included."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import torch
import transformers
from tiny_transformers import _CHOSEN, _VARIANTS, VOCAB, tiny_config, widen
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

_HEADS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
)


def make_folder(model_type: str, head: str, folder: Path) -> Path:
    """A folder with a model of that type that runs, with a `head` that is causal, seq2seq or masked."""
    table = dict(zip(("causal", "seq2seq", "masked"), _HEADS, strict=True))[head]
    kind = getattr(transformers, getattr(modeling_auto, table)[model_type])
    reasons = []
    for sizes, short in product(_VARIANTS, (True, False)):
        try:
            config = tiny_config(CONFIG_MAPPING[model_type], sizes, short, _CHOSEN.get(model_type, {}))
            config.eos_token_id = None
            torch.manual_seed(0)
            model = widen_and_run(kind(config).float().eval())
            break
        except Exception as error:  # the next sizes may do
            reasons.append(repr(error)[:200])
    else:
        raise AssertionError(f"no tiny {model_type} runs: {reasons}")
    model.save_pretrained(folder)
    words = {f"w{index}": index for index in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def widen_and_run(model):
    widen(model)
    ids = torch.randint(5, VOCAB - 15, (1, 7))
    with torch.no_grad():
        model(input_ids=ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}))
    return model
