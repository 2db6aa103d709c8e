"""A wrong number is confirmed in float64 before it is told, and only rounding is forgiven."""

import pytest
import torch

from regard.checking.catalogue import ours
from regard.checking.check import Checker, message
from regard.checking.compare import off
from regard.checking.naming import best_verdict
from regard.checking.plan import MOST_ROUNDING, Plan, Run
from regard.checking.submission import answered, from_source

SOFTMAX = """
import torch
def masked_softmax(X, valid_lens=None):
    if valid_lens is not None:
        lens = valid_lens if valid_lens.dim() == 2 else valid_lens[:, None]
        X = X.masked_fill(torch.arange(X.shape[-1], device=X.device) >= lens[..., None], float("-inf"))
    {returned}
"""
BY_LOGARITHM = "return torch.exp(X - torch.logsumexp(X, dim=-1, keepdim=True))"


@pytest.fixture(scope="module")
def result_of(runner):
    def check(returned, seed):
        checker = Checker({"masked-softmax": ours()["masked-softmax"]}, runner, seed)
        submission = from_source(SOFTMAX.format(returned=returned))
        (answer,) = answered(submission, checker.exercises, "masked-softmax")
        return checker.check(submission, answer)

    return check


def test_an_answer_that_rounds_otherwise_is_right(runner, result_of):
    """exp(X - logsumexp(X)) of scores around 900 is off in float32, and right in float64."""
    refused_in_float32 = []
    for seed in (2, 3):
        checker = Checker({"masked-softmax": ours()["masked-softmax"]}, runner, seed)
        submission = from_source(SOFTMAX.format(returned=BY_LOGARITHM))
        (answered_,) = answered(submission, checker.exercises, "masked-softmax")
        plan = checker.space(answered_.exercise).plan
        outcomes = runner.run(message(submission, answered_)[0], plan.orders).runs
        refused_in_float32 += [seed] if best_verdict(plan, outcomes)[1].failed else []
        result = checker.check(submission, answered_)
        assert result.passed, result.checks
        assert not result.mistakes
    assert refused_in_float32, "no seed shows what this test is about"


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("return X.exp() / X.exp().sum(-1, keepdim=True)", "nan"),
        ("return X.softmax(-1) + 1e-4", "expected"),
        ("return (X.float() if X.dtype == torch.float64 else X).softmax(-1)", "float64"),
    ],
    ids=["no maximum is subtracted", "a small constant is added", "a cast to float32"],
)
def test_what_is_more_than_rounding_stays_wrong(result_of, returned, said):
    result = result_of(returned, 3)
    failed = [f"{check.name}: {check.told}" for check in result.checks if not check.passed]
    assert any(said in text for text in failed), failed


def test_an_answer_that_does_not_run_in_float64_is_compared_by_the_references_condition(result_of):
    refuses = "assert X.dtype != torch.float64\n    "
    results = [result_of(refuses + BY_LOGARITHM, seed) for seed in (2, 3)]
    for result in results:
        assert [check.name for check in result.checks if not check.passed] == ["float64"]
    assert any("does not run in float64" in note for result in results for note in result.notes)


def test_draws_on_which_the_reference_is_ill_conditioned_are_drawn_again():
    """With this seed the first draw moves the reference by more than a tenth of the tolerance."""
    plan = Plan(ours()["self-attention"], 28)
    again = 0
    for run in plan.runs:
        if run.kind == "value" and not run.item.raises:
            (first,) = run.item.make(plan._draw(run.item))
            conditions = [
                plan.condition(Run(-1, "value", run.item, case), plan.choices()[0])
                for case in (first, run.case)
            ]
            assert conditions[1] <= max(MOST_ROUNDING * plan.tolerance, conditions[0])
            again += conditions[1] < conditions[0]
    assert again


def test_off_is_infinite_where_rounding_explains_nothing():
    one = torch.tensor([1.0, 2.0])
    assert off(one, torch.tensor([1.0, float("nan")])) == float("inf")
    assert off(one, torch.tensor([1.0])) == float("inf")
    assert off([1, 2], [1, 3]) == float("inf")
    assert off((one, None), [one + 1e-6, None]) == pytest.approx(5e-7, rel=0.1)
    assert off(torch.tensor([float("inf"), 1.0]), torch.tensor([7.0, 1.0])) == 0.0
