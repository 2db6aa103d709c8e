"""A class of generated students: right, wrong, broken, empty, untouched, doubled answers in every layout."""

import json
import sys
import zipfile
from pathlib import Path

from regard.checking.catalogue import ours

FIVE = ("masked-softmax", "rnn-step", "lstm-step", "dot-product-attention", "multi-head")
# A right variant, and an edit that makes it wrong.
WRONG = {
    "masked-softmax": (
        "flat",
        "torch.arange(rows.shape[1], device=X.device)[None, :] >=",
        "0 * lens[:, None] >",
    ),
    "rnn-step": ("columns", ".add(b)", ""),
    "lstm-step": ("cell", "b_i, b_f, b_c, b_o", "b_f, b_i, b_c, b_o"),
    "dot-product-attention": ("einsum", "** -0.5", "** -1.0"),
    "multi-head": ("einsum", "self.size ** -0.5", "1.0"),
}
WHOLE = {
    "masked-softmax": "flat",
    "dot-product-attention": "einsum",
    "multi-head": "einsum",
}  # right ones that define nothing else
KINDS = (
    "right",
    "wrong",
    "right",
    "broken",
    "twice",
    "starter",
    "right",
    "empty",
    "wrong",
    "missing",
    "right",
)
LAYOUTS = ("folder", "zip", "files", "notebook", "module")


def right(id):
    exercise = ours()[id]
    return exercise.read(f"right/{WHOLE.get(id, next(iter(exercise.variants)))}.py")


def wrong(id):
    variant, old, new = WRONG[id]
    text = ours()[id].read(f"right/{variant}.py")
    assert old in text, (id, text)
    return text.replace(old, new)


def answers(id, kind):
    """The texts that a student hands in for an exercise."""
    starter = ours()[id].starter
    broken = f"def {ours()[id].names[0]}(:\n"
    return {
        "right": [right(id)],
        "wrong": [wrong(id)],
        "broken": [broken],
        "twice": [wrong(id), right(id)],
        "starter": [starter],
        "empty": [""],
        "missing": [],
    }[kind]


def kind_of(number, place):
    """What student `number` does with the exercise at a place: every combination comes up."""
    return KINDS[(number * 3 + place * 5 + number // len(KINDS)) % len(KINDS)]


def write_class(folder, n_student, ids=FIVE):
    """Write what a class hands in; what each student did, by exercise."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    done = {}
    for number in range(n_student):
        student, layout = f"student{number:03d}", LAYOUTS[number % len(LAYOUTS)]
        done[student] = {id: kind_of(number, place) for place, id in enumerate(ids)}
        files = {}
        for id, kind in done[student].items():
            name = id.replace("-", "_")
            for copy, text in enumerate(answers(id, kind)):
                files[f"{name}{f' ({copy})' if copy else ''}.py"] = text
        hand_in(folder, student, layout, files)
    return done


def hand_in(folder, student, layout, files):
    if layout == "files":
        for name, text in files.items() or {"notes.py": ""}.items():
            (folder / f"{student}_{name}").write_text(text)
        return
    if layout == "zip":
        with zipfile.ZipFile(folder / f"{student}.zip", "w") as archive:
            for name, text in files.items():
                archive.writestr(f"homework/{name}", text)
        return
    home = folder / student
    home.mkdir()
    if layout == "folder":
        for name, text in files.items():
            (home / name).write_text(text)
        return
    cells = list(files.values())
    if layout == "module":  # the answers stand in modules that the notebook imports
        for name, text in files.items():
            (home / name.replace(" (1)", "_again")).write_text(text)
        cells = [f"from {name.removesuffix('.py').replace(' (1)', '_again')} import *" for name in files]
    cells = [{"cell_type": "code", "source": text} for text in cells]
    (home / "homework.ipynb").write_text(json.dumps({"cells": cells}))


if __name__ == "__main__":  # python tests/classroom.py FOLDER N: a class for bench/classroom.py
    write_class(sys.argv[1], int(sys.argv[2]))
