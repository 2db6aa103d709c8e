"""Mistakes are named by the choices of the reference that give an answer's numbers, and by nothing less."""

import re
import tomllib

import pytest
import torch

from regard.checking.catalogue import OURS, ours
from regard.checking.child.messages import Failure, Outcome
from regard.checking.compare import equal_rows
from regard.checking.forms import FORMS, Whatever
from regard.checking.naming import Space, best_verdict, diagnosis
from regard.checking.plan import Plan
from regard.checking.spec import Mistake
from regard.checking.trials import formula, worked
from regard.errors import LoadError


@pytest.fixture(scope="module")
def space():
    return Space(Plan(ours()["dot-product-attention"], 3))


def outcomes(space, only=lambda run: True, fails=(), **choices):
    """What an answer gives that makes these choices, in the runs that `only` holds for."""
    given = {}
    for run in space.plan.runs:
        chosen = choices if only(run) else {}
        value = space.plan.checks.reference(run.case, **chosen)
        given[run.id] = Outcome(value=value, again=value)
        if run.item.name in fails:
            given[run.id] = Outcome(error=Failure("error", "RuntimeError"))
    return given


def names(space, given):
    choices, verdict = best_verdict(space.plan, given)
    known = diagnosis(space, given, choices, verdict)
    return [(mistake.name, named.where) for named in known.named for mistake in named.mistakes], known.nearest


def test_two_mistakes_beside_a_convention_are_both_named(space):
    """Hiding with a large finite number is a convention; it does not keep two mistakes from their names."""
    given = outcomes(space, empty_row="uniform", mask="~hidden", scale="1")
    assert sorted(names(space, given)[0]) == [
        ("attention without its scale", ""),
        ("the mask is upside down", ""),
    ]


def test_two_mistakes_that_both_change_every_number_are_named():
    """Neither explains a row by itself, nor is it among the nearest: every pair is looked at."""
    space = Space(Plan(ours()["gru-step"], 3))
    given = outcomes(space, update_by="of_r", reset_by="of_z", new="r * candidate(of_x + whole + b)")
    assert sorted(name for name, _ in names(space, given)[0]) == [
        "the whole candidate is reset",
        "update and reset gate change places",
    ]


def test_a_mistake_in_some_calls_is_named_with_where_it_is_met(space):
    """A softmax along the wrong axis where there are no lengths: the other calls are right."""
    given = outcomes(space, lambda run: len(run.case.args) < 4, softmax="scores.softmax(-2)")
    (name,), _ = names(space, given)
    assert name == ("softmax over the queries instead of the keys", "in the failing calls")


def test_exceptions_name_nothing(space):
    """Raising where a known mistake raises too is no evidence for it."""
    every = {item.name for item in space.plan.checks.items}
    assert names(space, outcomes(space, fails=every)) == ([], "")


@pytest.mark.parametrize(("rows", "told"), [(1, True), (9, False)], ids=["one row", "most rows"])
def test_the_nearest_mistake_is_told_where_it_explains_nine_tenths_of_the_wrong_rows(space, rows, told):
    """Calls that one mistake explains, beside rows that nothing does: the nearest is told if it is near."""
    given = outcomes(space, lambda run: len(run.case.args) < 4, scale="1")
    for run in space.plan.runs:
        if len(run.case.args) < 4 and (told is False or run.item.name == "queries of four numbers"):
            output, weights = (part.clone() for part in given[run.id].value)
            output.view(-1, output.shape[-1])[:rows] += 0.3
            given[run.id] = Outcome(value=(output, weights), again=(output, weights))
    named, nearest = names(space, given)
    assert named == []
    assert ("attention without its scale" in nearest) is told


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda out, weights: (out * 0, weights * 0), "the result is 0 everywhere"),
        (lambda out, weights: (out.relu(), weights), "a relu is taken of the result"),
        (lambda out, weights: (-out, -weights), "the result has the wrong sign"),
        (lambda out, weights: (out.exp(), weights.exp()), "the exponential of the result is returned"),
        (lambda out, weights: (weights, weights), None),
        (lambda out, weights: (out, out), "the first part is returned in every place"),
    ],
    ids=["zeros", "relu", "sign", "exponential", "weights twice", "output twice"],
)
def test_a_function_of_the_right_result_is_named(space, change, name):
    """Of all parts or of the first alone; a form is of the whole result, so a part of one names nothing."""
    given = outcomes(space)
    changed = {id: change(*outcome.value) for id, outcome in given.items()}
    given = {id: Outcome(value=value, again=value) for id, value in changed.items()}
    assert names(space, given)[0] == ([(name, "")] if name else [])


@pytest.mark.parametrize(
    ("factors", "says"),
    [((0.5, 0.5), "a number: 0.5. All"), ((3.0, 1.0), "a number: 3 in the first part. All")],
)
def test_a_multiple_of_the_right_result_is_named_with_its_factor(space, factors, says):
    """One number for each call, which the sentence tells."""
    changed = {
        id: tuple(part * factor for part, factor in zip(outcome.value, factors, strict=True))
        for id, outcome in outcomes(space).items()
    }
    given = {id: Outcome(value=value, again=value) for id, value in changed.items()}
    choices, verdict = best_verdict(space.plan, given)
    (named,) = diagnosis(space, given, choices, verdict).named
    assert says in named.sentence


def test_rows_are_compared_one_by_one():
    """A row that differs leaves the others equal; another form makes all of them differ."""
    first = torch.arange(6.0).reshape(2, 3)
    second = first.clone()
    second[1, 2] = 9.0
    assert equal_rows(first, second, 1e-5).tolist() == [True, False]
    assert equal_rows((first, 1), (second, 1), 1e-5).tolist() == [True, False, True]
    assert equal_rows(first, first.T, 1e-5).tolist() == [False, False]
    assert equal_rows((first, second), (first, Whatever()), 1e-5).all()


def test_a_form_that_a_result_cannot_have_is_an_error():
    """A tensor has no second part, and a number no axes."""
    assert [form for form in FORMS if form and form in ("nothing", "more beside it")]
    assert FORMS["parts turned round"]((1, 2)) == [2, 1]
    for form in ("the first part", "parts turned round"):
        with pytest.raises(IndexError):
            FORMS[form](torch.ones(2))


def test_the_default_choices_are_our_own_attention():
    """The reference that mistakes depart from is the attention that everything else uses."""
    from regard.attention.scores import ScoreRule
    from regard.attention.softmax import attend
    from regard.attention.visibility import Visibility

    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 11, 7), torch.randn(2, 3, 11, 13)
    lengths = torch.tensor([4, 11])
    formulas = tomllib.loads((OURS / "shared" / "attention.toml").read_text(encoding="utf-8"))["formulas"]
    formulas["out"] = "attended(q, k, v, lambda scores: past_lengths(lengths, scores), 0)[0]"
    mine = worked(formulas, {}, q=q, k=k, v=v, lengths=lengths, empty_row="zeros")
    torch.testing.assert_close(mine, attend(q, k, v, ScoreRule(visible=Visibility(lengths=lengths))).out)


def test_a_formula_that_cannot_be_read_is_an_error_with_the_exercise_the_formula_and_its_names():
    """A slip of the pen in exercise.toml is said to the teacher; it is no mistake that never happens."""
    assert formula("z * h + new", z=2, h=3, new=1) == 7
    with pytest.raises(NameError, match=r"'z \* g' cannot be read: name 'g' .* It may use: torch, z, h\."):
        formula("z * g", z=2, h=3)
    space = Space(Plan(ours()["gru-step"], 3))
    slip = Mistake("a slip", ("", "", "", ""), {"mix": "z * h +"})
    with pytest.raises(LoadError, match=r"gru-step, with .*'z \* h \+' cannot be read"):
        space.raw(space.runs[0], {}, [slip])


def test_rows_of_zeros_do_not_name_a_mistake_that_gives_zeros_too():
    """What is wrong is 0: that is said, and no mistake is named whose numbers happen to be 0 there."""
    space = Space(Plan(ours()["multi-head-mask"], 1))
    given = outcomes(space)
    for run in space.runs:
        if run.case.kwargs.get("mask") is not None:
            value = given[run.id].value.clone()
            value[:, ::2] = 0.0
            given[run.id] = Outcome(value=value)
    choices, verdict = best_verdict(space.plan, given)
    found = diagnosis(space, given, choices, verdict)
    assert found.named == ()
    assert re.fullmatch(r"(\d+) of the \1 wrong rows of your output are 0\.", found.nearest)
