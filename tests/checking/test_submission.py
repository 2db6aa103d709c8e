"""Students' files: scripts and notebooks as they are, read without being run."""

import json

import pytest

from regard.checking.lending import lent
from regard.checking.submission import answered, from_source, read, unanswered
from regard.errors import ArgumentError, LoadError

CLASS = """class MultiHeadAttention(nn.Module):
    def __init__(self, {}):
        pass
    def forward(self, {}):
        pass
"""


def notebook(tmp_path, *cells):
    path = tmp_path / "work.ipynb"
    code = [{"cell_type": "code", "source": cell.splitlines(True), "metadata": {}} for cell in cells]
    path.write_text(
        json.dumps({"cells": [{"cell_type": "markdown", "source": "# title"}, *code], "nbformat": 4})
    )
    return path


def test_a_notebook_loses_its_magics_and_keeps_its_lines(tmp_path):
    """Magics and shell lines go, whole %%bash cells too; line numbers stay."""
    path = notebook(
        tmp_path,
        "%matplotlib inline\n!pip install d2l\nimport torch\nfiles = !ls",
        "%%bash\nrm -rf nothing",
        "%%time\ndef rnn_step(x):\n    return x",
        "rnn_step?",
    )
    submission = read(path)
    assert [each.name for each in submission.definitions] == ["rnn_step"]
    assert submission.definitions[0].node.lineno == 2
    assert [cell.label for cell in submission.cells if "rnn_step(x)" in cell.source] == ["cell 3, "]
    assert any("%%bash" in note for note in submission.notes)


def test_a_cell_that_is_no_python_is_named_with_its_line(tmp_path):
    """The others are read; which one is broken, where and how, is kept for a result that fails."""
    submission = read(notebook(tmp_path, "x = 1\ndef f(:", "def rnn_step(): pass"))
    assert [each.name for each in submission.definitions] == ["rnn_step"]
    assert submission.broken == ("cell 1 is no Python: line 2: invalid syntax: `def f(:`.",)


@pytest.mark.parametrize(
    "text",
    [
        "masked_softmax = lambda X, valid_lens=None: X",
        "if __name__ == '__main__':\n    def masked_softmax(X, valid_lens=None): return X",
        "try:\n    import nothing\nexcept ImportError:\n    def masked_softmax(X, valid_lens=None): return X",
        "async def masked_softmax(X, valid_lens=None): return X",
        "def mine(X, valid_lens=None): return X\nmasked_softmax = mine",
        "import torch\ndef mine(X, valid_lens=None): return X\nmasked_softmax = torch.compile(mine)",
        "from beside import masked_softmax",
        "from beside import *",
        "from .beside import mine as masked_softmax",
    ],
    ids=["lambda", "main", "try", "async", "alias", "compiled", "imported", "star", "renamed"],
)
def test_an_answer_may_be_defined_in_other_ways(exercises, tmp_path, text):
    """A lambda, another name, a block, a file beside this one."""
    defined = "def masked_softmax(X, valid_lens=None): return X\nmine = masked_softmax\n"
    (tmp_path / "beside.py").write_text(defined + "from answer import masked_softmax\n")
    (tmp_path / "answer.py").write_text(text)
    (answer,) = answered(read(tmp_path / "answer.py"), exercises)
    assert answer.exercise.id == "masked-softmax"


@pytest.mark.parametrize("suffix", [".py", ".ipynb"])
@pytest.mark.parametrize("text", ["x=" + "-" * 200_000 + "1", "x=" + "(" * 300, "x=" + "1+" * 100_000 + "1"])
def test_what_the_parser_gives_up_on_is_told(tmp_path, suffix, text):
    """Python's own parser runs out of memory or depth: that is said of the file, or of the cell."""
    if suffix == ".py":
        (tmp_path / "deep.py").write_text(text)
        with pytest.raises(LoadError, match="no Python"):
            read(tmp_path / "deep.py")
    else:
        assert "cell 1 is no Python" in read(notebook(tmp_path, text)).broken[0]


def test_a_nearly_right_name_is_asked_for(exercises):
    """A file that defines maskedSoftmax is told which name was meant."""
    text = unanswered(from_source("def maskedSoftmax(X): return X"), exercises)
    assert text == "no exercise is answered here. It defines maskedSoftmax: did you mean masked_softmax?"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.txt", "", "no .py or .ipynb"),
        ("a.py", "def f(:", "line 1"),
        ("a.ipynb", "{", "no notebook"),
        ("a.ipynb", "[]", "no notebook"),
        ("a.ipynb", '{"cells": [{"cell_type": "code", "source": 7}]}', "no notebook"),
        ("a.py", "\0", "no Python"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path, name, text, says):
    """Each kind of broken file has one line of explanation."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(LoadError, match=says):
        read(path)


def test_a_missing_file_says_so(tmp_path):
    """No traceback for a path that is not there."""
    with pytest.raises(LoadError, match="cannot read"):
        read(tmp_path / "none.py")


def test_what_is_used_and_nowhere_defined_is_lent_but_never_what_is_under_check():
    """`masked_softmax` is lent to an attention layer, and not to the exercise that asks for it."""
    text = "def attention(q, k):\n    return masked_softmax(torch.bmm(q, k))\n"
    undefined = from_source(text).undefined
    assert list(lent(undefined, ("attention",))) == ["torch", "masked_softmax"]
    assert list(lent(undefined, ("masked_softmax",))) == ["torch"]


def test_names_that_a_file_defines_anywhere_are_not_lent():
    """Arguments, loops, imports and a class's own name count as defined; a method's name does not."""
    text = (
        "import numpy as np\nfrom math import sqrt\nclass A:\n    def rnn_step(self): return masked_softmax\n"
        "def masked_softmax(nn): return [torch for torch in nn]\nrnn_step(1)\n"
    )
    assert from_source(text).undefined == {"rnn_step"}


@pytest.mark.parametrize(
    ("init", "forward", "id"),
    [
        ("num_hiddens, num_heads, dropout, bias=False", "queries, keys, values, valid_lens", "multi-head"),
        ("num_heads, embedding_dim, qk_length, value_length", "Q, K, V", "multi-head-lengths"),
        ("d_model, num_heads", "Q, K, V, mask=None", "multi-head-mask"),
    ],
)
def test_the_signature_tells_which_class_is_meant(exercises, init, forward, id):
    """Several exercises ask for MultiHeadAttention; constructor and forward tell them apart."""
    submission = from_source("from torch import nn\n" + CLASS.format(init, forward))
    assert id in [answer.exercise.id for answer in answered(submission, exercises)]


def test_two_classes_of_one_name_answer_two_exercises(exercises):
    """Each definition counts for the exercise it looks like, not only the last."""
    text = CLASS.format("num_hiddens, num_heads, dropout, bias=False", "queries, keys, values, valid_lens")
    text += CLASS.format("d_model, num_heads", "Q, K, V, mask=None")
    places = {answer.exercise.id: answer.subjects for answer in answered(from_source(text), exercises)}
    assert places["multi-head"] == {"MultiHeadAttention": 0}
    assert places["multi-head-mask"] == {"MultiHeadAttention": 1}


def test_an_exercise_that_is_not_answered_says_what_it_needs(exercises):
    """`--exercise` with a file that defines something else is a clear error."""
    with pytest.raises(ArgumentError, match="must define masked_softmax"):
        answered(from_source("def other(): pass"), exercises, "masked-softmax")
