"""Tracing while a model writes: the trace of the finished text, row by row."""

import pytest
import torch
from tiny_models import TEXT, tiny, whole

from regard.errors import TraceError
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.tracing.generation import GrowingTrace, trace_generation
from regard.tracing.take import trace


@pytest.mark.parametrize("family", ["gpt2", "llama", "window", "t5", "linear"])
def test_rows_appended_while_writing_are_the_trace_of_the_finished_text(family):
    """Prompt, then one token at a time: the same layers, labels and weights as of the text at once."""
    loaded = tiny(family)
    written = trace_generation(loaded, TEXT, max_new=9)
    if family == "t5":
        finished = trace(loaded.model, torch.tensor([loaded.tokenizer.encode(TEXT)]), target=written.ids)
    else:
        finished = trace(loaded.model, written.ids)
    assert written.names == finished.names
    assert written.ids.shape[1] == (9 + 1 if family == "t5" else len(TEXT) + 9)
    for one, other in zip(written.layers, finished.layers, strict=True):
        assert one.shape == other.shape
        assert torch.allclose(whole(one), whole(other), atol=2e-5), one.name
    assert written.checks.passed, str(written.checks)
    assert all(layer.output is not None for layer in written.checks.layers)
    assert written.tokens == (tuple(loaded.tokenizer.tokens(written.ids[0])),)


def test_steps_whose_output_is_another_fail_the_check():
    """What was recovered is compared with what the model computed at every step."""
    loaded, growing, ids = tiny("gpt2"), GrowingTrace(), torch.tensor([[5, 7, 11]])

    def record(name, q, k, v, out, lse, rule):
        growing(name, q, k, v, out + 0.01 * (name == "decoder.1.self"), lse, rule)

    _, decoding = loaded.model.begin(ids, record=record)
    decoding.next(torch.tensor([13]))
    with pytest.warns(UserWarning, match=r"FAILED in layer 1:"):
        growing.trace(torch.tensor([[5, 7, 11, 13]]))


def test_a_growing_trace_can_be_looked_at_at_every_step():
    """After each token it has one row more, in every layer."""
    loaded = tiny("llama")
    sizes = []
    trace_generation(
        loaded, TEXT, max_new=3, on_token=lambda grown: sizes.append(grown.layer(grown.names[1]).shape)
    )
    n = len(TEXT)
    assert sizes == [(1, 6, n + 1, n + 1), (1, 6, n + 2, n + 2), (1, 6, n + 3, n + 3)]


def test_a_recurrent_decode_grows_too():
    """The alignment of a seq2seq model, written word by word, is that of the words at once."""
    config = Seq2SeqConfig(source_vocab=31, target_vocab=37, embed_dim=8, hidden_dim=12, bos=1)
    model = Seq2Seq(config).eval()
    source, words = torch.randint(0, 31, (2, 11)), torch.randint(0, 37, (2, 5))
    growing = GrowingTrace()
    with torch.no_grad():
        _, decoding = model.begin(source, record=growing)
        for word in words.T:
            decoding.next(word)
    target = torch.cat([torch.ones(2, 1, dtype=torch.long), words], dim=1)
    wanted = trace(model, source, target=target).layers[0]
    assert torch.allclose(whole(growing.layer("decoder.cross")), whole(wanted), atol=1e-6)


def test_steps_that_do_not_follow_one_another_are_refused():
    """A cache that was cropped continues elsewhere than where the rows end."""
    loaded = tiny("llama")
    growing = GrowingTrace()
    _, decoding = loaded.model.begin(torch.tensor([[3, 5, 7, 11]]), record=growing)
    decoding.cache.crop(2)
    with pytest.raises(TraceError, match=r"1 sequences of 3 keys in this step, and had 1 of 4"):
        decoding.next(torch.tensor([13]))
