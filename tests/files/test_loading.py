"""Loading: names, folders, GGUF, random weights, and what is said about files that do not fit."""

import json
import math
import re

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

from regard.cli import main
from regard.errors import ArgumentError, LoadError, UnsupportedError
from regard.files.loading import load, save
from regard.models.families import FAMILIES, differences, initialise, published_config
from regard.models.foreign import Foreign
from regard.models.transformer import Transformer

TINY = {
    "gpt2": {"vocab_size": 263, "n_positions": 29, "n_embd": 12, "n_layer": 2, "n_head": 3},
    "bert": {
        "vocab_size": 263,
        "num_hidden_layers": 2,
        "max_position_embeddings": 29,
        "hidden_size": 12,
        "num_attention_heads": 3,
        "intermediate_size": 17,
        "architectures": ["BertForMaskedLM"],
    },
    "llama": {
        "vocab_size": 263,
        "num_hidden_layers": 2,
        "hidden_size": 12,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "intermediate_size": 17,
    },
    "t5": {"vocab_size": 263, "d_model": 12, "d_kv": 5, "d_ff": 17, "num_layers": 2, "num_heads": 3},
}
TINY["qwen3"] = {**TINY["llama"], "head_dim": 6}
TINY["gemma3"] = {**TINY["llama"], "head_dim": 6, "num_hidden_layers": 7, "sliding_window": 5}
TINY["gpt_neox"] = {**TINY["llama"], "rotary_pct": 0.5}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Writes a tiny model of a family and gives its folder."""

    def write(family):
        monkeypatch.setattr(FAMILIES[family], "sizes", {"tiny": TINY[family]}, raising=False)
        save(load("tiny", random=True, seed=5), tmp_path / family)
        return tmp_path / family

    return write


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_loads_with_the_same_numbers(folder, family):
    """Weights, config and tokenizer come back exactly, for each family."""
    path = folder(family)
    first, second = load(path), load(path)
    again = load("tiny", random=True, seed=5)
    assert first.model.config == again.model.config
    for (name, a), b, c in zip(
        again.model.state_dict().items(),
        first.model.state_dict().values(),
        second.model.state_dict().values(),
        strict=True,
    ):
        assert torch.equal(b, a), name
        assert torch.equal(c, a), name
    text = "Grüße, world"
    assert first.tokenizer.encode(text) == again.tokenizer.encode(text)
    assert first.facts.family == family
    assert first.facts.n_parameter == sum(p.numel() for p in again.model.parameters())


def test_missing_extra_and_misshapen_tensors_are_listed_at_once(folder):
    """One error names every tensor that does not fit, with the shape expected and found."""
    path = folder("llama")
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.norm.weight"] = torch.ones(13)
    tensors["model.layers.7.surprise"] = torch.ones(2, 3)
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(LoadError) as caught:
        load(path)
    message = str(caught.value)
    assert "missing   model.layers.1.mlp.up_proj.weight: expected (17, 12)" in message
    assert "misshapen model.norm.weight: expected (12,), found (13,)" in message
    assert "extra     model.layers.7.surprise: found (2, 3)" in message
    assert "(3 differ)" in message


def test_gpt2_files_with_and_without_prefix_give_the_same_model(folder):
    """The name of the bare model and of the one with a head both load, as both are published."""
    path = folder("gpt2")
    before = load(path).model.state_dict()
    tensors = load_file(path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 29, 29)  # a causal mask that old files carry along
    save_file(bare, path / "model.safetensors")
    after = load(path).model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_old_bert_files_spell_their_norms_gamma_and_beta(folder):
    """The names of files converted from TensorFlow load too."""
    path = folder("bert")
    before = load(path).model.state_dict()
    tensors = load_file(path / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    assert any("gamma" in name for name in old)
    save_file(old, path / "model.safetensors")
    after = load(path).model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model_type": "mamba"}, LoadError, "model_type 'mamba'"),
        ({"model_type": None}, UnsupportedError, "only gpt2"),
        ({"hidden_size": None}, LoadError, "hidden_size"),
        ({"hidden_act": "quadratic"}, UnsupportedError, "activation 'quadratic'"),
        ({"num_attention_heads": "many"}, LoadError, "num_attention_heads"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused_in_words(folder, change, error, words):
    """What a config.json asks for and we do not do is named, before any weight is read."""
    path = folder("llama")
    config = json.loads((path / "config.json").read_text())
    for key, value in change.items():
        if value is None:
            del config[key]
        else:
            config[key] = value
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(error, match=words):
        load(path)


def test_what_ours_lacks_is_opened_by_transformers(folder):
    """A GPT-2 whose scores shrink with the layer: the library's own numbers, and facts that say why."""
    path = folder("gpt2")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "scale_attn_by_inverse_layer_idx": True}))
    loaded = load(path)
    assert isinstance(loaded.model, Foreign)
    assert "scale_attn_by_inverse_layer_idx" in loaded.facts.notes[1]
    tokens = torch.randint(config["vocab_size"], (2, 7))
    theirs = GPT2LMHeadModel.from_pretrained(path, dtype=torch.float32).eval()
    torch.testing.assert_close(loaded.model(tokens).logits, theirs(tokens).logits)
    (path / "config.json").write_text(json.dumps(config))
    assert not torch.allclose(load(path).model(tokens).logits, theirs(tokens).logits)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("llama", "rms_norm_eps", "x"),
        ("llama", "rms_norm_eps", -5),
        ("llama", "rms_norm_eps", math.nan),
        ("llama", "rope_theta", -1),
        ("llama", "rope_theta", "1e5"),
        ("llama", "rope_scaling", {"rope_type": "linear", "factor": "2"}),
        ("llama", "rope_scaling", 5),
        ("llama", "hidden_size", None),
        ("llama", "hidden_size", 2**31),
        ("llama", "num_hidden_layers", 10**9),
        ("llama", "max_position_embeddings", 0),
        ("llama", "max_position_embeddings", 2**31),
        ("llama", "sliding_window", -3),
        ("llama", "attention_bias", "no"),
        ("llama", "hidden_act", ["silu"]),
        ("llama", "architectures", 5),
        ("gpt2", "n_embd", "x"),
        ("gpt2", "n_head", True),
        ("gpt2", "n_layer", 1.5),
        ("bert", "vocab_size", -1),
        ("bert", "type_vocab_size", 2**40),
        ("t5", "d_model", 0),
        ("t5", "relative_attention_max_distance", 10**30),
        ("t5", "feed_forward_proj", 3),
    ],
)
def test_a_value_of_the_wrong_type_or_size_is_refused_before_a_model_is_built(folder, family, key, value):
    """Each field by its type and range: no TypeError, no NaN logits, no model of an absurd size."""
    path = folder(family)
    config = json.loads((path / "config.json").read_text())
    config.pop("rope_parameters", None)
    (path / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises((LoadError, UnsupportedError), match=r"config\.json|not known"):
        load(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.index_put_((torch.tensor(1),), torch.tensor(math.nan)), "norm.weight holds NaN or inf"),
        (lambda t: t.fill_(math.inf), "norm.weight holds NaN or inf"),
        (lambda t: t.int(), "norm.weight is stored as I32: weights must be floating"),
        (lambda t: t.bool(), "norm.weight is stored as BOOL"),
    ],
    ids=["NaN", "infinity", "whole numbers", "booleans"],
)
def test_weights_that_are_no_finite_numbers_are_refused_by_name(folder, change, words):
    """Looked at once, as they load."""
    path = folder("llama")
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"] = change(tensors["model.norm.weight"])
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(LoadError, match=words):
        load(path)


def test_large_weights_whose_sum_overflows_are_finite(folder):
    """The quick look adds them up: an infinite sum is a false alarm."""
    path = folder("llama")
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"].fill_(3e38)
    save_file(tensors, path / "model.safetensors")
    assert load(path).model.decoder.norm.weight[0] == torch.tensor(3e38)


def test_an_unknown_name_lists_the_names_there_are():
    """A typing error is answered with what could have been meant."""
    with pytest.raises(LoadError, match="smollm2"):
        load("smollm3")
    with pytest.raises(ArgumentError, match="gpt2"):
        load("gpt5", random=True)


@pytest.mark.parametrize("name", ["minilm", "t5"])
def test_random_weights_repeat_with_their_seed(name):
    """The same seed gives the same weights, another seed gives others."""
    first, again, other = (load(name, random=True, seed=seed).model for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.token.weight, other.token.weight)


def test_random_models_say_that_they_are():
    """The facts of a random model do not let it pass for a trained one."""
    loaded = load("minilm", random=True, seed=3)
    assert not loaded.facts.trained
    assert "seed 3" in loaded.facts.source
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("any text ✓")) == "any text ✓"


@pytest.mark.parametrize(
    ("family", "published", "n_parameter"),
    [
        ("gpt2", "gpt2", 124_439_808),
        ("bert", "bert", 109_514_298),
        ("llama", "smollm2", 134_515_008),
        ("t5", "t5", 60_506_624),
        ("qwen3", "qwen3", 596_049_920),
        ("gemma3", "gemma3", 268_098_176),
        ("gpt_neox", "pythia", 70_426_624),
    ],
)
def test_published_shapes_have_the_published_number_of_parameters(family, published, n_parameter):
    """GPT-2 124M, BERT base with its masked head, SmolLM2-135M, T5-small, Qwen3-0.6B, Gemma 3 270M and
    Pythia-70M are that large."""
    config = FAMILIES[family].config(FAMILIES[family].sizes[published])
    with torch.device("meta"):
        model = Transformer(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == n_parameter


@pytest.mark.parametrize("family", FAMILIES)
def test_a_published_config_reads_back_as_itself(family):
    """config -> config.json -> config is the identity."""
    for size in [*FAMILIES[family].sizes.values(), TINY[family]]:
        config = FAMILIES[family].config(size)
        assert FAMILIES[family].config(published_config(config)) == config


def test_the_table_of_families_tells_them_apart():
    """What makes each family is in the table: T5 has no scale, Llama shares keys, BERT norms after."""
    rows = dict(differences())
    rotary = dict.fromkeys(("llama", "qwen3", "gemma3", "gpt_neox"), "rotary")
    assert rows["scale"] == {**dict.fromkeys(FAMILIES, "1/sqrt(qk_dim)"), "t5": "1"}
    assert rows["key/value heads"]["llama"] == "3 of 9"
    assert rows["norm_first"] == {**dict.fromkeys(FAMILIES, "yes"), "bert": "no"}
    assert rows["positions"] == {"gpt2": "learned", "bert": "learned", "t5": "relative", **rotary}
    assert [name for name, value in rows["qk_norm"].items() if value == "yes"] == ["qwen3", "gemma3"]
    assert [name for name, value in rows["parallel"].items() if value == "yes"] == ["gpt_neox"]


@pytest.mark.parametrize("columns", [60, 120])
def test_the_families_are_printed_side_by_side_in_words(monkeypatch, columns):
    """Every family has its column, in as many tables as the terminal needs, and every answer its words."""
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = CliRunner().invoke(main, ["families"]).stdout
    assert max(map(len, shown.splitlines())) <= columns
    lines = [line for line in shown.splitlines()[1:] if line and line[0] not in " ─"]
    rows = [re.split(r" {2,}", line) for line in lines]
    answers = {question: [] for question, *_ in rows}
    for question, *cells in rows:
        answers[question] += cells
    by_family = {question: dict(zip(FAMILIES, cells, strict=True)) for question, cells in answers.items()}
    assert (by_family["scores"]["gpt2"], by_family["scores"]["t5"]) == ("q·k / sqrt(d)", "q·k")
    assert by_family["norm"]["bert"] == "LayerNorm, after"
    assert by_family["heads"]["llama"] == "9, of keys 3"
    assert by_family["token type"]["bert"] == "2"  # a field without words of its own


def test_every_parameter_of_a_random_model_is_drawn():
    """No weight is left as memory was found: norms are 1, biases 0, the rest spread as the family says."""
    for family, size in TINY.items():
        with torch.device("meta"):
            model = Transformer(FAMILIES[family].config(size))
        filled = {name: torch.full(p.shape, torch.nan) for name, p in model.named_parameters()}
        model.load_state_dict(filled, assign=True)
        initialise(model, seed=0)
        assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()), family
