"""Finds the exercises: ours in this folder, a teacher's in any other."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from functools import cache
from pathlib import Path

import regard.exercises
from regard.errors import ArgumentError, LoadError
from regard.exercises.spec import Exercise


@cache
def ours() -> dict[str, Exercise]:
    """Every exercise of this folder, by id."""
    found = {}
    for module in pkgutil.iter_modules(regard.exercises.__path__):
        if module.name == "zygote":
            continue
        exercise = getattr(importlib.import_module(f"regard.exercises.{module.name}"), "EXERCISE", None)
        if isinstance(exercise, Exercise):
            found[exercise.id] = exercise
    return found


def from_folder(folder: Path) -> dict[str, Exercise]:
    """Every exercise of a teacher's folder, by id. Its files are run: they are trusted as any program is."""
    if not folder.is_dir():
        raise LoadError(f"{folder} is no folder: --from takes one that holds exercises.")
    found: dict[str, Exercise] = {}
    for path in sorted(folder.glob("*.py")):
        name = f"regard_exercises_of_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        sys.path.insert(0, str(folder.resolve()))
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise LoadError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
        finally:
            sys.path.remove(str(folder.resolve()))
        exercise = getattr(module, "EXERCISE", None)
        if isinstance(exercise, Exercise):
            found[exercise.id] = exercise
    return found


def catalogue(folder: Path | None = None) -> dict[str, Exercise]:
    """Our exercises and those of a folder; an id of the folder comes before ours."""
    return ours() if folder is None else {**ours(), **from_folder(folder)}


def pick(exercises: dict[str, Exercise], id: str) -> Exercise:
    """The exercise of that id."""
    if id not in exercises:
        raise ArgumentError(f"there is no exercise {id!r}. There are: {', '.join(sorted(exercises))}.")
    return exercises[id]
