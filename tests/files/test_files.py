"""Weight files: what is read is what was written, and what is broken is refused in words."""

import json
import pickle
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_gguf import damaged

from regard.errors import LoadError
from regard.files import raw as files
from regard.files.safetensors import write_safetensors

CONFIG = {"model_type": "bert", "hidden_size": 7, "num_hidden_layers": 2, "vocab_size": 11}


def weights() -> dict[str, torch.Tensor]:
    return {
        "embedding": torch.randn(11, 7),
        "half": torch.randn(5, 3).to(torch.float16),
        "brain": torch.randn(2, 5, 3).to(torch.bfloat16),
        "ids": torch.arange(13),
        "flags": torch.tensor([True, False, True]),
        "eight": torch.randn(3, 2).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(2.5),
        "nothing": torch.zeros(0, 3),
    }


def folder_with(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def raw_safetensors(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    (path.parent / "config.json").write_text("{}")
    return path


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.float().equal(b.float())


# --- safetensors


def test_a_folder_gives_every_tensor_as_the_safetensors_library_reads_it(tmp_path):
    """Shape, dtype and numbers of each kind of tensor equal the library's own reading."""
    raw = files.read(folder_with(tmp_path, weights()))
    expected = load_file(tmp_path / "model.safetensors")
    assert set(raw.tensors) == set(expected)
    for name, tensor in expected.items():
        assert raw.tensors[name].shape == tuple(tensor.shape)
        assert same(raw.tensors[name].read(), tensor), name
    assert dict(raw.config) == CONFIG
    assert raw.tokenizer is None
    assert "no tokenizer.json" in raw.notes[0]


def test_the_licence_is_that_of_the_card(tmp_path):
    """The front matter of the README states it; words further down do not count."""
    (tmp_path / "README.md").write_text(
        "---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\nlicense: mit\n"
    )
    raw = files.read(folder_with(tmp_path, {"a": torch.zeros(5, 3), "b": torch.zeros(7).half()}))
    assert {name: tensor.stored_as for name, tensor in raw.tensors.items()} == {"a": "F32", "b": "F16"}
    assert raw.licence == "apache-2.0"
    assert raw.quantisation is None


def sharded(folder: Path) -> Path:
    tensors = weights()
    shards = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(tensors)}
    for shard in set(shards.values()):
        save_file({name: tensors[name] for name in tensors if shards[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_shards_are_read_as_one(tmp_path):
    """The tensors of all files that the index names come together."""
    raw = files.read_folder(sharded(tmp_path))
    assert set(raw.tensors) == set(weights())


def test_a_missing_shard_is_named(tmp_path):
    """An index that names a file which is not there is an error with that file's name."""
    sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(LoadError, match=r"missing: 'model-00002-of-00002\.safetensors'"):
        files.read(tmp_path)


def test_a_tensor_missing_from_its_shard_is_named(tmp_path):
    """An index that names a tensor which its files do not have is an error with that tensor's name."""
    index = sharded(tmp_path) / "model.safetensors.index.json"
    stated = json.loads(index.read_text())
    stated["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(stated))
    with pytest.raises(LoadError, match="do not have: 'ghost'"):
        files.read(tmp_path)


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/passwd", "..", "C:\\x", "a\\b", ""])
def test_an_index_cannot_name_a_file_outside_its_folder(tmp_path, name):
    """Only plain names of files in the folder are followed."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "other").mkdir()
    folder_with(tmp_path / "other", {"a": torch.zeros(3)})
    (home / "config.json").write_text("{}")
    (home / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(LoadError, match="files in the same folder"):
        files.read(home)


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 3}, "x"])
def test_an_index_without_a_map_of_names_is_refused(tmp_path, weight_map):
    """The index must map names to names."""
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(LoadError, match="no weight_map"):
        files.read(tmp_path)


def entry(shape: object, offsets: object, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "data", "length"),
    [
        ({}, b"", 2**63),
        ({}, b"", 2**64 - 1),
        ({}, b"", 0),
        (b"{not json", b"", None),
        (b"\xff\xfe\xfd", b"", None),
        (b"[" * 100_000, b"", None),
        (b'{"a":' * 50_000, b"", None),
        (b"[]", b"", None),
        ({"a": 3}, b"", None),
        ({"a": entry([2], [0, 8], "F31")}, bytes(8), None),
        ({"a": entry([2], [0, 8], ["F32"])}, bytes(8), None),
        ({"a": entry([2**40, 2**40], [0, 8])}, bytes(8), None),
        ({"a": entry([10**30], [0, 8])}, bytes(8), None),
        ({"a": entry([-2], [0, 8])}, bytes(8), None),
        ({"a": entry([True], [0, 4])}, bytes(4), None),
        ({"a": entry([1.0], [0, 4])}, bytes(4), None),
        ({"a": entry("ab", [0, 4])}, bytes(4), None),
        ({"a": entry([1], [0, 4, 8])}, bytes(4), None),
        ({"a": entry([1], [8, 4])}, bytes(4), None),
        ({"a": entry([2], [0, 8]), "b": entry([2], [4, 12])}, bytes(12), None),
        ({"a": entry([2], [0, 8]), "b": entry([2], [12, 20])}, bytes(20), None),
        ({"a": entry([2], [0, 8])}, bytes(4), None),
        ({"a": entry([2], [0, 8])}, bytes(12), None),
    ],
)
def test_an_absurd_safetensors_header_is_refused(tmp_path, header, data, length):
    """Lengths, types, shapes and places that cannot be are refused before anything is allocated."""
    path = raw_safetensors(tmp_path / "model.safetensors", header, data, length)
    with pytest.raises(LoadError, match=r"model\.safetensors is not a readable safetensors file: "):
        files.read(path)


@pytest.mark.parametrize("n_bytes", [0, 1, 7, 8, 9])
def test_a_file_too_short_for_a_header_is_refused(tmp_path, n_bytes):
    """A few bytes are no safetensors file."""
    (tmp_path / "model.safetensors").write_bytes(bytes(n_bytes))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LoadError, match="is not a readable safetensors file"):
        files.read(tmp_path)


def test_a_file_cut_short_after_it_was_opened_is_refused(tmp_path):
    """Reading a tensor whose bytes have gone is our error too."""
    raw = files.read(folder_with(tmp_path, {"a": torch.zeros(101), "b": torch.zeros(3)}))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(LoadError, match="is cut short"):
        raw.tensors["b"].read()


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "nul", '{"a":' * 50_000, "\udcff"])
def test_a_config_that_is_no_json_object_is_refused(tmp_path, text):
    """config.json must hold an object."""
    folder_with(tmp_path, weights())
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(LoadError, match=r"config\.json"):
        files.read(tmp_path)


# --- pickles


class Bomb:
    """Unpickling it makes a file, so a test can see whether anybody did."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt", ".pkl", ".BIN", "", ".weights"])
def test_a_pickle_is_never_opened(tmp_path, suffix):
    """By its name or by its first bytes, a pickle is refused and its program does not run."""
    path, mark = tmp_path / f"model{suffix}", tmp_path / "ran"
    path.write_bytes(pickle.dumps(Bomb(mark), protocol=2))
    with pytest.raises(LoadError, match="is a pickle"):
        files.read(path)
    assert not mark.exists()


def test_a_folder_with_only_a_pickle_says_how_to_convert_and_that_works(tmp_path):
    """The lines in the message, run as they are, make a folder that loads with the same numbers."""
    tensor = torch.randn(5, 3)
    torch.save({"weight": tensor, "tied": tensor}, tmp_path / "pytorch_model.bin")
    torch.save([1], tmp_path / "training_args.bin")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LoadError, match=r"pytorch_model\.bin is a pickle") as caught:
        files.read(tmp_path)
    lines = [line[4:] for line in str(caught.value).splitlines() if line.startswith("    ")]
    exec("\n".join(lines), {})
    raw = files.read(tmp_path)
    assert raw.tensors["weight"].read().equal(tensor)
    assert raw.tensors["tied"].read().equal(tensor)


def test_paths_without_weights_say_what_was_found(tmp_path):
    """Nothing there, an empty folder, a folder with a GGUF file: each is told apart."""
    with pytest.raises(LoadError, match="does not exist"):
        files.read(tmp_path / "nowhere")
    with pytest.raises(LoadError, match="no files"):
        files.read(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(LoadError, match=r"has 'model\.gguf': give the path"):
        files.read(tmp_path)


@pytest.mark.parametrize("first_seed", range(0, 300, 50))
def test_a_damaged_safetensors_file_loads_or_is_refused(tmp_path, first_seed):
    """Whatever bytes are changed, cut or added, the outcome is tensors of the stated shape or a LoadError."""
    path = folder_with(tmp_path, weights()) / "model.safetensors"
    whole, n_refused = path.read_bytes(), 0
    for seed in range(first_seed, first_seed + 50):
        path.write_bytes(damaged(whole, seed, header_bytes=700))
        try:
            raw = files.read(tmp_path)
        except LoadError:
            n_refused += 1
            continue
        for tensor in raw.tensors.values():
            assert tuple(tensor.read().shape) == tensor.shape
    assert n_refused > 25  # most damage to a header does show


def test_what_is_written_may_be_read_by_whom_other_files_may(tmp_path):
    """Model, checkpoint and trace files are as private as any file the user makes, not more."""
    (tmp_path / "plain").touch()
    write_safetensors({"weight": torch.ones(2)}, tmp_path / "model.safetensors", {"format": "pt"})
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert load_file(tmp_path / "model.safetensors")["weight"].tolist() == [1, 1]
