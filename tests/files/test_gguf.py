"""GGUF files: the checkpoint comes back, and no damaged header gets past its checks."""

import struct

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from tiny_gguf import HEAD_DIM, MODEL_DIM, damaged, llama_weights, write_llama

from regard.errors import LoadError
from regard.files import gguf as gguf_header
from regard.files import raw as files
from regard.files.loading import load


def test_a_gguf_file_gives_the_checkpoint_it_was_made_from(tmp_path):
    """Names, shapes, config and numbers are Hugging Face's again, q and k in their half-split order."""
    raw = files.read(write_llama(tmp_path / "tiny.gguf"))
    expected = llama_weights()
    assert set(raw.tensors) == set(expected)
    for name, values in expected.items():
        assert raw.tensors[name].shape == values.shape
        assert raw.tensors[name].read().equal(torch.from_numpy(values)), name
    assert raw.config["head_dim"] == HEAD_DIM
    assert raw.config["rms_norm_eps"] == 1e-5
    assert raw.config["rope_theta"] == 100000.0
    assert raw.config["tie_word_embeddings"] is True
    assert raw.licence == "mit"
    assert raw.quantisation is None


# Half a step of each grid, as a part of the largest number of a block.
@pytest.mark.parametrize(
    ("kind", "step", "words"),
    [
        (Kind.F16, 2**-11, None),
        (Kind.BF16, 2**-8, None),
        (Kind.Q8_0, 1 / 127, "Q8_0 (8-bit)"),
        (Kind.Q4_0, 1 / 8, "Q4_0 (4-bit)"),
        (Kind.Q4_1, 2 / 15, "Q4_1 (4-bit)"),
        (Kind.Q5_1, 2 / 31, "Q5_1 (5-bit)"),
    ],
)
def test_quantised_weights_are_within_one_step_of_what_they_were(tmp_path, kind, step, words):
    """Each number is at most one step of its block's grid from the number that was stored."""
    raw = files.read(write_llama(tmp_path / "tiny.gguf", kind))
    assert raw.quantisation == words
    stored = {tensor.stored_as for tensor in raw.tensors.values() if len(tensor.shape) > 1}
    assert stored == {kind.name}
    name = "model.layers.1.mlp.down_proj.weight"
    before, after = torch.from_numpy(llama_weights()[name]), raw.tensors[name].read()
    assert not before.equal(after)
    largest = before.view(-1, 32).abs().amax(-1, keepdim=True)
    assert ((before - after).view(-1, 32).abs() <= step * largest * 1.01).all()


@pytest.mark.parametrize("kind", "F16 BF16 Q8_0 Q4_0 Q4_1 Q4_K Q5_K Q6_K".split())
def test_random_blocks_are_read_as_the_gguf_library_reads_them(tmp_path, monkeypatch, kind):
    """Blocks of random bytes, read a few rows at a time, are the library's numbers, to the bit."""
    storage = Kind[kind]
    length, n_bytes = gguf.GGML_QUANT_SIZES[storage]
    rows, blocks = 11, 256 // length * 3
    stored = np.random.default_rng(7).integers(0, 256, (rows, blocks * n_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):  # random scales overflow
        expected = gguf.quants.dequantize(stored, storage)
    path = tmp_path / "blocks.gguf"
    path.write_bytes(bytes(5) + stored.tobytes())
    monkeypatch.setattr(gguf_header, "CHUNK_ELEMENTS", 4 * blocks * length)
    tensor = gguf_header.gguf_tensor(path, "x", (rows, blocks * length), storage, start=5)
    np.testing.assert_array_equal(tensor.read().numpy(), expected)


def test_q4_1_is_scale_times_nibble_plus_minimum(tmp_path):
    """A block worked by hand: scale 0.5, minimum -2, nibbles 0 to 15 low then high."""
    block = (
        np.float16(0.5).tobytes() + np.float16(-2).tobytes() + bytes(i | ((15 - i) << 4) for i in range(16))
    )
    path = tmp_path / "block"
    path.write_bytes(b"skip" + block)
    got = gguf_header.gguf_tensor(path, "x", (1, 32), Kind.Q4_1, start=4).read()
    assert got.tolist() == [[i * 0.5 - 2 for i in range(16)] + [(15 - i) * 0.5 - 2 for i in range(16)]]


def test_reading_in_chunks_changes_nothing(tmp_path, monkeypatch):
    """A tensor dequantised a row at a time is the tensor dequantised at once."""
    path = write_llama(tmp_path / "tiny.gguf", Kind.Q4_1)
    name = "model.layers.0.mlp.up_proj.weight"
    whole = files.read(path).tensors[name].read()
    monkeypatch.setattr(gguf_header, "CHUNK_ELEMENTS", 7 * MODEL_DIM)
    assert files.read(path).tensors[name].read().equal(whole)


def test_a_gpt2_gguf_file_gives_linear_weights_the_way_gpt2_has_them(tmp_path):
    """GPT-2's checkpoints hold linear weights as (in, out), GGUF as (out, in)."""
    writer = gguf.GGUFWriter(tmp_path / "gpt2.gguf", "gpt2")
    for key, value in {
        "block_count": 1,
        "context_length": 13,
        "embedding_length": 6,
        "feed_forward_length": 17,
    }.items():
        writer.add_uint32(f"gpt2.{key}", value)
    writer.add_uint32("gpt2.attention.head_count", 3)
    writer.add_float32("gpt2.attention.layer_norm_epsilon", 1e-5)
    stored = {"token_embd.weight": (11, 6), "position_embd.weight": (13, 6), "blk.0.attn_qkv.weight": (18, 6)}
    values = {
        name: np.random.default_rng(3).standard_normal(shape).astype("f4") for name, shape in stored.items()
    }
    for name, value in values.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    raw = files.read(tmp_path / "gpt2.gguf")
    assert raw.tensors["transformer.h.0.attn.c_attn.weight"].shape == (6, 18)
    read = {name: tensor.read().numpy() for name, tensor in raw.tensors.items()}
    np.testing.assert_array_equal(
        read["transformer.h.0.attn.c_attn.weight"], values["blk.0.attn_qkv.weight"].T
    )
    np.testing.assert_array_equal(read["transformer.wpe.weight"], values["position_embd.weight"])
    assert raw.config["n_positions"] == 13
    assert raw.config["n_inner"] == 17


def write_gguf(path, architecture, values, tensors):
    writer = gguf.GGUFWriter(path, architecture)
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for key, value in values.items():
        kinds[type(value)](f"{architecture}.{key}", value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.detach().float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_COMMON = {
    "embed_tokens": "token_embd", "embed_in": "token_embd", "norm": "output_norm",
    "final_layer_norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_GEMMA = {
    **_COMMON, "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_SIZES = {"vocab_size": 41, "hidden_size": 20, "num_hidden_layers": 2, "num_attention_heads": 5}
_SIZES |= {"intermediate_size": 31, "max_position_embeddings": 64}


@pytest.mark.parametrize("architecture", ["qwen3", "gemma3", "gptneox"])
@torch.no_grad()
def test_gguf_files_of_newer_families_give_the_logits_of_transformers(tmp_path, architecture):
    """As llama.cpp lays them out: Gemma's gains themselves, GPT-NeoX's q, k and v one after another."""
    torch.manual_seed(5)
    values = {"embedding_length": 20, "block_count": 2, "attention.head_count": 5, "context_length": 64}
    values |= {"feed_forward_length": 31, "rope.freq_base": 700.0}
    names, n_head = _COMMON, 5
    if architecture == "gptneox":
        rope = {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.5}
        theirs = transformers.GPTNeoXForCausalLM(
            transformers.GPTNeoXConfig(**_SIZES, rope_parameters=rope, use_parallel_residual=False)
        )
        values |= {"rope.dimension_count": 2, "attention.layer_norm_epsilon": 1e-5}
        values |= {"use_parallel_residual": False}
    else:
        sizes = {**_SIZES, "num_key_value_heads": 1, "head_dim": 6}
        values |= {"attention.head_count_kv": 1, "attention.key_length": 6}
        values |= {"attention.layer_norm_rms_epsilon": 1e-6}
        rope = {"rope_type": "default", "rope_theta": 700.0}
        if architecture == "qwen3":
            theirs = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, rope_parameters=rope))
        else:
            names = _GEMMA
            rope = {"full_attention": rope, "sliding_attention": {**rope, "rope_theta": 10_000.0}}
            sizes |= {"num_hidden_layers": 7, "query_pre_attn_scalar": 6, "sliding_window": 3}
            values |= {"block_count": 7, "attention.sliding_window": 3}
            config = transformers.Gemma3TextConfig(**sizes, rope_parameters=rope)
            theirs = transformers.Gemma3ForCausalLM(config)
    theirs.eval()
    tensors = {}
    for name, tensor in theirs.state_dict().items():
        if name == "lm_head.weight" and theirs.config.tie_word_embeddings:
            continue
        tensor = tensor + 0.05 * torch.randn_like(tensor)
        theirs.get_parameter(name).copy_(tensor)
        module, kind = name.removeprefix("model.").removeprefix("gpt_neox.").rsplit(".", 1)
        layer, _, inner = module.removeprefix("layers.").partition(".")
        module = f"blk.{layer}.{names[inner]}" if module.startswith("layers.") else names[module]
        if architecture == "gemma3" and "norm" in module:
            tensor = tensor + 1
        if module.endswith("attn_qkv"):
            tensor = torch.cat(tensor.unflatten(0, (n_head, 3, -1)).unbind(1)).flatten(0, 1)
        tensors[f"{module}.{kind}"] = tensor
    theirs.tie_weights()
    ours = load(write_gguf(tmp_path / "tiny.gguf", architecture, values, tensors)).model
    ids = torch.randint(41, (2, 11))
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"llama__block_count": 10**9}, "num_hidden_layers must be from 0 to 20. Got 1000000000"),
        ({"llama__embedding_length": 2**31}, "hidden_size must be from 1 to"),
        ({"llama__attention__head_count": 0}, "head_count 0: it must be a positive"),
        ({"llama__attention__head_count": None}, "head_count None: it must be a positive"),
        ({"llama__attention__head_count": 5}, "do not split into pairs in 5 heads"),
        ({"llama__attention__head_count": [3, 3]}, "it must be a positive whole number"),
        ({"llama__rope__dimension_count": 16}, "rotates 16 of 32"),
        ({"llama__rope__scaling__type": "yarn"}, "in the way 'yarn'"),
        ({"llama__rope__freq_base": float("nan")}, "freq_base nan"),
        ({"llama__rope__freq_base": "x"}, "freq_base x"),
        ({"extra": {"rope_freqs.weight": np.ones(7, "f4")}}, "Scaled rotary frequencies"),
        ({"extra": {"blk.0.strange.weight": np.ones(7, "f4")}}, "do not have: 'blk.0.strange.weight'"),
        ({"general__alignment": 24}, "power of two"),
    ],
)
def test_gguf_metadata_that_make_no_model_are_refused_with_the_reason(tmp_path, changes, words):
    """Each kind of contradiction is said in words."""
    path = tmp_path / "tiny.gguf"
    write_llama(path, **changes)
    with pytest.raises(LoadError, match=words):
        load(path)


# --- headers written byte by byte


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(n_tensor: int, n_entry: int, body: bytes = b"", version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, n_tensor, n_entry) + body


def tensor(name: bytes, dims: list[int], kind: int = 0, offset: int = 0, n_dim: int | None = None) -> bytes:
    count = len(dims) if n_dim is None else n_dim
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


HUGE = 2**63 + 5
ARRAY_OF = {kind: struct.pack("<II", 9, kind) for kind in (0, 8, 9, 77)}
TAIL = bytes(4096)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "smallest GGUF file has 24"),
        (header(0, 0)[:23], "smallest GGUF file has 24"),
        (header(0, 0, magic=b"GGML"), "starts with b'GGML'"),
        (header(0, 0, version=1), "version 1"),
        (header(0, 0, version=4), "version 4"),
        (header(0, 0, version=3 << 24), "big-endian"),
        (header(HUGE, 0) + TAIL, "claims 9223372036854775813 tensors"),
        (header(2**19, 0) + TAIL, "0 metadata entries and 524288 tensors would take"),
        (header(0, HUGE) + TAIL, "would take"),
        (header(0, 1, struct.pack("<Q", HUGE)) + TAIL, "would take 9223372036854775813 bytes"),
        (header(0, 1, struct.pack("<Q", 60_000)) + TAIL, "would take 60000 bytes"),
        (header(0, 1, struct.pack("<Q", 70_000)) + bytes(80_000), "may have 65536"),
        (header(0, 1, text(b"\xff\xff") + struct.pack("<I", 4)) + TAIL, "is not UTF-8"),
        (header(0, 1, text(b"k") + struct.pack("<I", 13)) + TAIL, "value type 13"),
        (
            header(0, 1, text(b"k") + struct.pack("<IQ", 8, HUGE)) + TAIL,
            "would take 9223372036854775813 bytes",
        ),
        (header(0, 1, text(b"k") + ARRAY_OF[0] + struct.pack("<Q", HUGE)) + TAIL, "would take"),
        (header(0, 1, text(b"k") + ARRAY_OF[8] + struct.pack("<Q", HUGE)) + TAIL, "it may have 4194304"),
        (
            header(0, 1, text(b"k") + ARRAY_OF[8] + struct.pack("<Q", 10**6)) + TAIL,
            "would take 8000000 bytes",
        ),
        (header(0, 1, text(b"k") + ARRAY_OF[77] + struct.pack("<Q", 5)) + TAIL, "value type 77"),
        (
            header(
                0, 1, text(b"k") + (ARRAY_OF[9] + struct.pack("<Q", 1))[:4] + (struct.pack("<IQ", 9, 1)) * 9
            )
            + TAIL,
            "nests",
        ),
        (
            header(0, 1, text(b"k") + ARRAY_OF[8] + struct.pack("<QQ", 2, HUGE)) + TAIL,
            "item 0 of .* would take 9223372036854775813 bytes",
        ),
        (
            header(0, 1, text(b"k") + ARRAY_OF[8] + struct.pack("<Q", 3) + text(bytes(20))),
            "item 1 of .* would take 8 bytes",
        ),
        (
            header(0, 1, text(b"k") + ARRAY_OF[8] + struct.pack("<Q", 1) + text(b"\xff")) + TAIL,
            "item 0 .* not UTF-8",
        ),
        (header(0, 2, (text(b"k") + struct.pack("<IB", 0, 1)) * 2) + TAIL, "'k' occurs twice"),
        (header(1, 0, tensor(b"t", [3], n_dim=5)) + TAIL, "has 5 dimensions"),
        (header(1, 0, tensor(b"t", [3], n_dim=2**31)) + TAIL, "dimensions"),
        (header(1, 0, tensor(b"t", [])) + TAIL, "has 0 dimensions"),
        (header(1, 0, tensor(b"t", [3, 0])) + TAIL, "holds nothing"),
        (header(1, 0, tensor(b"t", [2**62, 2**62, 2**62, 2**62])) + TAIL, "cut short"),
        (header(1, 0, tensor(b"t", [2**32, 2**32])) + TAIL, "cut short"),
        (header(1, 0, tensor(b"t", [3], kind=999)) + TAIL, "storage type 999"),
        (header(1, 0, tensor(b"t", [33], kind=int(Kind.Q4_1))) + TAIL, "blocks of 32"),
        (header(1, 0, tensor(b"t", [3], offset=7)) + TAIL, "no multiple of 32"),
        (header(1, 0, tensor(b"t", [3], offset=2**63)) + TAIL, "cut short"),
        (header(1, 0, tensor(b"t", [5000])) + TAIL, "cut short"),
        (header(2, 0, tensor(b"t", [3]) * 2) + TAIL, "'t' occurs twice"),
        (header(2, 0, tensor(b"t", [99]) + tensor(b"u", [99], offset=32)) + TAIL, "overlap"),
        (header(0, 0) + TAIL, "architecture 'None'"),
    ],
)
def test_an_absurd_gguf_header_is_refused_with_the_reason(tmp_path, data, words):
    """Counts, lengths, types and places that cannot be are refused before anything is allocated."""
    path = tmp_path / "absurd.gguf"
    path.write_bytes(data)
    with pytest.raises(LoadError, match=words):
        files.read(path)


def test_a_storage_type_without_a_formula_is_refused(tmp_path):
    """Integers are no weights: the gguf package has no formula that makes them floats."""
    path = write_llama(tmp_path / "tiny.gguf", extra={"blk.0.ids.weight": np.ones(7, "i4")})
    with pytest.raises(LoadError, match="stored as I32, for which the gguf package has no formula"):
        files.read(path)


TOKENIZER = {
    "tokenizer__ggml__model": "gpt2",
    "tokenizer__ggml__pre": "smollm",
    "tokenizer__ggml__tokens": ["a", "b", "ab", "c", "abc", "Ġ", "<|end|>"],
    "tokenizer__ggml__merges": ["a b", "ab c"],
    "tokenizer__ggml__token_type": [1, 1, 1, 1, 1, 1, 3],
    "tokenizer__ggml__eos_token_id": 6,
}


@pytest.mark.parametrize("first_seed", range(0, 400, 50))
def test_a_damaged_gguf_file_loads_or_is_refused(tmp_path, first_seed):
    """Whatever bytes are changed, cut or added, the outcome is tensors of the stated shape or a LoadError."""
    path = write_llama(tmp_path / "tiny.gguf", Kind.Q4_1, n_layer=1, **TOKENIZER)
    whole, n_refused = path.read_bytes(), 0
    for seed in range(first_seed, first_seed + 50):
        path.write_bytes(damaged(whole, seed, header_bytes=1700))
        try:
            raw = files.read(path)
        except LoadError:
            n_refused += 1
            continue
        for lazy in raw.tensors.values():
            assert tuple(lazy.read().shape) == lazy.shape
        if raw.tokenizer is not None:
            raw.tokenizer.decode(raw.tokenizer.encode("abc ab"))
    assert n_refused > 25  # most damage to a header does show


def test_every_cut_of_a_gguf_file_is_refused(tmp_path):
    """A download that stopped anywhere in the header, or in the weights, is not a model."""
    path = write_llama(tmp_path / "tiny.gguf", n_layer=1)
    whole = path.read_bytes()
    for length in [*range(0, 2048, 13), len(whole) // 2, len(whole) - 97]:
        path.write_bytes(whole[:length])
        with pytest.raises(LoadError):
            files.read(path)
