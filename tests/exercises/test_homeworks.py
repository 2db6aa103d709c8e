"""Whole notebooks in the form of four homeworks: right answers pass, and the known traps are told."""

import json
from pathlib import Path

import pytest

from regard.checking.catalogue import ours
from regard.checking.check import Checker

FOLDER = Path(__file__).parent / "homeworks"
ANSWERS = {
    "recurrent_to_multi_head": (
        "rnn-step rnn-forward lstm-step lstm-forward masked-softmax dot-product-attention multi-head"
    ),
    "warm_up_with_lengths_of_heads": "multi-head-lengths positions",
    "self_attention_with_dropout": "self-attention multi-head-self-attention",
    "argmax_wide_values_and_decoding": (
        "argmax-attention wide-values mqa-step mha-step quadratic-features moments linear-attention"
    ),
}
# notebook, what stands in it, what stands there instead, the exercise, what it is called
TRAPS = [
    (
        "recurrent_to_multi_head",
        "torch.repeat_interleave(valid_lens, repeats=self.num_heads, dim=0)",
        "valid_lens.repeat(self.num_heads, *[1] * (valid_lens.dim() - 1))",
        "multi-head",
        "`repeat` instead of `repeat_interleave` over the heads",
    ),
    (
        "recurrent_to_multi_head",
        "return torch.bmm(self.dropout(self.attention_weights), values), self.attention_weights",
        "return torch.bmm(self.dropout(self.attention_weights), values), "
        "torch.softmax(self.attention_weights, dim=-1)",
        "dot-product-attention",
        "softmax twice",
    ),
    (
        "warm_up_with_lengths_of_heads",
        "math.sqrt(self.qk_length)",
        "math.sqrt(self.value_length)",
        "multi-head-lengths",
        "scaled by the values' width",
    ),
    (
        "self_attention_with_dropout",
        "diagonal=1",
        "diagonal=0",
        "multi-head-self-attention",
        "a position does not see itself",
    ),
    (
        "argmax_wide_values_and_decoding",
        "math.sqrt(self.d_k)",
        "math.sqrt(self.d_v)",
        "wide-values",
        "scaled by the values' width",
    ),
    (
        "argmax_wide_values_and_decoding",
        "feats.append(math.sqrt(2) * x[..., i])",
        "feats.append(x[..., i])",
        "quadratic-features",
        "linear terms without their root of 2",
    ),
]


@pytest.fixture(scope="module")
def checker(runner):
    return Checker(ours(), runner, seed=11)


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answers_of_a_homework_pass(checker, name):
    """Every cell runs, every exercise of the notebook is found, and none is refused."""
    results = list(checker.check_files([str(FOLDER / f"{name}.ipynb")]))
    assert {result.exercise for result in results} == set(ANSWERS[name].split())
    failed = {
        result.exercise: [check.told for check in result.checks if not check.passed] for result in results
    }
    assert not any(failed.values()), failed


@pytest.mark.parametrize(("name", "old", "new", "exercise", "called"), TRAPS)
def test_a_trap_of_a_homework_is_told_by_its_name(checker, tmp_path, name, old, new, exercise, called):
    """The mistakes that such homework is known for are named in the notebook they are made in."""
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert json.dumps(old)[1:-1] in text
    path = tmp_path / f"{name}.ipynb"
    path.write_text(text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1]), encoding="utf-8")
    (result,) = checker.check_files([str(path)], exercise)
    assert not result.passed
    assert [mistake.name for named in result.mistakes for mistake in named.mistakes] == [called]
