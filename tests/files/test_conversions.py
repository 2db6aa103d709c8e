"""Weights in formats of their own, by hand and against the models of transformers that they become."""

import base64
import json
import struct
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from regard.errors import LoadError
from regard.files import conversions
from regard.files.loading import load

CLIP = Path(conversions.__file__).parent / "pocket" / "speech.wav"


def ct2_file(variables, aliases=(), version=6):
    """CTranslate2's model.bin, as its own writer makes it."""

    def text(word):
        return struct.pack("<H", len(word) + 1) + word.encode() + b"\0"

    data = struct.pack("<I", version) + text("TransformerSpec") + struct.pack("<II", 7, len(variables))
    for name, (tensor, kind) in variables.items():
        array = tensor.numpy()
        data += text(name) + struct.pack("<B", array.ndim) + struct.pack(f"<{array.ndim}I", *array.shape)
        data += struct.pack("<BI", kind, array.nbytes) + array.tobytes()
    return data + struct.pack("<I", len(aliases)) + b"".join(text(a) + text(b) for a, b in aliases)


def test_eight_bit_rows_are_divided_by_their_factor_by_hand():
    """A matrix stored as 64 and -127 with factor 127 is 0.504 and -1; an alias is the same tensor."""
    stored = torch.tensor([[64, -127], [10, 20]], dtype=torch.int8)
    scale = torch.tensor([127.0, 10.0])
    data = ct2_file({"a/weight": (stored, 1), "a/weight_scale": (scale, 0)}, [("b/weight", "a/weight")])
    read = conversions.read_ctranslate2(data)
    torch.testing.assert_close(read["a/weight"], torch.tensor([[64 / 127, -1.0], [1.0, 2.0]]))
    assert read["b/weight"] is read["a/weight"]
    assert set(read) == {"a/weight", "b/weight"}


@pytest.mark.parametrize("cut", [3, 20, 40, -1])
def test_a_damaged_file_of_ctranslate2_is_refused(cut):
    """A file cut short anywhere, or of another version, is a load error."""
    data = ct2_file({"a/weight": (torch.zeros(3, 5), 0)}, [("b", "a/weight")])
    with pytest.raises(LoadError):
        conversions.read_ctranslate2(data[:cut])
    with pytest.raises(LoadError, match="version 5"):
        conversions.read_ctranslate2(ct2_file({}, version=5))


def test_a_token_of_tiktoken_was_made_of_two_earlier_ones():
    """The merges that ranks imply give back every token, and a text as byte-level BPE cuts it."""
    words = [b"a", b"b", b"c", b" ", b"ab", b"abc", b" a", b" ab"]
    text = "\n".join(f"{base64.b64encode(word).decode()} {rank}" for rank, word in enumerate(words))
    tokenizer = conversions._tiktoken(text)
    assert tokenizer.encode("abc ab").ids == [words.index(b"abc"), words.index(b" ab")]
    ids = tokenizer.get_vocab(with_added_tokens=True)
    assert ids["<|endoftext|>"] == 8
    assert ids["<|startoftranscript|>"] == 9
    assert ids["<|notimestamps|>"] == 9 + 99 + 6
    assert ids["<|30.00|>"] == ids["<|0.00|>"] + 1500


def test_names_of_whispers_tensors_are_those_of_transformers(tmp_path, monkeypatch):
    """OpenAI's names of a tiny twin, converted, fill transformers' model: its scores are the same."""
    config = transformers.WhisperConfig(
        vocab_size=1616, num_mel_bins=80, d_model=12, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=48, decoder_ffn_dim=48,
        max_source_positions=1500, max_target_positions=448, bos_token_id=1, eos_token_id=1, pad_token_id=1,
        decoder_start_token_id=2, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    state = {}
    for name, tensor in model.state_dict().items():
        if name == "proj_out.weight":
            continue
        for theirs, openai in BACKWARDS:
            name = name.replace(theirs, openai)
        state[name.removeprefix("model.")] = tensor
    sizes = {"n_mels": 80, "n_audio_ctx": 1500, "n_audio_state": 12, "n_audio_head": 3, "n_audio_layer": 1}
    sizes |= {"n_vocab": 1616, "n_text_ctx": 448, "n_text_state": 12, "n_text_head": 3, "n_text_layer": 1}
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir(), target.mkdir()
    torch.save({"dims": sizes, "model_state_dict": state}, source / "tiny.en.pt")
    letters = [bytes([byte]) for byte in range(8)]
    ranks = "\n".join(f"{base64.b64encode(word).decode()} {rank}" for rank, word in enumerate(letters))
    (source / "gpt2.tiktoken").write_text(ranks)
    conversions.whisper(source, target)
    loaded = load(target)
    features, ids = torch.randn(1, 80, 3000), torch.tensor([[2, 5, 3]])
    ours = loaded.model.inner(input_features=features, decoder_input_ids=ids).logits
    torch.testing.assert_close(ours, model(input_features=features, decoder_input_ids=ids).logits)


BACKWARDS = (
    (".encoder_attn_layer_norm.", ".cross_attn_ln."), (".self_attn_layer_norm.", ".attn_ln."),
    (".final_layer_norm.", ".mlp_ln."), (".encoder_attn.", ".cross_attn."), (".self_attn.", ".attn."),
    (".layers.", ".blocks."), (".fc1.", ".mlp.0."), (".fc2.", ".mlp.2."), (".q_proj.", ".query."),
    (".k_proj.", ".key."), (".v_proj.", ".value."), (".out_proj.", ".out."),
    ("encoder.layer_norm.", "encoder.ln_post."), ("decoder.layer_norm.", "decoder.ln."),
    (".embed_tokens.", ".token_embedding."), (".embed_positions.weight", ".positional_embedding"),
)  # fmt: skip


def test_a_reaction_is_cut_into_atoms_and_bonds(tmp_path):
    """Br and Cl are one atom, a bracket is one, the arrow is one token; ids are those of the list."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir(), target.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "C", "c", "Br", "Cl", "[Na+]", "(", ")", ">>", "1"]
    (source / "vocab.txt").write_text("\n".join(words))
    config = transformers.AlbertConfig(
        vocab_size=len(words), embedding_size=7, hidden_size=16, num_attention_heads=2, intermediate_size=11
    )
    torch.manual_seed(0)
    model = transformers.AlbertForMaskedLM(config)
    torch.save(model.state_dict(), source / "pytorch_model.bin")
    (source / "config.json").write_text(
        json.dumps({**config.to_dict(), "architectures": ["AlbertForMaskedLM"]})
    )
    conversions.rxnmapper(source, target)
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    cut = tokenizer.encode("CBr(Cl)c1[Na+]>>CX").tokens
    assert cut == ["[CLS]", "C", "Br", "(", "Cl", ")", "c", "1", "[Na+]", ">>", "C", "[SEP]"]
    assert load(target).facts.family == "albert"


# --- the real ones


@pytest.mark.slow
def test_whisper_hears_the_words_of_the_clip():
    """The shipped clip, made by a synthesiser: most of its words are heard, in their order and in time."""
    from regard import trace

    loaded = load("whisper-tiny")
    assert loaded.facts.licence == "MIT"
    heard = trace(loaded, CLIP)
    words = [token.strip().lower() for token in heard.tokens[0]]
    wanted = "animal did not cross the street because it was too tired".split()
    start = words.index("animal")
    assert words[start : start + len(wanted)] == wanted


@pytest.mark.slow
def test_opus_translates_by_greedy_and_by_beam():
    """A sentence that has one good translation."""
    from regard import generate

    loaded = load("opus-zh-en")
    assert loaded.facts.licence == "CC-BY-4.0"
    assert generate(loaded, "我喜欢猫。", max_new=20).texts == ("I like cats.",)
    assert generate(loaded, "我喜欢猫。", max_new=20, n_beam=4).texts == ("I like cats.",)


@pytest.mark.slow
def test_rxnmappers_head_maps_the_atoms_of_a_product():
    """Layer 11, head 5, which its authors name, points at atoms of the same element, against chance."""
    from regard import trace

    loaded = load("rxnmapper")
    found = trace(loaded, "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F")
    tokens = found.tokens[0]
    arrow = tokens.index(">>")
    atoms = [at for at, token in enumerate(tokens) if token.strip("[]+-").isalpha() and token[0] != "["]
    reactants = [at for at in atoms if at < arrow]
    products = [at for at in atoms if at > arrow]
    weights = found.weights(11, 5)
    pointed = [reactants[int(weights[at, reactants].argmax())] for at in products]
    same = sum(tokens[at].lower() == tokens[to].lower() for at, to in zip(products, pointed, strict=True))
    assert same == len(products)
    assert len(set(pointed)) == len(products)
