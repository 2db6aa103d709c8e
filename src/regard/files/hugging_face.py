"""Models of the Hugging Face Hub, by name: from its cache, or downloaded into it.

    folder = cached("gpt2")                     # None unless all its files are there; asks no network
    download = plan("Qwen/Qwen3-0.6B")          # what would be downloaded, and how large it is
    folder = fetch(download)

Everything goes through `huggingface_hub` (the `hf` extra), so that HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and
HF_ENDPOINT mean what they always mean. Only config, tokenizer and safetensors files are downloaded: pickles
and code in a repository are neither downloaded nor run.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import LoadError

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
# What is downloaded beside the weights, where a repository has it.
BESIDE = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "README.md",
)
# The Hub's oldest models have a name without an owner. They were moved to these owners, and the Hub still
# answers to the short names; a cache may hold a model under either.
_OWNERS = (
    (r"gpt2(-medium|-large|-xl)?", "openai-community"),
    (r"(bert-(base|large)-.+)", "google-bert"),
    (r"t5-(small|base|large|3b|11b)", "google-t5"),
    (r"(xlm-)?roberta-(base|large).*", "FacebookAI"),
    (r"distil(gpt2|bert-.+|roberta-.+)", "distilbert"),
    (r"albert-(base|large|xlarge|xxlarge)-v[12]", "albert"),
)
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}")


def repository(name: str) -> str | None:
    """Return the Hub's full name of a model, or None where the name cannot be one of the Hub's.

    >>> repository("gpt2"), repository("Qwen/Qwen3-0.6B"), repository("minilm"), repository("./folder")
    ('openai-community/gpt2', 'Qwen/Qwen3-0.6B', None, None)
    """
    parts = name.split("/")
    if len(parts) > 2 or not all(_NAME.fullmatch(part) for part in parts) or ".." in name:
        return None
    if len(parts) == 2:
        return None if name.endswith((".gguf", ".safetensors")) else name
    owner = next((owner for pattern, owner in _OWNERS if re.fullmatch(pattern, name)), None)
    return owner and f"{owner}/{name}"


@dataclass(frozen=True, slots=True)
class Download:
    """Say what a download from the Hub would fetch.

    Attributes:
        repository: Owner and name, as the Hub spells them.
        revision: The branch, tag or commit that was asked for.
        commit: The commit that it stands for.
        files: Sizes in bytes by file name, None where the Hub does not say.
        endpoint: The Hub's address.
        cache: The folder it goes to.
    """

    repository: str
    revision: str
    commit: str
    files: dict[str, int | None]
    endpoint: str
    cache: str

    def __str__(self) -> str:
        n_bytes = sum(size or 0 for size in self.files.values())
        size = f"{n_bytes / 10**6:,.0f} MB" if n_bytes >= 10**6 else f"{n_bytes:,} bytes"
        where = f"from {self.endpoint} into {self.cache}"
        return f"{self.repository} (commit {self.commit[:12]}): {size} {where}"


def cached(name: str, revision: str | None = None) -> Path | None:
    """Return the folder of a model in the Hugging Face cache, or None unless it is there whole.

    Args:
        name: A name such as "gpt2" or "Qwen/Qwen3-0.6B".
        revision: A branch, tag or commit; the default branch if not given.

    Returns:
        A folder with config.json and every file of weights, found without a network.
    """
    full = repository(name)
    hub = _library(required=False)
    if full is None or hub is None:
        return None
    for repo in dict.fromkeys((name, full)):
        config = hub.try_to_load_from_cache(repo, "config.json", revision=revision)
        if isinstance(config, str) and _whole(Path(config).parent):
            return Path(config).parent
    return None


def plan(name: str, revision: str | None = None) -> Download:
    """Ask the Hub what a model consists of.

    Args:
        name: A name such as "gpt2" or "Qwen/Qwen3-0.6B".
        revision: A branch, tag or commit; the default branch if not given.

    Returns:
        What `fetch` would download.

    Raises:
        LoadError: If the Hub cannot be reached or has no such model, or none in safetensors.
    """
    full = repository(name)
    if full is None:
        raise LoadError(f"{name!r} cannot be a name of the Hugging Face Hub.")
    hub = _library(required=True, name=full)
    constants = hub.constants
    if constants.is_offline_mode() if hasattr(constants, "is_offline_mode") else constants.HF_HUB_OFFLINE:
        raise LoadError(
            f"{full} is not in the Hugging Face cache ({constants.HF_HUB_CACHE}), and HF_HUB_OFFLINE forbids "
            "a download: unset it, or give the folder of a model."
        )
    with _explained(full, revision, hub):
        info = hub.HfApi().model_info(full, revision=revision, files_metadata=True)
    sizes = {file.rfilename: file.size for file in info.siblings or ()}
    shards = [file for file in sizes if re.fullmatch(r"model-\d+-of-\d+\.safetensors", file)]
    weights = [WEIGHTS] if WEIGHTS in sizes else [INDEX, *shards] if INDEX in sizes and shards else []
    if "config.json" not in sizes or not weights:
        there = ", ".join(sorted(file for file in sizes if "/" not in file)[:12]) or "no files"
        raise LoadError(
            f"{full} has no config.json with model.safetensors, and weights are read from safetensors only "
            f"(a pickle can run any program). It has {there}."
        )
    files = {file: sizes[file] for file in (*BESIDE, *weights) if file in sizes}
    asked = revision or "main"
    places = str(constants.ENDPOINT), str(constants.HF_HUB_CACHE)
    return Download(full, asked, info.sha or asked, files, *places)


def fetch(download: Download) -> Path:
    """Download what was planned into the Hugging Face cache, and announce it on stderr.

    Args:
        download: What `plan` returned.

    Returns:
        The folder with the model's files.
    """
    hub = _library(required=True, name=download.repository)
    print(f"Getting {download}.", file=sys.stderr, flush=True)
    with _explained(download.repository, download.revision, hub):
        folder = hub.snapshot_download(
            download.repository, revision=download.revision, allow_patterns=list(download.files)
        )
    if not _whole(Path(folder)):
        raise LoadError(f"{folder} lacks files after the download: remove it and try again.")
    return Path(folder)


def get(name: str, revision: str | None = None) -> Path:
    """Return the folder of a model of the Hub, downloading it if the cache does not hold it.

    Args:
        name: A name such as "gpt2" or "Qwen/Qwen3-0.6B".
        revision: A branch, tag or commit; the default branch if not given.

    Returns:
        A folder that `regard.load` reads.
    """
    return cached(name, revision) or fetch(plan(name, revision))


def _library(required: bool, name: str = "") -> Any:
    """Return `huggingface_hub`; None, or an error where it is required, if it is not installed."""
    try:
        import huggingface_hub
    except ImportError as error:
        if not required:
            return None
        raise LoadError(
            f"{name} may be a model of the Hugging Face Hub, which takes an extra: pip install 'regard[hf]'."
        ) from error
    return huggingface_hub


def _whole(folder: Path) -> bool:
    """Return whether a folder holds config.json and every file of weights."""
    if not (folder / "config.json").is_file():
        return False
    if (folder / WEIGHTS).is_file():
        return True
    try:
        shards = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    return bool(shards) and all((folder / str(shard)).is_file() for shard in shards)


@contextmanager
def _explained(name: str, revision: str | None, hub: Any) -> Iterator[None]:
    """Turn what `huggingface_hub` raises into one sentence that says what to do."""
    errors = hub.errors
    endpoint = str(hub.constants.ENDPOINT)
    try:
        yield
    except errors.GatedRepoError as error:
        raise LoadError(
            f"{name} is gated: accept its terms at {endpoint}/{name}, then set HF_TOKEN to your token."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise LoadError(
            f"there is no file or folder {name!r}, and no such model at {endpoint}; if it is private, set "
            "HF_TOKEN."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise LoadError(f"{name} at {endpoint} has no revision {revision!r}.") from error
    except (OSError, errors.HfHubHTTPError, errors.HFValidationError, RuntimeError) as error:
        raise LoadError(_unreachable(name, endpoint, error)) from error
    except Exception as error:
        # The HTTP library under huggingface_hub changed with its versions; the errors have no common base.
        if not type(error).__module__.startswith(("httpx", "httpcore", "requests", "urllib3")):
            raise
        raise LoadError(_unreachable(name, endpoint, error)) from error


def _unreachable(name: str, endpoint: str, error: Exception) -> str:
    """Return what to do when a download failed."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return (
        f"{name} could not be downloaded from {endpoint} ({first}): check the network, or download it "
        f"elsewhere with `hf download {name}` and give its folder."
    )
