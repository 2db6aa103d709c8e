"""Tokenizers trained on one's own text, with the `tokenizers` library: characters, words, byte-level BPE.

All three give back the text they were given, but for runs of spaces between words and what is unknown.
"""

from collections.abc import Iterable
from typing import Literal

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.errors import ArgumentError
from regard.files.tokenizer import TextTokenizer, usual_special_ids

# Padding is 0, which T5's format takes for granted.
SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>", "<cls>", "<sep>", "<mask>"]


def train_tokenizer(
    kind: Literal["char", "word", "bpe"], texts: Iterable[str], *, vocab: int = 8000, end: bool = False
) -> TextTokenizer:
    """Train a tokenizer of that kind on `texts`; with `end`, it puts `<eos>` after each text.

    >>> tokenizer = train_tokenizer("char", ["abba"], end=True)
    >>> tokenizer.tokens(tokenizer.encode("bab"))
    ['b', 'a', 'b', '<eos>']
    >>> tokenizer.decode(tokenizer.encode("bab"))
    'bab'
    """
    least = len(SPECIAL) + (256 if kind == "bpe" else 1)
    if vocab < least:
        raise ArgumentError(
            f"vocab is {vocab}, too small: {len(SPECIAL)} special tokens and "
            f"{'the 256 bytes' if kind == 'bpe' else 'one of the text'} make {least}."
        )
    if kind == "bpe":
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer: trainers.Trainer = trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
        if kind == "char":
            backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
            backend.decoder = decoders.Fuse()
        else:
            # A word keeps the space before it, so that joining words gives the text again.
            backend.normalizer = normalizers.Prepend(" ")
            backend.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?\w+| ?[^\w\s]|\s+"), "isolated")
            backend.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        trainer = trainers.WordLevelTrainer(
            vocab_size=vocab, special_tokens=SPECIAL, show_progress=False, min_frequency=0
        )
    backend.train_from_iterator(texts, trainer)
    if backend.get_vocab_size() == len(SPECIAL):
        raise ArgumentError("there is no text to make a vocabulary from: the data are empty.")
    if end:
        backend.post_processor = processors.TemplateProcessing(
            single=["$A", "<eos>"], pair=None, special_tokens=[("<eos>", SPECIAL.index("<eos>"))]
        )
    return TextTokenizer(backend, usual_special_ids(backend))
