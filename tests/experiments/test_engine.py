"""The engine: every row of a batch equals the change run alone, on our families and on transformers'."""

import pytest
import torch
import transformers as hf
from tiny_models import FAMILIES, tiny
from torch import nn

import regard
from regard.experiments import (
    HeadGate,
    KnockOut,
    LogitReading,
    PatchModule,
    PatchOutputs,
    PatchWeights,
    RowEngine,
    ablated,
)
from regard.heads.model import layers_of, loaded_of
from regard.tracing.interventions import intervene
from regard.tracing.take import foreign_input, our_input


def difference(logits):
    return logits[..., 7] - logits[..., 9]


def alone(loaded, given, change, n_example):
    """The same change made in a run of its own, by `intervene`."""
    with torch.no_grad(), intervene(loaded) as run:
        for edit in change:
            edit.ask(run, list(range(n_example)), n_example)
        module = loaded.model.inner if hasattr(loaded.model, "inner") else loaded.model
        return difference(module(*given.args, **given.kwargs).logits).double()


def all_kinds(engine, sources, n_example, edges=True):
    """Every kind of change, in every layer."""
    changes = [()]
    for name, out in engine.outputs.items():
        n_head, n, v_dim = out.shape[1:]
        last_head = n_head - 1
        changes += [(HeadGate(name, (head,)),) for head in range(n_head)]
        changes += [(HeadGate(name, (1,), 0.5, torch.full((v_dim,), 0.3), (1, 2)), HeadGate(name, None, 0.7))]
        changes += [(PatchOutputs(name, (0, last_head), sources[name], (n - 1,)),)]
        if edges:
            changes += [(KnockOut(name, (head,), (n - 1,), (0,)),) for head in (1, last_head)]
            changes += [(KnockOut(name, (1,), (n - 2, n - 1), (0, 1)),), (KnockOut(name, None, (n - 1,)),)]
            hidden = tuple(at for at in range(n) if at != 1)
            changes += [tuple(KnockOut(layer, None, hidden, (1,)) for layer, same in engine.outputs.items()
                              if same.shape[2] == n and engine.kinds[layer] == "self")]  # fmt: skip
    return changes


def assert_rows_equal_runs(engine, loaded, given, changes, n_example, position=None):
    scores = engine.run(changes).scores
    moved = (scores - engine.unchanged).abs()
    assert int((moved.flatten(1).amax(1) > 1e-4).sum()) > len(changes) // 2  # they do something
    for change, score in zip(changes, scores, strict=True):
        expected = alone(loaded, given, change, n_example)
        expected = expected if position is None else expected[:, position]
        torch.testing.assert_close(score, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("where", ["last", "all"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_equals_the_change_run_alone_on_our_families(family, where):
    """Two examples, of different lengths where all positions are read; a few rows at a time."""
    loaded = tiny(family)
    texts = ["the cat", "a mat is"] if where == "all" else ["the cat", "a mat is"[:7]]
    answer = (["on it", "at"] if where == "all" else ["on", "at"]) if family == "t5" else None
    given = our_input(loaded.model, texts, answer, loaded.tokenizer, loaded.start_token)
    n = given.ids.shape[1]
    position = n - 1 if where == "last" else None
    engine = RowEngine(
        loaded,
        given,
        LogitReading(difference, None if position is None else torch.full((2,), position)),
        tokens=37,
    )
    sources = {name: torch.flip(out, (0,)) + 0.5 for name, out in engine.outputs.items()}
    changes = all_kinds(engine, sources, 2, edges=family != "linear")
    assert len(engine.plan(changes)) > 3
    assert_rows_equal_runs(engine, loaded, given, changes, 2, position)


def small_hf(family):
    """A tiny random model of transformers, and what it is given: two sequences, one of them padded."""
    torch.manual_seed(5)
    ids = torch.randint(3, 97, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    text = {"input_ids": ids, "attention_mask": mask}
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37}
    special = {"bos_token_id": 1, "eos_token_id": 2}
    words = {**sizes, **special, "vocab_size": 97}
    if family == "gpt2":
        config = hf.GPT2Config(vocab_size=97, n_embd=24, n_layer=3, n_head=4, n_positions=31, **special)
        model = hf.GPT2LMHeadModel(config)
    elif family == "llama":
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**words, num_key_value_heads=2))
    elif family == "bert":
        model = hf.BertForMaskedLM(hf.BertConfig(**words))
    elif family == "neox":
        model = hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**words))
    elif family == "t5":
        config = hf.T5Config(vocab_size=97, d_model=24, d_kv=6, d_ff=37, num_layers=3, num_heads=4)
        model, text = hf.T5ForConditionalGeneration(config), {**text, "decoder_input_ids": ids[:, :5]}
    else:
        config = hf.ViTConfig(**sizes, image_size=12, patch_size=4, num_labels=11)
        model, text = hf.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 12, 12)}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model.eval(), text


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5", "neox", "vit"])
def test_every_row_equals_the_change_run_alone_on_transformers(family):
    """Blocks before a change are skipped, and nothing is lost by it."""
    model, text = small_hf(family)
    loaded, given = loaded_of(model), foreign_input(model, text, None, None)
    engine = RowEngine(loaded, given, LogitReading(difference), tokens=60)
    assert engine.starts_in_the_middle
    sources = {name: torch.flip(out, (0,)) + 0.5 for name, out in engine.outputs.items()}
    changes = all_kinds(engine, sources, 2)
    assert len(engine.plan(changes)) > 3
    assert_rows_equal_runs(engine, loaded, given, changes, 2)


def test_weights_and_modules_of_another_run_are_put_in_rows():
    """A trace's weights on this run's values, and a feed-forward layer's output: as `intervene` puts them."""
    loaded = tiny("llama")
    given = our_input(loaded.model, "the cat", None, loaded.tokenizer, None)
    source = regard.trace(loaded, "the hat", keep_v=True)
    engine = RowEngine(loaded, given, LogitReading(difference))
    other = torch.randn(1, given.ids.shape[1], 24)
    changes = [
        (PatchWeights("decoder.1.self", (2,), source),),
        (PatchWeights("decoder.0.self", None, source, (3,)),),
        (PatchModule("decoder.blocks.1.ff", other),),
        (PatchModule("decoder.blocks.0.ff", other, (2, 4)), HeadGate("decoder.1.self", (1,))),
    ]
    assert_rows_equal_runs(engine, loaded, given, changes, 1)


def test_a_change_starts_at_the_first_layer_and_position_that_it_touches():
    """Of a causal model; a row of the last position alone has one token."""
    loaded = tiny("gpt2")
    given = our_input(loaded.model, "the cat sat", None, loaded.tokenizer, None)
    n = given.ids.shape[1]
    engine = RowEngine(loaded, given, LogitReading(difference, torch.tensor([n - 1])))
    starts = {
        (HeadGate("decoder.1.self", (0,)),): (1, 0),
        (KnockOut("decoder.0.self", (0,), (n - 1,), (2,)),): (0, n - 1),
        (KnockOut("decoder.1.self", None, None, (4,)),): (1, 4),  # earlier queries do not see it
        (HeadGate("decoder.1.self", (0,), rows=(3,)), HeadGate("decoder.0.self", (0,), rows=(5,))): (0, 3),
        (): (2, n - 1),
    }
    for change, start in starts.items():
        assert engine.rows.start_of(change) == start
    encoder = tiny("bert")
    given = our_input(encoder.model, "the cat sat", None, encoder.tokenizer, None)
    engine = RowEngine(encoder, given, LogitReading(difference, torch.tensor([2])))
    assert engine.rows.start_of((HeadGate("encoder.1.self", (0,), rows=(3,)),)) == (1, 0)


def test_memory_bounds_the_rows_of_a_batch():
    """No room: one row at a time, with the same numbers."""
    loaded = tiny("gpt2")
    given = our_input(loaded.model, "the cat sat", None, loaded.tokenizer, None)
    changes = [(HeadGate(name, (head,)),) for name in layers_of(loaded) for head in range(6)]
    roomy = RowEngine(loaded, given, LogitReading(difference))
    tight = RowEngine(loaded, given, LogitReading(difference), memory=1)
    assert len(roomy.plan(changes)) == 1
    assert len(tight.plan(changes)) == 12
    torch.testing.assert_close(roomy.run(changes).scores, tight.run(changes).scores, rtol=1e-5, atol=1e-6)


class Centred(nn.Module):
    """A model whose sequences are not independent: it subtracts the mean of the batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.embed = nn.Embedding(31, 8)
        self.layers = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))
        self.out = nn.Linear(8, 31)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
        rows = torch.arange(1, len(x) + 1)[:, None, None]
        return self.out(x) * rows


def test_a_model_whose_rows_depend_on_their_place_is_run_row_by_row():
    """The trial on the unchanged run says so; the numbers are those of single runs."""
    model = Centred().eval()
    ids = torch.tensor([[3, 9, 4, 1]])
    loaded, given = loaded_of(model), foreign_input(model, ids, None, None)
    engine = RowEngine(loaded, given, LogitReading(difference))
    assert not engine.rows.batched
    changes = [(HeadGate(f"layers.{layer}", (head,)),) for layer in range(2) for head in range(2)]
    scores = engine.run(changes).scores
    for change, score in zip(changes, scores, strict=True):
        with torch.no_grad(), intervene(model) as run:
            change[0].ask(run, None, 1)
            torch.testing.assert_close(score, difference(model(ids)).double(), rtol=1e-6, atol=1e-7)


def test_ctrl_c_keeps_what_is_done():
    """The rest is NaN, and the result says that it was interrupted."""
    loaded = tiny("gpt2")
    given = our_input(loaded.model, "the cat sat", None, loaded.tokenizer, None)
    engine = RowEngine(loaded, given, LogitReading(difference), tokens=33)
    changes = [(HeadGate(name, (head,)),) for name in layers_of(loaded) for head in range(6)]
    seen = []

    def stop(done, all_rows):
        seen.append((done, all_rows))
        if len(seen) == 2:
            raise KeyboardInterrupt

    ran = engine.run(changes, progress=stop)
    assert ran.interrupted
    assert ran.n_run == seen[-1][0] == 6
    assert int(ran.scores.flatten(1).isnan().any(1).sum()) == 6
    whole = engine.run(changes)
    assert not whole.interrupted
    done = ~ran.scores.flatten(1).isnan().any(1)
    torch.testing.assert_close(ran.scores[done], whole.scores[done])


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "window"])
def test_heads_stay_off_while_a_cache_is_written(family):
    """Decoding inside `ablated` gives the scores of reading the whole text again for every token."""
    loaded = tiny(family)
    ids = loaded.tokenizer.encode("the cat sat")
    with ablated(loaded, [(0, 1), (1, 4)]):
        whole = loaded.model(torch.tensor([ids])).logits[0]
        logits, decoding = loaded.model.begin(torch.tensor([ids[:4]]))
        steps = [logits[0], *(decoding.next(torch.tensor([token]))[0] for token in ids[4:])]
    torch.testing.assert_close(torch.stack(steps), whole[3:], rtol=1e-4, atol=1e-5)
    unchanged = loaded.model(torch.tensor([ids])).logits[0]
    assert float((unchanged - whole).abs().max()) > 1e-3


def test_wrong_layers_heads_and_sources_are_refused():
    loaded = tiny("gpt2")
    given = our_input(loaded.model, "the cat sat", None, loaded.tokenizer, None)
    engine = RowEngine(loaded, given, LogitReading(difference))
    with pytest.raises(regard.RegardError, match="there is no attention layer"):
        engine.run([(HeadGate("decoder.9.self", (0,)),)])
    with pytest.raises(regard.RegardError, match="has 6 heads"):
        engine.run([(HeadGate("decoder.1.self", (6,)),)])
    with pytest.raises(regard.RegardError, match=r"must be .example or 1, head, query, v_dim"):
        engine.run([(PatchOutputs("decoder.1.self", (1,), torch.zeros(1, 6, 2, 4)),)])
    with pytest.raises(regard.RegardError, match="is in no block"):
        engine.run([(PatchModule("token", torch.zeros(1, 11, 24)),)])
    loaded.model.train()
    with pytest.raises(regard.RegardError, match="training mode"):
        RowEngine(loaded, given, LogitReading(difference))
