"""Models from files and back: `from regard.files import Loaded, load, save`."""

from typing import Any

__all__ = ["Loaded", "ModelFacts", "load", "save", "untrained"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: the list of models is read without torch."""
    if name not in __all__:
        raise AttributeError(f"module 'regard.files' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("regard.files.loading"), name)
