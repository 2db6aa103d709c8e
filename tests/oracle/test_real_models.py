"""The real weights, through our Transformer and through transformers: the same words, the same numbers."""

import pytest
import torch
from transformers import AutoModelForCausalLM, BertModel

from regard.decoding.loop import generate
from regard.decoding.prompts import encoded
from regard.files import hub
from regard.files.loading import load

TEXTS = [
    "The animal didn't cross the street because it was too tired.",
    "Attention is all you need.",
    "Grüße aus Zürich, 12 Uhr 30!",
]


@torch.no_grad()
def test_minilm_gives_the_embeddings_of_transformers():
    """Every token's vector, the pooled vector and the mean that makes a sentence vector."""
    ours = load("minilm")
    theirs = BertModel.from_pretrained(hub.get("minilm")).eval()
    batch = encoded(TEXTS, ours.tokenizer)
    expected = theirs(input_ids=batch.ids, attention_mask=batch.key_mask.long())
    got = ours.model(batch.ids, key_mask=batch.key_mask)
    real = batch.key_mask
    torch.testing.assert_close(got.hidden[real], expected.last_hidden_state[real], rtol=0, atol=1e-5)
    torch.testing.assert_close(got.pooled, expected.pooler_output, rtol=0, atol=1e-5)


@torch.no_grad()
def test_minilm_takes_texts_longer_than_its_tokenizer_file_says():
    """tokenizer.json cuts at 128; the model's limit of 512 is the one that counts."""
    ours = load("minilm")
    ids = ours.tokenizer.encode("word " * 300)
    assert len(ids) == 302
    assert ours.model(torch.tensor([ids])).hidden.shape == (1, 302, 384)


@pytest.mark.slow  # transformers takes more than a minute to read the GGUF file
@torch.no_grad()
def test_smollm2_gives_the_logits_of_transformers():
    """Logits of every position to rounding, the same best tokens, the same greedy text."""
    path = hub.get("smollm2")
    ours = load("smollm2")
    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    for text in TEXTS:
        ids = torch.tensor([ours.tokenizer.encode(text)])
        expected, got = theirs(input_ids=ids).logits, ours.model(ids).logits
        scale = expected.abs().max()
        assert float((got - expected).abs().max() / scale) <= 1e-4
        assert torch.equal(got.argmax(-1), expected.argmax(-1))
        text_ids = theirs.generate(input_ids=ids, max_new_tokens=12, do_sample=False, eos_token_id=-1)
        assert generate(ours, ids, max_new=12, stop=[]).tokens[0] == tuple(
            text_ids[0, ids.shape[1] :].tolist()
        )
