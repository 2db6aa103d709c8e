"""Circuits of tasks: prompts by their generators, faithfulness and areas by hand."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tiny_models import tiny

import regard
from regard.cli import main
from regard.commands import circuit as command
from regard.errors import ArgumentError
from regard.experiments import TASKS, TaskPrompts, circuit, task_prompts
from regard.experiments.circuits import KEPT, beyond_guessing
from regard.files.loading import load


def prompts_of(model, n_example=7, n=5):
    """Prompts whose right answer is what the model says, and the wrong one what it says least."""
    draw = torch.Generator().manual_seed(11)
    clean, corrupted = torch.randint(3, 97, (2, n_example, n), generator=draw)
    with torch.no_grad():
        logits = model.model(clean).logits[:, -1]
    return TaskPrompts("mine", clean, corrupted, logits.argmax(-1)[:, None], logits.argmin(-1)[:, None],
                       ("text",) * n_example)  # fmt: skip


def difference(model, prompts, outside=()):
    """The mean difference with some heads as on the corrupted prompts, in a run of its own."""
    source = regard.trace(model, prompts.corrupted, keep_v=True)
    with torch.no_grad(), regard.intervene(model) as run:
        for layer, head in outside:
            run.patch(layer=layer, head=head, source=source)
        logits = model.model(prompts.clean).logits[:, -1]
    rows = torch.arange(len(logits))
    return float((logits[rows, prompts.right[:, 0]] - logits[rows, prompts.wrong[:, 0]]).mean())


def test_faithfulness_and_areas_are_what_runs_by_hand_give():
    """The exact order, one point of its curve, both areas, and the smallest circuit."""
    model = tiny("llama")
    prompts = prompts_of(model)
    found = circuit(model, prompts)
    assert found.can
    assert found.n_right == 7
    places = [(layer, head) for layer in range(2) for head in range(6)]
    clean, without = difference(model, prompts), difference(model, prompts, places)
    assert found.clean == pytest.approx(clean, abs=1e-5)
    assert found.without == pytest.approx(without, abs=1e-5)
    for place in ((0, 2), (1, 5)):
        alone = clean - difference(model, prompts, [place])
        assert float(found.effects[place]) == pytest.approx(alone, abs=1e-5)
    order = sorted(places, key=lambda place: -float(found.effects[place]))
    exact = next(curve for curve in found.curves if curve.order == "exact")
    at = exact.sizes.index(4)
    by_hand = (difference(model, prompts, order[4:]) - without) / (clean - without)
    assert exact.faithfulness[at] == pytest.approx(by_hand, abs=1e-4)
    assert (exact.faithfulness[0], exact.faithfulness[-1]) == pytest.approx((0.0, 1.0), abs=1e-5)
    shares = np.array(exact.sizes) / 12
    assert exact.area == pytest.approx(np.trapezoid(exact.faithfulness, shares))
    assert exact.distance == pytest.approx(np.trapezoid(np.abs(1 - np.array(exact.faithfulness)), shares))
    assert {curve.order for curve in found.curves} == {"exact", "estimate", "weights", "random"}
    size = len(found.smallest)
    assert found.smallest == tuple(order[:size])
    for smaller in (size, size - 1):
        kept = (difference(model, prompts, order[smaller:]) - without) / (clean - without)
        assert (kept >= KEPT - 1e-4) == (smaller == size)
    assert found.figure().axes


def test_what_a_model_cannot_do_is_said_and_not_explained():
    """Right and wrong exchanged: it is never right, and there are no curves."""
    model = tiny("gpt2")
    prompts = prompts_of(model)
    wrong = TaskPrompts("mine", prompts.clean, prompts.corrupted, prompts.wrong, prompts.right, prompts.texts)
    found = circuit(model, wrong)
    assert not found.can
    assert found.curves == ()
    assert "cannot do mine: the right answer is ahead in 0 of 7 prompts" in found.verdict
    with pytest.raises(ArgumentError, match="cannot do mine"):
        found.figure()
    assert [beyond_guessing(n, 16) for n in (8, 11, 12, 16)] == [False, False, True, True]


def test_prompts_of_a_task_have_one_length_and_answers_of_one_token():
    """Induction of any model; the answer is the token that stood there the first time."""
    model = tiny("gpt2")
    prompts = task_prompts(model, "induction", 5, seed=3)
    assert prompts.clean.shape == prompts.corrupted.shape == (5, 18)
    for clean, corrupted, right, wrong in zip(
        *(part.tolist() for part in (prompts.clean, prompts.corrupted, prompts.right, prompts.wrong)),
        strict=True,
    ):
        assert clean[:6] == clean[12:]
        assert clean[6] == right[0] != wrong[0] == corrupted[6]
        assert [a == b for a, b in zip(clean, corrupted, strict=True)].count(False) == 1
    assert command.TASKS == TASKS
    with pytest.raises(ArgumentError, match="there is no task 'chess'"):
        task_prompts(model, "chess")
    with pytest.raises(ArgumentError, match="cannot be asked about capitals"):
        task_prompts(model, "capitals")  # its tokens are bytes


def test_the_difference_is_of_the_means_of_both_sides():
    """By hand: right 1 and 2, of which one is missing in the second example."""
    prompts = TaskPrompts("mine", torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long),
                          torch.tensor([[1, 2], [2, -1]]), torch.tensor([[0], [3]]), ("", ""))  # fmt: skip
    logits = torch.tensor([[1.0, 4.0, 6.0, 0.0], [9.0, 9.0, 5.0, 2.0]])
    assert prompts.difference(logits).tolist() == [4.0, 3.0]


@pytest.mark.slow
def test_the_task_generators_fit_the_real_tokenizer():
    """SmolLM2 is right on most prompts of every task, and less on the corrupted ones."""
    model = load("smollm2")
    for task in TASKS:
        prompts = task_prompts(model, task, 16)
        with torch.no_grad():
            clean, corrupted = (
                prompts.difference(model.model(ids, logits="last").logits[:, 0])
                for ids in (prompts.clean, prompts.corrupted)
            )
        assert int((clean > 0).sum()) >= 14, task
        assert float(corrupted.mean()) < float(clean.mean()) - 1, task


def test_the_command_says_first_what_the_model_cannot_do():
    """An untrained model does nothing; as words and as JSON."""
    line = ("circuit", "induction", "--model", "gpt2", "--random", "--examples", "5")
    printed = CliRunner().invoke(main, line)
    assert printed.exit_code == 0, printed.output
    assert "cannot do induction" in printed.output
    said = json.loads(CliRunner().invoke(main, (*line, "--json")).output)
    assert said["can"] is False
    assert said["curves"] == []
