"""Whole models: one Transformer that is all our families, and the recurrent seq2seq."""

from regard.models.model import Output
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.transformer import Transformer, TransformerConfig

__all__ = [
    "Output",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Transformer",
    "TransformerConfig",
]
