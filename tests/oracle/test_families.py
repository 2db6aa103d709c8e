"""Our one Transformer against the transformers library: the same files, the same numbers."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from regard.decoding.loop import generate
from regard.errors import UnsupportedError
from regard.files.loading import load, save
from regard.models.families import FAMILIES

VOCAB = 101
GPT2 = {"vocab_size": VOCAB, "n_positions": 37, "n_layer": 2, "bos_token_id": 1, "eos_token_id": 2}
BERT = {"vocab_size": VOCAB, "max_position_embeddings": 37, "num_hidden_layers": 2, "intermediate_size": 41}
LLAMA = {"vocab_size": VOCAB, "max_position_embeddings": 64, "num_hidden_layers": 2, "intermediate_size": 41}
T5 = {"vocab_size": VOCAB, "num_layers": 2, "d_ff": 41, "decoder_start_token_id": 0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 3.0,
}
PARTLY = {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.4}

ONE_STACK = {
    "gpt2, 3 heads": lambda: GPT2LMHeadModel(GPT2Config(**GPT2, n_embd=21, n_head=3)),
    "gpt2, relu, untied": lambda: GPT2LMHeadModel(
        GPT2Config(
            **GPT2, n_embd=20, n_head=5, n_inner=31, activation_function="relu", tie_word_embeddings=False
        )
    ),
    "gpt2, bare": lambda: GPT2Model(GPT2Config(**GPT2, n_embd=14, n_head=7)),
    "bert, masked": lambda: BertForMaskedLM(BertConfig(**BERT, hidden_size=21, num_attention_heads=3)),
    "bert, pooled": lambda: BertModel(
        BertConfig(**BERT, hidden_size=20, num_attention_heads=5, hidden_act="gelu_new")
    ),
    "llama, multi-head": lambda: LlamaForCausalLM(
        LlamaConfig(**LLAMA, hidden_size=30, num_attention_heads=5, num_key_value_heads=5, head_dim=6)
    ),
    "llama, grouped, tied": lambda: LlamaForCausalLM(
        LlamaConfig(
            **LLAMA, hidden_size=24, num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True
        )
    ),
    "llama, multi-query, biased": lambda: LlamaForCausalLM(
        LlamaConfig(
            **LLAMA,
            hidden_size=21,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=10,
            attention_bias=True,
            mlp_bias=True,
        )
    ),
    "llama, stretched": lambda: LlamaForCausalLM(
        LlamaConfig(
            **LLAMA, hidden_size=24, num_attention_heads=3, num_key_value_heads=3, rope_parameters=LLAMA3
        )
    ),
    "mistral, window": lambda: MistralForCausalLM(
        MistralConfig(
            **LLAMA,
            hidden_size=24,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=4,
            sliding_window=5,
        )
    ),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**LLAMA, hidden_size=24, num_attention_heads=6, num_key_value_heads=3)
    ),
    "llama, yarn": lambda: LlamaForCausalLM(
        LlamaConfig(
            **LLAMA, hidden_size=24, num_attention_heads=3, num_key_value_heads=3, rope_parameters=YARN
        )
    ),
    "llama, dynamic": lambda: LlamaForCausalLM(
        LlamaConfig(
            **{**LLAMA, "max_position_embeddings": 7},
            hidden_size=24,
            num_attention_heads=3,
            num_key_value_heads=3,
            rope_parameters={"rope_type": "dynamic", "rope_theta": 300.0, "factor": 3.0},
        )
    ),
    "qwen3, grouped": lambda: Qwen3ForCausalLM(
        Qwen3Config(**LLAMA, hidden_size=21, num_attention_heads=6, num_key_value_heads=3, head_dim=10)
    ),
    "qwen3, windows above, yarn, biased": lambda: Qwen3ForCausalLM(
        Qwen3Config(
            **{**LLAMA, "num_hidden_layers": 3},
            hidden_size=24,
            num_attention_heads=5,
            num_key_value_heads=5,
            head_dim=6,
            use_sliding_window=True,
            sliding_window=4,
            max_window_layers=1,
            attention_bias=True,
            tie_word_embeddings=True,
            rope_parameters=YARN,
        )
    ),
    "gemma3, layer types, two bases, stretched": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **{**LLAMA, "num_hidden_layers": 4},
            hidden_size=20,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
            sliding_window=3,
            query_pre_attn_scalar=11,
            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            rope_parameters={
                "full_attention": {"rope_type": "linear", "rope_theta": 700.0, "factor": 2.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            },
        )
    ),
    "gemma3, every layer sees all, capped logits": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **LLAMA,
            hidden_size=21,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=8,
            layer_types=["full_attention"] * 2,
            final_logit_softcapping=2.5,
            tie_word_embeddings=False,
        )
    ),
    "gemma2, softcaps": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **{**LLAMA, "num_hidden_layers": 3},
            hidden_size=20,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
            sliding_window=4,
            query_pre_attn_scalar=7,
            attn_logit_softcapping=1.5,
            final_logit_softcapping=3.0,
        )
    ),
    "gpt_neox, parallel, part of a head turns": lambda: GPTNeoXForCausalLM(
        GPTNeoXConfig(**LLAMA, hidden_size=30, num_attention_heads=3, rope_parameters=PARTLY)
    ),
    "gpt_neox, one after the other, tied": lambda: GPTNeoXForCausalLM(
        GPTNeoXConfig(
            **LLAMA,
            hidden_size=20,
            num_attention_heads=5,
            use_parallel_residual=False,
            attention_bias=False,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 1.0},
        )
    ),
}
BOTH_STACKS = {
    "t5, relu, tied": lambda: T5ForConditionalGeneration(T5Config(**T5, d_model=21, d_kv=5, num_heads=3)),
    "t5, deeper decoder": lambda: T5ForConditionalGeneration(
        T5Config(**T5, d_model=21, d_kv=5, num_heads=3, num_decoder_layers=3)
    ),
    "t5, gated": lambda: T5ForConditionalGeneration(
        T5Config(
            **T5,
            d_model=24,
            d_kv=8,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            relative_attention_num_buckets=14,
            relative_attention_max_distance=11,
        )
    ),
}


@pytest.fixture
def pair(tmp_path):
    """Saves a model of theirs, loads it with theirs and ours."""

    def both(make):
        torch.manual_seed(11)
        theirs = make().eval()
        for (
            parameter
        ) in theirs.parameters():  # biases and norms start at 0 and 1: give them something to get wrong
            parameter.data += 0.05 * torch.randn_like(parameter)
        theirs.tie_weights()
        theirs.save_pretrained(tmp_path / "published")
        return theirs, load(tmp_path / "published")

    return both


def close(ours, theirs):
    """fp32, relative to the scale of what is compared."""
    scale = theirs.abs().max().clamp(min=1.0)
    difference = float((ours - theirs).abs().max() / scale)
    assert difference <= 1e-4, difference


@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("name", ONE_STACK)
@torch.no_grad()
def test_one_stack_gives_the_same_hidden_states_and_logits(pair, name, padding):
    """Every layer's hidden states and the logits are theirs, wherever the padding stands."""
    theirs, ours = pair(ONE_STACK[name])
    tokens = torch.randint(3, VOCAB, (3, 13))
    key_mask = torch.ones(3, 13, dtype=torch.bool)
    if padding == "right":
        key_mask[1, 9:] = key_mask[2, 5:] = False
    elif padding == "left":
        key_mask[1, :4] = key_mask[2, :8] = False
    positions = (key_mask.long().cumsum(-1) - 1).clamp(min=0)
    expected = theirs(
        input_ids=tokens, attention_mask=key_mask.long(), position_ids=positions, output_hidden_states=True
    )
    got = ours.model(tokens, key_mask=key_mask, return_layers=True)
    assert len(got.layers) == len(expected.hidden_states)
    for mine, other in zip(got.layers, expected.hidden_states, strict=True):
        close(mine[key_mask], other[key_mask])
    if hasattr(expected, "logits"):
        close(got.logits[key_mask], expected.logits[key_mask])
    if padding != "left" and getattr(expected, "pooler_output", None) is not None:
        close(got.pooled, expected.pooler_output)


@pytest.mark.parametrize("name", [name for name in ONE_STACK if "bert" not in name and "bare" not in name])
@torch.no_grad()
def test_decoders_with_a_cache_give_the_logits_of_the_whole_text(pair, name):
    """Fed in pieces of any size through the cache, a decoder says what transformers says at once."""
    theirs, ours = pair(ONE_STACK[name])
    tokens = torch.randint(3, VOCAB, (2, 13))
    expected = theirs(input_ids=tokens).logits
    cache = ours.model.new_cache()
    steps = tokens.split([5, 1, 3, 1, 1, 2], dim=1)
    pieces = [ours.model(piece, cache=cache).logits for piece in steps]
    if "dynamic" in name:  # keys stay as they were turned when the text was shorter: theirs too
        expected, past = [], None
        for piece in steps:
            out = theirs(input_ids=piece, past_key_values=past, use_cache=True)
            expected, past = [*expected, out.logits], out.past_key_values
        expected = torch.cat(expected, dim=1)
    close(torch.cat(pieces, dim=1), expected)


@pytest.mark.parametrize("name", BOTH_STACKS)
@torch.no_grad()
def test_t5_gives_the_same_logits_and_memory(pair, name):
    """Encoder, decoder and cross-attention agree with padding in the source and with the cache."""
    theirs, ours = pair(BOTH_STACKS[name])
    source, target = torch.randint(3, VOCAB, (3, 17)), torch.randint(3, VOCAB, (3, 7))
    key_mask = torch.ones(3, 17, dtype=torch.bool)
    key_mask[1, 11:] = key_mask[2, :4] = False
    expected = theirs(input_ids=source, attention_mask=key_mask.long(), decoder_input_ids=target)
    got = ours.model(source, target, key_mask=key_mask)
    close(got.memory[key_mask], expected.encoder_last_hidden_state[key_mask])
    close(got.logits, expected.logits)
    cache = ours.model.new_cache()
    steps = [
        ours.model(None, token[:, None], key_mask=key_mask, memory=got.memory, cache=cache).logits
        for token in target.unbind(1)
    ]
    close(torch.cat(steps, dim=1), expected.logits)


def continued(row, eos):
    """What was generated, up to and without the stop token."""
    row = row.tolist()
    return tuple(row[: row.index(eos)] if eos in row else row)


@pytest.mark.parametrize(("n_beam", "length_penalty"), [(1, 1.0), (3, 1.0), (4, 2.0), (5, 0.3)])
@pytest.mark.parametrize(
    "name", ["t5, relu, tied", "t5, gated"]
)  # theirs cannot generate with unequal stacks
@torch.no_grad()
def test_t5_generates_what_transformers_generates(pair, name, n_beam, length_penalty):
    """Greedy and beam search find the same answers to sources of different lengths."""
    theirs, ours = pair(BOTH_STACKS[name])
    source = torch.randint(3, VOCAB, (3, 11))
    key_mask = torch.ones(3, 11, dtype=torch.bool)
    key_mask[1, 6:] = False
    expected = theirs.generate(
        input_ids=source,
        attention_mask=key_mask.long(),
        max_new_tokens=12,
        num_beams=n_beam,
        length_penalty=length_penalty,
        do_sample=False,
    )
    rows = [row[mask].tolist() for row, mask in zip(source, key_mask, strict=True)]
    got = generate(ours, rows, max_new=12, n_beam=n_beam, length_penalty=length_penalty)
    assert got.tokens == tuple(continued(row[1:], 1) for row in expected)


@pytest.mark.parametrize(("n_beam", "penalty"), [(1, 1.0), (1, 1.7), (3, 1.0)])
@pytest.mark.parametrize("name", ["gpt2, 3 heads", "llama, grouped, tied", "mistral, window"])
@torch.no_grad()
def test_decoders_generate_what_transformers_generates(pair, name, n_beam, penalty):
    """Prompts of different lengths, padded on the left, go on as in transformers."""
    theirs, ours = pair(ONE_STACK[name])
    prompts = [torch.randint(3, VOCAB, (length,)).tolist() for length in (5, 2, 7)]
    ids = torch.tensor([[0] * (7 - len(row)) + row for row in prompts])
    expected = theirs.generate(
        input_ids=ids,
        attention_mask=torch.tensor([[0] * (7 - len(row)) + [1] * len(row) for row in prompts]),
        max_new_tokens=12,
        num_beams=n_beam,
        repetition_penalty=penalty,
        do_sample=False,
        eos_token_id=2,
        pad_token_id=2,
    )
    got = generate(ours, prompts, max_new=12, n_beam=n_beam, repetition_penalty=penalty, stop=[2])
    if penalty != 1.0:  # theirs counts the padding as already said
        got_alone = generate(ours, [prompts[2]], max_new=12, repetition_penalty=penalty, stop=[2])
        assert got.tokens[2] == got_alone.tokens[0] == continued(expected[2, 7:], 2)
        return
    assert got.tokens == tuple(continued(row[7:], 2) for row in expected)


@pytest.mark.parametrize("name", [*ONE_STACK, *BOTH_STACKS])
@torch.no_grad()
def test_what_we_save_transformers_loads(pair, name, tmp_path):
    """A folder written by `save` gives transformers the model it came from."""
    theirs, ours = pair((ONE_STACK | BOTH_STACKS)[name])
    save(ours, tmp_path / "ours")
    again, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    state = again.state_dict()
    for key, tensor in theirs.state_dict().items():
        # Gemma's files hold a norm's gain less 1: ours is 1 + that in float32, which rounds.
        rounded = "gemma" in name and "norm" in key
        torch.testing.assert_close(state[key], tensor, rtol=0, atol=2**-24 if rounded else 0)
    assert load(tmp_path / "ours").model.config == ours.model.config


@pytest.mark.parametrize(("full", "n_layer"), [(0, 2), (2, 2)], ids=["all windowed", "none windowed"])
def test_the_windows_of_qwen2_begin_where_its_config_says(full, n_layer):
    """`max_window_layers`: layers below it see everything; a mixture is refused, not windowed whole."""
    config = Qwen2Config(
        vocab_size=61, hidden_size=24, intermediate_size=31, num_hidden_layers=n_layer, num_attention_heads=3,
        num_key_value_heads=3, use_sliding_window=True, sliding_window=3, max_window_layers=full,
    )  # fmt: skip
    published = config.to_dict()
    assert (FAMILIES["llama"].config(published).block.window == 3) == (full == 0)
    with pytest.raises(UnsupportedError, match="max_window_layers=1 of 2"):
        FAMILIES["llama"].config({**published, "max_window_layers": 1})
