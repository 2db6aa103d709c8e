"""Tells which exercises a file answers, by the names and signatures it defines."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from regard.errors import ArgumentError
from regard.exercises.source import Definition, Submission
from regard.exercises.spec import Exercise

TIE = 0.6  # below it, a signature tells nothing: more than the names of layers can make up


@dataclass(frozen=True)
class Found:
    """An exercise that a file answers, and where each of its names is defined."""

    exercise: Exercise
    at: tuple[tuple[str, int], ...]  # name, number of the statement
    rivals: tuple[Exercise, ...] = ()  # whose signature fits as well: then the parameters tell


def found(submission: Submission, exercises: Mapping[str, Exercise], only: str | None = None) -> list[Found]:
    """The exercises that the file answers, in the catalogue's order.

    Several exercises may ask for a class of one name: its signature tells which is meant, then the name of
    the file. `only` settles it.
    """
    if only is not None:
        exercise = exercises[only]
        at = _places(submission, exercise, None)
        if at is None:
            names = [each.name for each in submission.definitions]
            raise ArgumentError(
                f"{submission.path} does not answer {only!r}: it must define {', '.join(exercise.names)}. "
                f"It defines {', '.join(dict.fromkeys(names)) or 'nothing'}."
            )
        return [Found(exercise, at)]
    chosen: dict[tuple[str, int], Found] = {}
    by_names: dict[tuple[str, ...], list[Exercise]] = {}
    for exercise in exercises.values():
        by_names.setdefault(exercise.names, []).append(exercise)
    for wanted, rivals in by_names.items():
        if len(rivals) == 1:
            at = _places(submission, rivals[0], None)
            if at is not None:
                chosen[rivals[0].id, 0] = Found(rivals[0], at)
            continue
        for definition in submission.definitions:
            if definition.name != wanted[0]:
                continue
            scores = {exercise.id: likeness(definition.node, exercise) for exercise in rivals}
            near = [each for each in rivals if scores[each.id] > max(scores.values()) - TIE]
            stem = Path(submission.path).stem.lower().replace("-", "_")
            titled = [each for each in near if each.id.replace("-", "_") in stem]
            near = titled if len(titled) == 1 else near
            # A later definition of the same exercise replaces an earlier one; where several exercises fit,
            # only running both definitions can tell.
            place = definition.number if len(near) > 1 else 0
            at = ((definition.name, definition.number),)
            chosen[near[0].id, place] = Found(near[0], at, tuple(near[1:]))
    order = list(exercises)
    return [chosen[key] for key in sorted(chosen, key=lambda key: (order.index(key[0]), key[1]))]


def likeness(node: ast.FunctionDef | ast.ClassDef, exercise: Exercise) -> float:
    """How much a definition looks like the starter's: constructor, methods, arguments, layers."""
    starter = exercise.definitions()[exercise.names[0]]
    mine, theirs = _features(node), _features(starter)
    # The constructor's arguments and their order say most; a teacher's layers are named in the task alone.
    score = 4.0 * (mine["init"] == theirs["init"])
    score += 2.0 * _overlap(mine["init"], theirs["init"])
    score += 1.0 * (len(mine["init"]) == len(theirs["init"]))
    score += 2.0 * _overlap(mine["methods"], theirs["methods"])
    score += 2.0 * _overlap(mine["forward"], theirs["forward"])
    score += 1.0 * (len(mine["forward"]) == len(theirs["forward"]))
    named = {f"{layer}" for layer in mine["layers"]}
    return score + 0.5 * sum(layer in exercise.task for layer in named) / max(1, len(named))


def _features(node: ast.FunctionDef | ast.ClassDef) -> dict[str, list[str]]:
    if isinstance(node, ast.FunctionDef):
        return {"init": [], "methods": [], "forward": _arguments(node), "layers": []}
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    layers = [
        target.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Assign)
        for target in part.targets
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    ]
    return {
        "init": _arguments(methods["__init__"])[1:] if "__init__" in methods else [],
        "methods": sorted(methods),
        "forward": _arguments(methods["forward"])[1:] if "forward" in methods else [],
        "layers": layers,
    }


def _arguments(node: ast.FunctionDef) -> list[str]:
    return [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _overlap(mine: list[str], theirs: list[str]) -> float:
    both = {name.lower() for name in mine} & {name.lower() for name in theirs}
    return 2 * len(both) / max(1, len(mine) + len(theirs))


def _places(
    submission: Submission, exercise: Exercise, before: int | None
) -> tuple[tuple[str, int], ...] | None:
    """Where the file defines all names of the exercise: the last time of each, or None."""
    places = []
    for name in exercise.names:
        there = [each for each in submission.definitions if each.name == name]
        if not there:
            return None
        best: Definition = there[-1]
        if len(there) > 1 and isinstance(best.node, ast.ClassDef):
            scores = {each.number: likeness(each.node, exercise) for each in there}
            best = max(there, key=lambda each: (scores[each.number], each.number))
        places.append((name, best.number))
    return tuple(places)
