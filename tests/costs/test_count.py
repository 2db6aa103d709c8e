"""The counted cost of transformers' models, against our formulas, PyTorch's counter and their own tensors."""

import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from regard.cli import main
from regard.costs.count import Counted
from regard.costs.model import cost, parameters, sizes_of
from regard.errors import ArgumentError, UnsupportedError
from regard.models.families import family_of

SIZES = {
    "vocab_size": 41,
    "hidden_size": 30,
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
}
GROUPED = {**SIZES, "num_key_value_heads": 3, "head_dim": 8}
OURS = {
    "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=41, n_embd=30, n_head=6, n_layer=3, n_positions=64)),
    "bert": BertForMaskedLM(BertConfig(**SIZES)),
    "llama": LlamaForCausalLM(LlamaConfig(**GROUPED)),
    "mistral": MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=7)),
    "t5": T5ForConditionalGeneration(
        T5Config(vocab_size=41, d_model=30, d_kv=7, d_ff=37, num_layers=2, num_heads=6)
    ),
}


def saved(model, folder):
    """A folder with the model's config and nothing else: no weights are needed."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", OURS)
def test_counts_are_the_formulas_of_our_families(tmp_path, name):
    """Operations of every phase, parameters and cache, of each family both know; a window in decoding too."""
    counted = Counted(saved(OURS[name], tmp_path))
    said = json.loads((tmp_path / "config.json").read_text())
    config = family_of(said).config(said)
    for phase in counted.phases:
        ours = cost(config, phase, batch=2, length=13)
        theirs = counted.cost(phase, batch=2, length=13)
        assert theirs.operations == ours.operations, phase
        assert theirs.n_parameter == parameters(config).value(sizes_of(config))
        if phase == "train":
            continue
        window = config.block.window
        held = ours.cache_bytes
        if window is not None:  # their cache holds one position less: the next token brings its own
            held = cost(config, "decode", batch=2, length=13).cache_bytes * (window - 1) // window
        assert theirs.cache_bytes == held, phase


def test_a_windows_decoding_reads_no_more_however_long_the_context(tmp_path):
    """Beyond the window neither operations, bytes nor cache grow; without one they do."""
    config = family_of(OURS["mistral"].config.to_dict()).config(OURS["mistral"].config.to_dict())
    short, long = (cost(config, "decode", batch=2, length=length) for length in (19, 1999))
    assert (short.operations, short.bytes, short.cache_bytes) == (
        long.operations,
        long.bytes,
        long.cache_bytes,
    )
    full = replace(config, block=replace(config.block, window=None))
    below, above = (cost(full, "decode", batch=2, length=length).cache_bytes for length in (19, 1999))
    assert above == 100 * below
    within = [cost(each, "decode", batch=2, length=5) for each in (config, full)]
    assert within[0].operations == within[1].operations
    assert within[0].cache_bytes == within[1].cache_bytes


def test_layers_of_two_kinds_hold_what_each_sees(tmp_path):
    """Gemma 3: two layers of three look back over 5 tokens, one over all of them."""
    config = Gemma3TextConfig(**GROUPED, sliding_window=5, sliding_window_pattern=3)
    assert config.layer_types.count("sliding_attention") == 2
    counted = Counted(saved(Gemma3ForCausalLM(config), tmp_path))
    token = 2 * 3 * 8 * 4  # keys and values of 3 heads of 8 numbers, float32
    for length in (29, 129):
        found = counted.cost("decode", length=length)
        assert found.cache_bytes == token * (2 * 4 + length + 1)
    scores = next(row for row in found.rows if row.name == "self_attn products")
    assert scores.n_operation == 2 * 2 * 6 * 8 * (2 * 5 + 130)


def test_counts_are_those_of_a_real_run(tmp_path):
    """Products of the model with its weights, by PyTorch's own counter; the bytes are of its tensors."""
    model = OURS["llama"].eval()
    model.set_attn_implementation("eager")
    ids = torch.randint(41, (2, 13))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=ids, use_cache=True, logits_to_keep=1)
    counted = Counted(saved(model, tmp_path)).cost("prefill", batch=2, length=13, dtype=torch.bfloat16)
    assert counted.operations == counter.get_total_flops()
    rows = {row.name: row for row in counted.rows}
    query = model.model.layers[0].self_attn.q_proj.weight
    one = query.numel() + 2 * 13 * (query.shape[0] + query.shape[1])
    assert rows["self_attn.q_proj"].n_byte == 3 * 2 * one
    assert rows["self_attn softmax"].n_byte == 3 * 2 * 2 * (2 * 6 * 13 * 13) * 2  # in float32
    assert counted.weight_bytes == 2 * sum(weight.numel() for weight in model.parameters())


def test_experts_are_read_once_and_work_for_the_tokens_that_chose_them(tmp_path):
    """Two of five experts a token: its operations; the bytes of their weights never exceed the weights."""
    config = Qwen3MoeConfig(
        **GROUPED, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=11, decoder_sparse_step=1
    )
    counted = Counted(saved(Qwen3MoeForCausalLM(config), tmp_path))
    for length in (1, 400):
        rows = {row.name: row for row in counted.cost("prefill", length=length).rows}
        work = 3 * 2 * length * 2 * 30 * 11 * 3  # layers, multiply and add, two experts, three matrices
        assert rows["mlp.experts products"].n_operation == work
        tensors = 3 * length * 2 * (30 + 22 + 11 + 30)
        experts = 3 * min(2 * length, 5) * 30 * 11 * 3
        assert rows["mlp.experts products"].n_byte == 4 * (tensors + experts)


def test_what_cannot_be_counted_is_said(tmp_path):
    """No cache that grows, no such step, no such length: each in words."""
    mamba = MambaForCausalLM(MambaConfig(vocab_size=41, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(UnsupportedError, match="no cache that grows"):
        Counted(saved(mamba, tmp_path / "mamba")).cost("decode", length=3)
    bert = Counted(saved(OURS["bert"], tmp_path / "bert"))
    with pytest.raises(UnsupportedError, match="no decoding step"):
        bert.cost("decode", length=3)
    with pytest.raises(ArgumentError, match="length at least 1"):
        bert.cost("prefill", length=0)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "config.json").write_text('{"model_type": "nobodys"}')
    with pytest.raises(UnsupportedError, match="cannot read its config"):
        Counted(tmp_path / "none")


def test_the_command_counts_a_folder_without_weights(tmp_path):
    """Phases and cache of the count; what has no decoding step says so, and --fused needs a formula."""
    config = Gemma3TextConfig(**GROUPED, sliding_window=5, sliding_window_pattern=3)
    folder = str(saved(Gemma3ForCausalLM(config), tmp_path / "gemma"))
    call = ["cost", "--model", folder, "--context", "30", "--seconds", "0.01"]
    said = json.loads(CliRunner().invoke(main, [*call, "--json"]).stdout)
    expected = Counted(tmp_path / "gemma").cost("decode", length=29)
    assert said["phases"]["decode"]["cache_bytes"] == expected.cache_bytes
    assert said["what_if"] == {}
    assert "self_attn products" in CliRunner().invoke(main, call).stdout
    refused = CliRunner().invoke(main, [*call, "--fused"])
    assert refused.exit_code == 2
    assert "goes without --fused" in refused.output
    bert = str(saved(MambaForCausalLM(MambaConfig(vocab_size=41, hidden_size=16, num_hidden_layers=1)),
                     tmp_path / "mamba"))  # fmt: skip
    shown = CliRunner().invoke(main, ["cost", "--model", bert, "--context", "9", "--seconds", "0.01"]).stdout
    assert "decode: mamba has no cache that grows" in shown
