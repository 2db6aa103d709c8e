"""Files of every kind that we read, damaged by the thousand: read rightly, or refused in our own words."""

import json
import os
import shutil

import pytest
import torch
from fuzzing import attack, damaged_bytes, damaged_json, damaged_text
from tiny_gguf import write_llama
from tiny_models import TEXT, target_of, tiny
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from regard.checking.submission import read as read_submission
from regard.experiments import prune, save_pruned
from regard.files.loading import load, save
from regard.files.tokenizer import TextTokenizer
from regard.models.families import FAMILIES, initialise
from regard.models.transformer import Transformer
from regard.tracing.layers import LayerTrace
from regard.tracing.take import trace
from regard.tracing.traces import Trace
from regard.view.document import documents_of
from regard.view.models import made

SIZES = {
    "vocab": 263, "n_encoder_layer": 2, "n_decoder_layer": 2, "n_position": 29, "block.model_dim": 24,
    "block.n_head": 3, "block.n_kv_head": 1, "block.ff_dim": 17, "block.qk_dim": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each family, one of a pruned model and one of a recurrent one."""
    from dataclasses import replace

    place = tmp_path_factory.mktemp("models")
    loaded = tiny("gpt2")
    for name, family in FAMILIES.items():
        model = initialise(Transformer(family.sized(SIZES)), seed=5).eval()
        save(replace(loaded, model=model, start_token=family.start_token), place / name)
    gpt2 = load(place / "gpt2")
    save_pruned(prune(gpt2, [(0, 1), (1, 0), (1, 2)]), place / "pruned")
    recurrent = made("seq2seq", 0)
    save(replace(loaded, model=recurrent.model), place / "seq2seq")
    return [place / name for name in (*FAMILIES, "pruned", "seq2seq")]


def beside(folder, work, name, content):
    """A folder as that one, in which one file has another content."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    for path in folder.iterdir():
        if path.name != name:
            os.link(path, work / path.name)
    (work / name).write_bytes(content)
    return work


def used(loaded):
    """What a loaded model answers must be numbers."""
    ids = torch.tensor([[1, 2, 3, 250]])
    with torch.no_grad():
        done = loaded.model(ids, ids) if loaded.model.kind == "encoder-decoder" else loaded.model(ids)
    return bool(torch.isfinite(done.hidden).all()) and (
        done.logits is None or bool(torch.isfinite(done.logits).all())
    )


def test_configs(record_property, folders, tmp_path):
    """config.json: a model with finite answers, or a refusal."""

    def case(rng):
        folder = rng.choice(folders)
        content = damaged_text(rng, (folder / "config.json").read_text())
        assert used(load(beside(folder, tmp_path / "work", "config.json", content)))
        return "read"

    attack(record_property, "config.json", case, few=250, many=3_000)


def test_safetensors(record_property, folders, tmp_path):
    """model.safetensors: finite weights, or a refusal."""

    def case(rng):
        folder = rng.choice(folders)
        content = (folder / "model.safetensors").read_bytes()
        size = int.from_bytes(content[:8], "little")
        if rng.random() < 0.5:
            header = json.dumps(damaged_json(rng, json.loads(content[8 : 8 + size])))
            header = header.encode("utf-8", "surrogatepass")
            content = len(header).to_bytes(8, "little") + header + content[8 + size :]
        else:
            content = damaged_bytes(rng, content)
        loaded = load(beside(folder, tmp_path / "work", "model.safetensors", content))
        assert all(bool(torch.isfinite(p).all()) for p in loaded.model.parameters())
        used(loaded)  # weights of 1e38 may well overflow; nothing may be raised
        return "read"

    attack(record_property, "safetensors", case, few=250, many=3_000)


def test_gguf(record_property, tmp_path):
    """GGUF files, with a tokenizer in them."""
    tokens = [*"abcdef", "ab"]
    path = write_llama(
        tmp_path / "whole.gguf",
        tokenizer__ggml__model="gpt2",
        tokenizer__ggml__pre="smollm",
        tokenizer__ggml__tokens=tokens,
        tokenizer__ggml__merges=["a b"],
        tokenizer__ggml__eos_token_id=2,
    )
    whole = path.read_bytes()
    work = tmp_path / "work.gguf"

    def case(rng):
        content = damaged_bytes(rng, whole[:3000])
        work.write_bytes(content + whole[3000:] if rng.random() < 0.8 else damaged_bytes(rng, whole))
        loaded = load(work)
        assert all(bool(torch.isfinite(p).all()) for p in loaded.model.parameters())
        if loaded.tokenizer is not None:
            loaded.tokenizer.decode(loaded.tokenizer.encode("abba"))
        with torch.no_grad():
            loaded.model(torch.tensor([[0, 1, 2]]))
        return "read"

    attack(record_property, "GGUF", case, few=250, many=3_000)


def tokenizers_of_every_kind():
    """Small ones, in the JSON of their library."""
    words = {
        "[UNK]": 0,
        "[CLS]": 1,
        "[SEP]": 2,
        "[MASK]": 3,
        "[PAD]": 4,
        "a": 5,
        "##b": 6,
        "cat": 7,
        "the": 8,
        "é": 9,
    }
    word_piece = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    word_piece.normalizer = normalizers.BertNormalizer()
    word_piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    word_piece.decoder = decoders.WordPiece()
    word_piece.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    unigram = Tokenizer(
        models.Unigram([("<unk>", 0.0), ("▁the", -1.0), ("▁", -2.0), ("c", -3.0), ("at", -4.0)], 0)
    )
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    unigram.add_special_tokens(["<pad>", "</s>"])
    level = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    level.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.Lowercase(), normalizers.Replace("x", "y")]
    )
    level.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    pairs = Tokenizer(
        models.BPE(
            {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "abab": 4}, [("a", "b"), ("ab", "ab")], byte_fallback=True
        )
    )
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel()
    pairs.decoder = decoders.ByteLevel()
    return [kind.to_str() for kind in (word_piece, unigram, level, pairs)]


def test_tokenizers(record_property, tmp_path, capfd):
    """tokenizer.json and the files beside it, then texts and ids through what was read."""
    kinds = tokenizers_of_every_kind()
    named = json.dumps({"unk_token": "[UNK]", "eos_token": {"content": "</s>"}, "bos_token": "a"})

    def case(rng):
        (tmp_path / "tokenizer.json").write_bytes(damaged_text(rng, rng.choice(kinds)))
        map_ = damaged_text(rng, named) if rng.random() < 0.1 else named.encode()
        (tmp_path / "special_tokens_map.json").write_bytes(map_)
        tokenizer = TextTokenizer.from_folder(tmp_path)
        for text in ("the cat sat", "", "é ab \x00 🦊", "x" * 300):
            ids = tokenizer.encode(text)
            tokenizer.decode(ids)
            tokenizer.tokens(ids)
            tokenizer.offsets(text, add_special=False)
        tokenizer.decode([0, 3, 2**31, 5], skip_special=False)
        tokenizer.tokens([0, 10**6, 2**40, -1])
        return "read"

    attack(record_property, "tokenizer.json", case, few=400, many=3_000)
    capfd.readouterr()  # Rust says its panics on stderr


def test_traces(record_property, tmp_path):
    """Trace files, then everything that is asked of a trace."""
    wholes = []
    for family in ("gpt2", "llama", "window", "t5", "linear"):
        path = tmp_path / f"{family}.trace"
        trace(tiny(family), TEXT, **target_of(family, "a cat"), keep_v=True).save(path)
        wholes.append(path.read_bytes())
    wholes.append(
        (Trace.from_weights([[0.5, 0.5], [0.0, 1.0]], rows=["a", "b"]).save(path), path.read_bytes())[1]
    )
    work = tmp_path / "work.trace"

    def case(rng):
        whole = rng.choice(wholes)
        size = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8 : 8 + size])
        if rng.random() < 0.75:
            described = json.loads(header["__metadata__"]["regard-trace"])
            header["__metadata__"]["regard-trace"] = json.dumps(damaged_json(rng, described))
            said = json.dumps(header).encode("utf-8", "surrogatepass")
            work.write_bytes(len(said).to_bytes(8, "little") + said + whole[8 + size :])
        else:
            work.write_bytes(damaged_bytes(rng, whole))
        found = Trace.load(work)
        (tmp_path / "again.trace").unlink(missing_ok=True)
        found.save(tmp_path / "again.trace")
        repr(found)
        for index, layer in enumerate(found.layers):
            found.query_tokens(index)
            found.key_tokens(index)
            found.weights(index, 0)
            found.row(index, layer.n_head - 1, layer.n_query - 1)
            found.column(index, 0, layer.n_key - 1)
            found.pooled(index, None, 3, 3)
            layer.visible(0, slice(None), slice(None))
            if isinstance(layer, LayerTrace):
                layer.score_parts(0, 0, 0)
        for document in documents_of(found):
            json.dumps(document.meta())
            document.facts()
        return "read"

    attack(record_property, "trace", case, few=250, many=3_000)


NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "metadata": {}, "source": ["# Attention"]},
        {"cell_type": "code", "metadata": {}, "source": ["import torch\n", "%time x = 1\n", "!pip list"]},
        {"cell_type": "code", "metadata": {}, "source": "def masked_softmax(scores):\n    return scores"},
        {"cell_type": "code", "metadata": {"tags": []}, "outputs": [], "source": ["x = [-1, (2 + 3)]"]},
    ],
    "metadata": {"kernelspec": {"name": "python3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}  # fmt: skip


def test_notebooks(record_property, tmp_path):
    """Submissions as notebooks: their cells, names and imports."""
    work = tmp_path / "answer.ipynb"

    def case(rng):
        notebook = json.loads(json.dumps(NOTEBOOK))
        if rng.random() < 0.5:
            cell = rng.choice(notebook["cells"])
            code = "".join(cell["source"]).encode()
            cell["source"] = damaged_bytes(rng, code).decode("utf-8", "surrogateescape")
        work.write_bytes(damaged_text(rng, json.dumps(notebook)))
        submission = read_submission(work)
        assert isinstance(submission.definitions, tuple)
        return "read" if submission.undefined is not None and submission.imported is not None else ""

    attack(record_property, "notebook", case, few=250, many=3_000)
