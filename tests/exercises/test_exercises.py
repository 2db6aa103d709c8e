"""Every exercise is proved as `regard author check` proves it; a teacher's own folder works as ours does."""

import ast
import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
import torch

from regard.checking.author import prove
from regard.checking.catalogue import OURS, TEMPLATE, from_folder, ours
from regard.checking.plan import Plan
from regard.checking.starters import new_exercise, notebook, script
from regard.checking.trials import Case
from regard.errors import ArgumentError, LoadError

IDS = sorted(ours())
QUICK = ("rnn-step", "masked-softmax", "multi-head")


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=() if id in QUICK else pytest.mark.slow) for id in IDS]
)
def test_an_exercise_holds_what_it_promises(runner, id):
    """Right variants pass, the starter fails, each mistake is caught and named, and data is varied."""
    proof = prove(ours()[id], runner, seed=5)
    assert [f"{line.what}: {line.detail}" for line in proof.lines if not line.holds] == []


@pytest.mark.parametrize("id", IDS)
def test_an_exercise_is_whole(id):
    """Its starter and right variants are Python that needs no regard, and its mistakes have choices."""
    exercise = ours()[id]
    assert exercise.id == id
    assert len(exercise.mistakes) >= 8
    assert {path.stem for path in (exercise.folder / "right").glob("*.py")} == set(exercise.variants)
    for source in (exercise.starter, exercise.drive, *exercise.right):
        assert "regard" not in source
        ast.parse(source)
    assert all(bool(mistake.choices) != bool(mistake.fails) for mistake in exercise.mistakes)
    assert compile(script(exercise), "starter", "exec")
    assert '"cell_type": "code"' in notebook(exercise)


def test_only_the_trials_of_an_exercise_may_import_regard():
    """What students see, and what runs beside their answers, stands without us."""
    for path in OURS.rglob("*.py"):
        if path.name not in ("trials.py", "__init__.py") and path.parent.name != "shared":
            assert "regard" not in path.read_text(encoding="utf-8"), path


def test_the_catalogue_has_every_exercise_of_the_course():
    """The ids that homework and documents refer to."""
    assert set(IDS) >= set(
        "rnn-step lstm-step gru-step rnn-forward lstm-forward masked-softmax dot-product-attention "
        "visibility additive-attention seq2seq-decoder multi-head self-attention multi-head-self-attention "
        "multi-head-lengths multi-head-mask wide-values argmax-attention mha-step mqa-step moments "
        "positions quadratic-features linear-attention encoder-layer decoder-block padded-loss "
        "greedy beam".split()
    )


def test_a_new_exercise_is_ready_as_it_is_written(runner, tmp_path):
    """`regard author new` writes a whole exercise: it passes its own proof before it is changed."""
    new_exercise("twice-it", tmp_path / "twice_it")
    exercises = from_folder(tmp_path)
    assert list(exercises) == list(from_folder(tmp_path / "twice_it")) == ["twice-it"]
    proof = prove(exercises["twice-it"], runner)
    assert [line.what for line in proof.lines if not line.holds] == []


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("right/product.py", "factor * x", "factor * x + 1", "right variant 'a product' passes"),
        ("exercise.toml", "of * factor", "of * factor + 1", "right variant 'a sum' passes"),
        ("exercise.toml", "of + factor", "of * factor", "'added' is caught"),
        ("exercise.toml", '"-2"', '"3"', "'negated' is named"),
        ("exercise.toml", "gradients =", "gradient =", "'the gradient is cut' fails are there"),
        ("exercise.toml", "sum = ", "# sum = ", "there are 1 right variants"),
        ("exercise.toml", "sum = ", "# sum = ", "names every file of right/"),
        ("starter.py", "raise NotImplementedError", "return 2 * x", "the starter fails"),
        (
            "exercise.toml",
            "normal(batch, position)",
            "0 * normal(batch, position)",
            "'several sequences' is varied",
        ),
    ],
    ids=[
        "right",
        "reference",
        "uncaught",
        "unnamed",
        "no such check",
        "too few",
        "unlisted",
        "starter",
        "constant",
    ],
)
def test_an_exercise_that_does_not_hold_is_told_where(runner, tmp_path, file, old, new, says):
    """Each part of the proof fails when its part of the exercise is broken."""
    new_exercise("double-it", tmp_path / "double_it")
    path = tmp_path / "double_it" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    proof = prove(from_folder(tmp_path)["double-it"], runner)
    assert any(says in line.what for line in proof.lines if not line.holds)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('names = ["double_it"]', "", "must have names"),
        ('fix = "Multiply by 2."', "", "hints needs symptom, place, cause, fix"),
        ('choice = { factor = "3" }', "choice = 3", "must be a table of texts"),
        ('choice = { factor = "3" }', "choice = []", "must be a table of texts"),
        ('choice = { factor = "3" }', 'choice = [{ factor = "3" }, "4"]', "must be a table of texts"),
        ('choice = { factor = "3" }', "", "either choice"),
        ('choice = { factor = "3" }', "edits = []", "either choice"),
        ("title =", "titel = 'x'\ntitle =", "titel: no such key"),
        ('shared = ["neighbour", "always"]', 'shared = ["none"]', "none.toml"),
        ("[right]", "[right", "cannot read"),
        ("[hints]", "[conventions.one]\nalone = 'x'\n\n[hints]", "at least two choices"),
        ('of = "x"', "of = 1", "formulas.of must be a text or a table of texts"),
        ("batch = 2", "batch = 2.5", "sizes.batch must be a whole number"),
        ('x = "normal(batch, position)"', "x = []", "draws.x must be a text or a number"),
        ('args = ["x"]', 'arg = ["x"]', "call.arg: no such key. There are: args, options"),
        ('args = ["x"]', 'args = "x"', "call.args must be a list of texts"),
        (
            "{ variants = true }",
            "{ varients = true }",
            r"trials.'several sequences': varients: no size and no draw",
        ),
        ("{ variants = true }", "{ variants = 1 }", "variants must be true or false"),
        (
            "{ batch = 1,",
            '{ batch = "many",',
            "many: no size and no draw. There are the sizes batch, position",
        ),
        (
            'edits = [{ x = "-x" }]',
            'edits = [{ y = "-x" }]',
            "'the sign has its say': y: no size and no draw",
        ),
        ('{ of = "x.abs()" }', '{ off = "x.abs()" }', "'no sign' chooses 'off', and there is no formula"),
        (
            'by = "of * factor"',
            'by = "of * factor"\n[formulas."f(x)"]\nfactor = "2"',
            "two formulas of that name",
        ),
    ],
)
def test_an_exercise_toml_that_is_wrong_says_where(tmp_path, old, new, says):
    """The file, the key and what it should be, before anything runs."""
    new_exercise("double-it", tmp_path / "double_it")
    path = tmp_path / "double_it" / "exercise.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(LoadError, match=says):
        from_folder(tmp_path)


def test_a_mistake_may_be_made_in_several_ways(tmp_path):
    """Each way has its numbers, and all have one name."""
    new_exercise("double-it", tmp_path / "double_it")
    path = tmp_path / "double_it" / "exercise.toml"
    path.write_text(path.read_text().replace('{ factor = "3" }', '[{ factor = "3" }, { factor = "-2" }]', 1))
    first, second, *_ = from_folder(tmp_path)["double-it"].mistakes
    assert (first.name, first.hints) == (second.name, second.hints)
    assert [first.choices, second.choices] == [{"factor": "3"}, {"factor": "-2"}]


def test_a_folder_that_cannot_be_loaded_says_why(tmp_path):
    """A missing folder, one without exercises, code that raises, a draw and a bad id are errors in words."""
    with pytest.raises(LoadError, match="no folder"):
        from_folder(tmp_path / "none")
    with pytest.raises(LoadError, match="holds no exercise"):
        from_folder(tmp_path)
    new_exercise("bad", tmp_path / "bad")
    (tmp_path / "bad" / "trials.py").write_text("1 / 0")
    with pytest.raises(LoadError, match="ZeroDivisionError"):
        _ = from_folder(tmp_path)["bad"].checks
    new_exercise("slip", tmp_path / "slip")
    path = tmp_path / "slip" / "exercise.toml"
    path.write_text(path.read_text().replace("normal(batch, position)", "normal(batch, positions)"))
    with pytest.raises(
        LoadError, match=r"slip, 'several sequences': .*'positions' is not defined.* It may use"
    ):
        Plan(from_folder(tmp_path / "slip")["slip"], 0)
    path.write_text(path.read_text().replace('args = ["x"]', 'args = ["y"]'))
    with pytest.raises(
        LoadError, match=r"'several sequences': call: y: no draw and no size. There are: x, batch"
    ):
        _ = from_folder(tmp_path / "slip")["slip"].checks
    with pytest.raises(ArgumentError, match="lower-case words"):
        new_exercise("Double It", tmp_path / "double")


def test_trials_of_a_folder_may_share_a_file_beside_it(tmp_path):
    """Several exercises of a teacher's may use one module of theirs, and a shared toml with its functions."""
    shutil.copytree(TEMPLATE, tmp_path / "twice")
    (tmp_path / "course_parts.py").write_text("FACTOR = 2\n")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "way.toml").write_text('[conventions.way]\nup = "up."\ndown = "down."\n')
    (tmp_path / "shared" / "way.py").write_text("def half(x):\n    return x / 2\n")
    trials, toml = tmp_path / "twice" / "trials.py", tmp_path / "twice" / "exercise.toml"
    trials.write_text("from course_parts import FACTOR\n")
    text = toml.read_text().replace('["neighbour", "always"]', '["way", "always"]')
    toml.write_text(text.replace('factor = "2"', 'factor = "4 * half(FACTOR)"', 1))
    exercise = from_folder(tmp_path)["twice"]
    assert list(exercise.conventions) == ["way"]
    assert [trial.name for trial in exercise.checks.trials] == ["several sequences", "one sequence"]
    assert exercise.checks.reference(Case((torch.ones(1),))) == 4.0
    assert str(tmp_path) not in sys.path


def test_mutations_change_one_thing_each():
    """Operators, comparisons, constants and terms; every mutant is another program that parses."""
    path = Path(__file__).parent.parent.parent / "bench" / "mutations.py"
    spec = importlib.util.spec_from_file_location("bench_mutations", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_mutations"] = module
    spec.loader.exec_module(module)
    source = "def f(x, n):\n    return (x + 2) * 3 if n > 1 else -x"
    texts = [mutation.source for mutation in module.mutations(source)]
    assert len(set(texts)) == len(texts)
    for wanted in ("(x - 2) * 3", "(x + 3) * 3", "(x + 2) / 3", "n >= 1", "n > 2", "x * 3"):
        assert any(wanted in text for text in texts), wanted
    for text in texts:
        ast.parse(text)
