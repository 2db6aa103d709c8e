"""A class of generated students: right, wrong, broken, empty, untouched, doubled answers in every layout."""

import json
import sys
import zipfile
from pathlib import Path

from regard.checking.catalogue import ours

# Right answers as students write them, and for each an edit that makes it wrong.
RIGHT = {
    "masked-softmax": """import torch

def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        return torch.softmax(X, dim=-1)
    lens = valid_lens if valid_lens.dim() == 2 else valid_lens[:, None]
    hidden = torch.arange(X.shape[-1], device=X.device) >= lens[..., None]
    return torch.softmax(X.masked_fill(hidden, float("-inf")), dim=-1).masked_fill(hidden, 0.0)
""",
    "rnn-step": """import torch

def rnn_step(x_t, h_prev, W_x, W_h, b):
    return torch.tanh(x_t @ W_x + h_prev @ W_h + b)
""",
    "lstm-step": """import torch

def lstm_step(x_t, h_prev, c_prev, W_f, U_f, b_f, W_i, U_i, b_i, W_o, U_o, b_o, W_c, U_c, b_c):
    f = torch.sigmoid(x_t @ W_f + h_prev @ U_f + b_f)
    i = torch.sigmoid(x_t @ W_i + h_prev @ U_i + b_i)
    o = torch.sigmoid(x_t @ W_o + h_prev @ U_o + b_o)
    c = f * c_prev + i * torch.tanh(x_t @ W_c + h_prev @ U_c + b_c)
    return o * torch.tanh(c), c
""",
    "dot-product-attention": """import torch
from torch import nn

class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        scores = queries @ keys.transpose(1, 2) * queries.size(-1) ** -0.5
        if valid_lens is not None:
            lens = valid_lens if valid_lens.dim() == 2 else valid_lens[:, None]
            hidden = torch.arange(keys.size(1), device=keys.device) >= lens[..., None]
            scores = scores.masked_fill(hidden, -1e9)
        weights = scores.softmax(-1)
        return self.drop(weights) @ values, weights
""",
    "multi-head": """import torch
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        self.num_heads, self.size = num_heads, num_hiddens // num_heads
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias)
        self.W_v = nn.Linear(num_hiddens, num_hiddens, bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias)
        self.drop = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        heads = []
        for head in range(self.num_heads):
            part = slice(head * self.size, (head + 1) * self.size)
            q, k, v = self.W_q(queries)[..., part], self.W_k(keys)[..., part], self.W_v(values)[..., part]
            scores = q @ k.transpose(1, 2) * self.size ** -0.5
            if valid_lens is not None:
                lens = valid_lens if valid_lens.dim() == 2 else valid_lens[:, None]
                hidden = torch.arange(k.shape[1], device=k.device) >= lens[..., None]
                scores = scores.masked_fill(hidden, float("-inf"))
            heads.append(self.drop(scores.softmax(-1)) @ v)
        return self.W_o(torch.cat(heads, dim=-1))
""",
}
WRONG = {
    "masked-softmax": ("    if valid_lens is None:", "    if True:"),
    "rnn-step": (" + b)", ")"),
    "lstm-step": ("+ b_f)", "- b_f)"),
    "dot-product-attention": ("** -0.5", "** -1.0"),
    "multi-head": ("* self.size ** -0.5", ""),
}
FIVE = tuple(RIGHT)
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


def wrong(id):
    old, new = WRONG[id]
    assert old in RIGHT[id]
    return RIGHT[id].replace(old, new)


def answers(id, kind):
    """The texts that a student hands in for an exercise."""
    starter = ours()[id].starter
    broken = f"def {ours()[id].names[0]}(:\n"
    return {
        "right": [RIGHT[id]],
        "wrong": [wrong(id)],
        "broken": [broken],
        "twice": [wrong(id), RIGHT[id]],
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
