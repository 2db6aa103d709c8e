"""Training, from one command to several machines: `from regard.train import Settings, train`."""

from typing import Any

__all__ = ["Settings", "TrainingRun", "train"]
_HOME = {"TrainingRun": "run", "Settings": "settings", "train": "run"}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: settings are read without torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'regard.train' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"regard.train.{_HOME[name]}"), name)
