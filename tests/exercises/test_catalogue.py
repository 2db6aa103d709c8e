"""Every exercise is proved as `regard author check` proves it; a teacher's own folder works as ours does."""

import ast
import importlib
from pathlib import Path

import pytest

import regard.exercises
from regard.errors import ArgumentError, LoadError
from regard.exercises.author import prove
from regard.exercises.catalogue import from_folder, ours
from regard.exercises.mutations import mutations
from regard.exercises.spec import Exercise
from regard.exercises.starters import new_exercise, notebook, script

FILES = sorted(
    path.stem
    for path in Path(regard.exercises.__path__[0]).glob("*.py")
    if path.stem != "starters" and "\nEXERCISE = Exercise(" in path.read_text()
)
QUICK = ("rnn_step", "masked_softmax", "multi_head")


def loaded(name):
    return importlib.import_module(f"regard.exercises.{name}").EXERCISE


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FILES]
)
def test_an_exercise_holds_what_it_promises(runner, name):
    """Right variants pass, the starter fails, each mistake is caught and named, and data is varied."""
    proof = prove(loaded(name), runner, seed=5)
    assert [f"{line.what}: {line.detail}" for line in proof.lines if not line.holds] == []


@pytest.mark.parametrize("name", FILES)
def test_an_exercise_is_filed_under_its_id(name):
    """The file's name is the id, its starter is Python, and its sources need no regard."""
    exercise = loaded(name)
    assert exercise.id.replace("-", "_") == name
    assert len(exercise.mistakes) >= 8
    for source in (exercise.starter, *(each.source for each in exercise.right)):
        assert "regard" not in source
        ast.parse(source)
    assert compile(script(exercise), "starter", "exec")
    assert '"cell_type": "code"' in notebook(exercise)


@pytest.mark.slow
def test_the_catalogue_has_every_exercise_of_the_course():
    """The ids that homework and documents refer to."""
    assert set(ours()) >= set(
        "rnn-step lstm-step gru-step rnn-forward lstm-forward masked-softmax dot-product-attention "
        "visibility additive-attention seq2seq-decoder multi-head self-attention multi-head-self-attention "
        "multi-head-lengths multi-head-mask wide-values argmax-attention mha-step mqa-step moments "
        "positions quadratic-features linear-attention encoder-layer decoder-block padded-loss "
        "greedy beam".split()
    )


def test_a_new_exercise_is_ready_as_it_is_written(runner, tmp_path):
    """`regard author new` writes a whole exercise: it passes its own proof before it is changed."""
    (tmp_path / "double_it.py").write_text(new_exercise("double-it"))
    exercises = from_folder(tmp_path)
    assert list(exercises) == ["double-it"]
    proof = prove(exercises["double-it"], runner)
    assert [line.what for line in proof.lines if not line.holds] == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("return factor * x", "return factor * x + 1", "right variant 'a product' passes"),
        ("return 2 * x", "return 2 * x + 1", "right variant 'a sum' passes"),
        ('(GOOD, "factor + x")', '(GOOD, "x + x")', "'added' is caught"),
        ('("= 2", "= -2")', '("= 2", "= 3")', "'negated' is named"),
        ("raise NotImplementedError", "return 2 * x", "the starter fails"),
        (
            'draw.normal("batch", "position")',
            'draw.normal("batch", "position") * 0',
            "'several sequences' is varied",
        ),
    ],
    ids=["right", "reference", "uncaught", "unnamed", "starter", "constant"],
)
def test_an_exercise_that_does_not_hold_is_told_where(runner, tmp_path, old, new, says):
    """Each part of the proof fails when its part of the exercise is broken."""
    text = new_exercise("double-it")
    assert old in text
    (tmp_path / "double_it.py").write_text(text.replace(old, new, 1))
    proof = prove(from_folder(tmp_path)["double-it"], runner)
    assert any(says in line.what for line in proof.lines if not line.holds)


def test_a_folder_that_cannot_be_loaded_says_why(tmp_path):
    """A missing folder, a file that raises and a bad id are errors in words."""
    with pytest.raises(LoadError, match="no folder"):
        from_folder(tmp_path / "none")
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(LoadError, match="ZeroDivisionError"):
        from_folder(tmp_path)
    with pytest.raises(ArgumentError, match="lower-case words"):
        new_exercise("Double It")


def test_an_edit_that_matches_nothing_is_refused():
    """A mistake whose edit went stale is an error, not a copy of the right answer."""
    exercise = loaded("rnn_step")
    broken = type(exercise.mistakes[0])("x", ("a", "b", "c", "d"), edits=(("no such text", ""),))
    assert isinstance(exercise, Exercise)
    with pytest.raises(ArgumentError, match="0 times"):
        exercise.source_of(broken)


def test_mutations_change_one_thing_each():
    """Operators, comparisons, constants and terms; every mutant is another program that parses."""
    source = "def f(x, n):\n    return (x + 2) * 3 if n > 1 else -x"
    texts = [each.source for each in mutations(source)]
    assert len(set(texts)) == len(texts)
    for wanted in ("(x - 2) * 3", "(x + 3) * 3", "(x + 2) / 3", "n >= 1", "n > 2", "x * 3"):
        assert any(wanted in text for text in texts), wanted
    for text in texts:
        ast.parse(text)
