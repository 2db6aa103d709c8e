"""Models with random weights get no label, whatever their family and seed."""

import pytest

from regard.files.loading import untrained
from regard.files.tokenizer import byte_tokenizer
from regard.heads import survey
from regard.heads.model import loaded_of
from regard.models.families import FAMILIES
from regard.models.transformer import Transformer

TEXTS = ("the cat sat on the mat, and the cat slept.", "a dog saw a cat; the dog ran, the cat did not.")


def tiny(family, n_head):
    """A small random model of a family that reads bytes."""
    tokenizer = byte_tokenizer()
    sizes = {"vocab": tokenizer.vocab_size, "n_position": 128, "n_encoder_layer": 1, "n_decoder_layer": 1}
    sizes |= {"block.model_dim": 24, "block.n_head": n_head, "block.qk_dim": 8, "block.ff_dim": 48}
    return loaded_of(Transformer(FAMILIES[family].sized(sizes)).eval(), tokenizer)


@pytest.mark.parametrize(
    ("family", "n_head"), [("gpt2", 1), ("bert", 3), ("llama", 3), ("qwen3", 1), ("gpt_neox", 3)]
)
@pytest.mark.parametrize("n_seed", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_random_models_of_a_family_get_no_label_but_like_random(family, n_head, n_seed):
    """Every head is like random, whatever the seed, also where a model has one head in a layer."""
    shape = tiny(family, n_head)
    for seed in range(n_seed):
        surveyed = survey(untrained(shape, seed), TEXTS, n_repeat=1, n_needle=1, progress=False)
        assert {head.label for head in surveyed.labels()} == {"like random"}, seed
