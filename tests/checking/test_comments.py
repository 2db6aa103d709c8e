"""Shape comments: found beside statements, and compared with what was seen."""

import pytest
import torch

from regard.checking.child.messages import SeenShapes, ShapeNote
from regard.checking.child.watcher import watched
from regard.checking.comments import dims, disagreements, shape_notes

TEXT = """def f(x, h):
    b = x.shape[0]
    y = x.reshape(b, h, -1)  # [b, s] -> [b, h, s/h]
    z = y.transpose(1, 2)  # (b, s/h, h)
    w = z * 2  # twice as much
    return w.sum(0)  # [h, 5]
"""


def seen(text, *args):
    """What the watcher records while the text's function runs."""
    notes = shape_notes(text, "")
    scope = {}
    exec(compile(text, "<answer >", "exec"), scope)
    with watched(notes) as records:
        scope["f"](*args)
    return notes, records


def test_right_comments_are_silent_and_wrong_ones_are_told_with_their_line():
    """Symbols keep their size within a call; quotients of known sizes are worked out."""
    notes, records = seen(TEXT, torch.ones(2, 15), 3)
    assert [note.line for note in notes] == [3, 4, 6]
    told = disagreements(notes, records)
    assert list(told.values()) == ["line 6 says [h, 5], and the shape is [5, 3], where h = 3."]


def test_a_symbol_with_two_sizes_is_a_disagreement():
    """`n` cannot be 2 in one line and 15 in the next."""
    text = TEXT.replace("[b, s] -> [b, h, s/h]", "[n, s] -> [n, h, m]").replace("(b, s/h, h)", "[b, h, m]")
    notes, records = seen(text, torch.ones(2, 15), 3)
    assert "line 4" in disagreements(notes, records)[1]


def test_each_call_binds_its_symbols_anew():
    """The same comment holds for calls of different sizes."""
    notes, records = seen(
        "def g(x):\n    y = x + 1  # [n]\ndef f(a, b):\n    g(a)\n    g(b)\n", torch.ones(2), torch.ones(3)
    )
    assert len(records) == 2
    assert disagreements(notes, records) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[b, s]", ["b", "s"]),
        ("(2*b,)", ["2*b"]),
        ("(see above)", ["see above"]),
        ("[]", None),
        ("b, s", None),
    ],
)
def test_only_lists_of_sizes_are_shapes(text, expected):
    """Brackets are needed; what stands inside is read as sizes."""
    assert dims(text) == expected


def test_a_comment_that_fits_one_of_several_tensors_binds_no_other():
    """`[batch, input] -> [batch, hidden]` on a line with several tensors: which one is meant shows later."""
    note = ShapeNote(
        "", 1, 1, "t", "h", ["W", "h", "x"], before=["batch", "input"], after=["batch", "hidden"]
    )
    later = ShapeNote("", 2, 2, "t", "y", [], before=None, after=["input", "hidden"])
    records = [
        SeenShapes(0, 1, before={"W": [5, 7], "h": [3, 7], "x": [3, 5]}, after=[3, 7]),
        SeenShapes(1, 1, before={}, after=[5, 7]),
    ]
    assert disagreements([note, later], records) == {}
    wrong = SeenShapes(1, 1, before={}, after=[2, 7])
    assert list(disagreements([note, later], [records[0], wrong])) == [1]


def test_a_wrong_comment_does_not_make_right_ones_below_it_look_wrong():
    """`[b, h, s]` binds h and s the wrong way round; the three below it agree with one another."""
    text = (
        "def f(x):\n"
        "    y = x + 1  # [b, h, s]\n"
        "    z = y * 2  # [b, s, h]\n"
        "    u = z.transpose(1, 2)  # [b, s, h] -> [b, h, s]\n"
        "    return u @ z  # [b, h, s] @ [b, s, h] -> [b, h, h]\n"
    )
    notes, records = seen(text, torch.ones(2, 3, 5))
    assert [note.line for note in notes] == [2, 3, 4, 5]
    assert list(disagreements(notes, records)) == [0]


def test_a_comment_alone_on_the_line_below_belongs_to_the_line_above():
    notes, records = seen("def f(x):\n    y = x + 1\n    # [b, b]\n    return y\n", torch.ones(2, 3))
    assert [note.line for note in notes] == [2]
    assert list(disagreements(notes, records).values()) == ["line 2 says [b, b], and the shape is [2, 3]."]
