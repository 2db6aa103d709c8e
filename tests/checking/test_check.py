"""The whole check, on answers as students write them: right ones pass, wrong ones are told what they did."""

from dataclasses import replace

import pytest
import torch

from regard.checking.check import Checker
from regard.checking.compare import difference
from regard.checking.plan import Plan
from regard.checking.reports.terminal import report
from regard.checking.submission import answered, from_source, read

SOFTMAX = """
import torch
def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        return torch.softmax(X, -1)
    if valid_lens.dim() == 1:
        valid_lens = valid_lens[:, None]
    hidden = torch.arange(X.shape[2], device=X.device) >= valid_lens[:, :, None]
    {body}
"""
HIDE = 'return torch.softmax(X.masked_fill(hidden, float("-inf")), -1).masked_fill(hidden, 0)'


def names(result):
    return [mistake.name for each in result.mistakes for mistake in each.mistakes]


def failed(result):
    return {check.name for check in result.checks if not check.passed}


def test_a_right_answer_passes_every_check(check):
    """Written in yet another way than the variants we know."""
    result = check(SOFTMAX.format(body=HIDE), "masked-softmax")
    assert failed(result) == set()
    assert result.passed
    assert names(result) == []


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("w = torch.softmax(X, -1) * ~hidden; return w", "masked after the softmax"),
        (
            "return torch.softmax(X.masked_fill(hidden, 0), -1) * ~hidden",
            "hidden scores are set to 0, and their weights too",
        ),
        (
            "X = torch.where(hidden, X, torch.full_like(X, -torch.inf)); return X.softmax(-1).nan_to_num(0)",
            "the mask is upside down",
        ),
    ],
    ids=["after", "zero", "polarity"],
)
def test_a_mistake_is_named_whatever_its_code_looks_like(check, body, name):
    """The answer shares no line with the known mistake: its numbers give it away."""
    result = check(SOFTMAX.format(body=body), "masked-softmax")
    assert not result.passed
    assert names(result) == [name]


def test_two_mistakes_at_once_are_both_named(check):
    """An answer with two independent mistakes is told both."""
    text = (
        "import torch\ndef rnn_step(x, h, W_x, W_h, b):\n"
        "    return torch.sigmoid(torch.einsum('i,ij->j', x, W_x) - b + torch.einsum('i,ij->j', h, W_h))\n"
    )
    assert set(names(check(text, "rnn-step"))) == {"sigmoid instead of tanh", "the bias subtracted"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return torch.softmax(X.masked_fill(hidden, float('-inf')), -1)", "NaN, as -inf"),
        ("return torch.softmax(torch.where(hidden, torch.full_like(X, -60000.), X), -1)", "the same weight"),
        ("return torch.softmax(X.masked_fill(hidden, -1e9), -1)", "does not fit float16"),
    ],
    ids=["nan", "uniform", "half"],
)
def test_another_convention_passes_and_is_told(check, body, says):
    """What an empty row gives is a choice: a different one is no mistake, but it is said."""
    result = check(SOFTMAX.format(body=body), "masked-softmax")
    assert failed(result) == set()
    assert any(says in note for note in (*result.conventions, *result.notes))


@pytest.mark.parametrize(
    ("body", "which"),
    [
        (f"X.masked_fill_(hidden, -9.); {HIDE}", "inputs unchanged"),
        (f"X = X.float(); {HIDE}", "float64"),
        (f"X.view(-1); {HIDE}", "non-contiguous inputs"),
        (f"X = X.detach(); {HIDE}", "gradients"),
        ("e = X.exp() * ~hidden; return e / (e.sum(-1, keepdim=True) + 1e-30)", "large scores"),
    ],
    ids=["in place", "dtype", "view", "gradient", "overflow"],
)
def test_findings_that_leave_the_numbers_right_still_fail(check, body, which):
    """Fragile answers are told in which way."""
    result = check(SOFTMAX.format(body=body), "masked-softmax")
    assert which in failed(result)


ON_THE_CPU = f"hidden = hidden & torch.ones(X.shape[2], dtype=torch.bool); {HIDE}"


def test_a_slip_that_only_another_device_shows_is_a_note_unless_it_is_asked_for(check, exercises, runner):
    """The note has its line; `--portable` and an assignment make it count."""
    text = SOFTMAX.format(body=ON_THE_CPU)
    result = check(text, "masked-softmax")
    assert failed(result) == set()
    (note,) = (note for note in result.notes if note.startswith("not counted, device:"))
    assert "torch.ones(X.shape[2]" in note
    checker = Checker(exercises, runner, 23, portable=["masked-softmax"])
    submission = from_source(text)
    (answer,) = answered(submission, exercises, "masked-softmax")
    assert failed(checker.check(submission, answer)) == {"device"}


def test_a_device_slip_does_not_hide_what_is_worse(check):
    """An input that is written into and a gradient that is cut are each told in their own sentence."""
    worse = ON_THE_CPU.replace("hidden = ", "X.masked_fill_(hidden, -9.); X = X.detach(); hidden = ", 1)
    result = check(SOFTMAX.format(body=worse), "masked-softmax")
    told = report(result, width=200)
    assert "X was changed by the call" in told
    assert "gradient" in told


def test_a_failing_check_is_shrunk_to_its_smallest_case(check):
    """Lengths that only go wrong from two queries and two sequences on are shown with two of each."""
    body = "hidden = hidden.roll(1, 0); " + HIDE
    result = check(SOFTMAX.format(body=body), "masked-softmax")
    shown = next(
        each for each in result.checks if each.difference is not None and each.difference.numbers is not None
    )
    assert shown.sizes["batch"] == 2
    assert shown.sizes["key"] == 2
    assert shown.sizes["query"] == 1
    assert [tensor.shape for tensor in shown.difference.numbers] == [(2, 1, 2)] * 3


def test_the_same_seed_gives_the_same_report(check):
    """`--seed` repeats inputs, and with them every number of the report."""
    text = SOFTMAX.format(body="return X")
    first, again = (check(text, "masked-softmax") for _ in range(2))
    assert [each.message for each in first.checks] == [each.message for each in again.checks]


@pytest.mark.parametrize(
    "trick",
    [
        "torch.Tensor.__eq__ = lambda a, b: True\ntorch.allclose = torch.equal = lambda *a, **k: True",
        "torch.Tensor.numpy = lambda self: __import__('numpy').zeros(1)",
        "import sys\nsys.modules['_answer.harness'].packed = lambda value: None",
        "import gc\nfor o in gc.get_objects():\n    if type(o) is dict and 'value' in o: o.clear()",
    ],
)
def test_tricks_do_not_make_a_wrong_answer_right(check, trick):
    """Replacing parts of torch or of the harness changes nothing: nothing there knows what is right."""
    result = check(f"import torch\n{trick}\ndef masked_softmax(X, v=None): return X\n", "masked-softmax")
    assert not result.passed


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def masked_softmax(X, valid_lens=None):\n    raise NotImplementedError\n", "not written yet"),
        ("def masked_softmax(X, valid_lens=None):\n    return None\n", "returns None"),
        ("def masked_softmax(X, valid_lens=None):\n    return X, X\n", "it must return"),
        ("def masked_softmax(X, valid_lens=None):\n    return X[..., :-1]\n", "the shape must be"),
        ("def masked_softmax(X):\n    return X\n", "TypeError"),
        (
            "def masked_softmax(X, valid_lens=None):\n    while True: pass\n",
            "too slow: not finished after 3 s",
        ),
        ("def masked_softmax(X, valid_lens=None):\n    import os; os._exit(0)\n", "ended Python"),
        ("def masked_softmax(X, valid_lens=None):\n    return open\n", "it must return"),
    ],
)
def test_an_answer_that_does_not_work_is_told_why(check, text, says):
    """Each way of not giving a result has its own sentence."""
    result = check(text, "masked-softmax")
    assert not result.passed
    assert any(says in each.message for each in result.checks)


def test_a_notebook_with_sanity_cells_plots_and_d2l_is_checked_as_it_is(checker, tmp_path):
    """Failing asserts, plots, missing packages and training loops cost nothing; what was lent is said."""
    import json

    cells = [
        "%matplotlib inline\nfrom d2l import torch as d2l\nimport matplotlib.pyplot as plt",
        "import no_such_package as nsp",
        "nsp.init(project='x')\nassert False, 'a check of the course'",
        "import torch\nfrom torch import nn\n" + multi_head_with_d2l(),
        "out = MultiHeadAttention(20, 5, 0.5)\nd2l.check_shape(torch.ones(2, 3), (2, 3))",
        "plt.plot([1, 2]); plt.show()",
        "while True: pass",
    ]
    code = [{"cell_type": "code", "source": cell, "metadata": {}} for cell in cells]
    path = tmp_path / "homework.ipynb"
    path.write_text(json.dumps({"cells": code, "nbformat": 4}))
    submission = read(path)
    (answer,) = answered(submission, checker.exercises, "multi-head")
    result = checker.check(submission, answer)
    assert failed(result) == set()
    told = " ".join(result.notes)
    for part in ("%matplotlib", "d2l", "no_such_package", "AssertionError", "cell 7, line 1"):
        assert part in told


def multi_head_with_d2l():
    """The textbook's class, whose attention comes from the package."""
    return """
class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout, bias=False, **kwargs):
        super().__init__()
        self.heads = num_heads
        self.attention = d2l.DotProductAttention(dropout)
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.LazyLinear(num_hiddens, bias=bias) for _ in range(4))
    def forward(self, queries, keys, values, valid_lens):
        def split(x):
            return x.reshape(*x.shape[:2], self.heads, -1).permute(0, 2, 1, 3).flatten(0, 1)
        q, k, v = split(self.W_q(queries)), split(self.W_k(keys)), split(self.W_v(values))
        if valid_lens is not None:
            valid_lens = valid_lens.repeat_interleave(self.heads, 0)
        out = self.attention(q, k, v, valid_lens)
        return self.W_o(out.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2))
"""


def test_parameters_that_do_not_fit_are_listed_on_both_sides(check):
    """A layer under another name and size is shown beside the one that was expected."""
    text = "import torch\nfrom torch import nn\nd2l = None\n" + multi_head_with_d2l().replace(
        "self.W_q, self.W_k, self.W_v, self.W_o = (nn.LazyLinear(num_hiddens, bias=bias) for _ in range(4))",
        "self.W_q = self.W_k = self.W_v = nn.Linear(num_hiddens, num_hiddens)\n"
        "        self.project = nn.Linear(num_hiddens, 7)",
    ).replace("d2l.DotProductAttention(dropout)", "None")
    result = check(text, "multi-head")
    (told,) = (each.message for each in result.checks if each.name == "parameters")
    assert "W_o.weight" in told
    assert "project.weight" in told


def test_bare_parameters_and_other_spellings_get_their_weights(check):
    """nn.Parameter used as x @ W, and w_q for W_q, are filled all the same."""
    text = multi_head_with_d2l().replace(
        "self.W_q, self.W_k, self.W_v, self.W_o = (nn.LazyLinear(num_hiddens, bias=bias) for _ in range(4))",
        "for n in 'qkvo':\n"
        "            setattr(self, 'w_' + n, nn.Parameter(torch.randn(num_hiddens, num_hiddens)))\n"
        "            setattr(self, 'b_' + n, None)",
    )
    for letter in "qkvo":
        text = text.replace(f"self.W_{letter}(", f"(lambda x: x @ self.w_{letter})(")
    result = check("import torch\nfrom torch import nn\nfrom d2l import torch as d2l\n" + text, "multi-head")
    assert failed(result) == {"parameters", "with biases"}  # the option `bias` is all that this one lacks


def test_wrong_shape_comments_are_reported_and_fail_only_where_they_count(exercises, runner):
    """`# [b, q, k]` beside a tensor of another shape is told; points for it are the teacher's choice."""
    text = SOFTMAX.format(body=HIDE).replace(
        "valid_lens[:, :, None]", "valid_lens[:, :, None]  # [b, 1, q, k]"
    )
    submission = from_source(text)
    for counts in (False, True):
        checker = Checker(exercises, runner, 3, comments_count=counts)
        (answer,) = answered(submission, checker.exercises, "masked-softmax")
        result = checker.check(submission, answer)
        assert result.passed is not counts
        assert any("[b, 1, q, k]" in each.message for each in result.checks)


def test_files_of_all_kinds_give_one_result_each(checker, tmp_path):
    """A broken file, an empty one and a good one: each has its result, in order."""
    texts = {"broken.py": "def f(:", "empty.py": "x = 1", "good.py": SOFTMAX.format(body=HIDE)}
    paths = []
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        paths.append(str(tmp_path / name))
    results = list(checker.check_files(paths))
    assert [result.passed for result in results] == [False, False, True]
    assert [result.exercise for result in results] == [None, None, "masked-softmax"]
    assert set(results[2].as_json()) == {
        "file",
        "exercise",
        "passed",
        "mistakes",
        "nearest",
        "conventions",
        "checks",
        "seed",
    }


LAYERS = "self.W_q, self.W_k, self.W_v, self.W_o = (nn.LazyLinear(num_hiddens, bias=bias) for _ in range(4))"
HEAD = "import torch\nfrom torch import nn\nfrom d2l import torch as d2l\n"


def renamed(*names):
    """The textbook's class with its four layers under other names."""
    text = multi_head_with_d2l()
    for ours, theirs in zip(("W_q", "W_k", "W_v", "W_o"), names, strict=True):
        text = text.replace(f"self.{ours}", f"self.{theirs}")
    return HEAD + text


@pytest.mark.parametrize(
    "names",
    [
        ("query", "key", "value", "out_proj"),
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        ("linear_q", "linear_k", "linear_v", "fc_out"),
        ("toQueries", "toKeys", "toValues", "combine"),
    ],
    ids=lambda names: names[0],
)
def test_layers_under_common_names_get_their_weights(check, names):
    """query, q_proj and linear_q are W_q; the one that is left is W_o."""
    text = renamed(*names).replace("nn.LazyLinear(num_hiddens,", "nn.Linear(num_hiddens, num_hiddens,")
    assert failed(check(text, "multi-head")) == set()


FUSED = """
class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout, bias=False, **kwargs):
        super().__init__()
        self.heads = num_heads
        self.attention = d2l.DotProductAttention(dropout)
        self.in_proj_weight = nn.Parameter(torch.randn(3 * num_hiddens, num_hiddens))
        self.in_proj_bias = nn.Parameter(torch.randn(3 * num_hiddens)) if bias else None
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)
    def forward(self, queries, keys, values, valid_lens):
        def split(x):
            return x.reshape(*x.shape[:2], self.heads, -1).permute(0, 2, 1, 3).flatten(0, 1)
        w = self.in_proj_weight.chunk(3)
        b = self.in_proj_bias.chunk(3) if self.in_proj_bias is not None else (None, None, None)
        q, k, v = (split(nn.functional.linear(*p)) for p in zip((queries, keys, values), w, b))
        if valid_lens is not None:
            valid_lens = valid_lens.repeat_interleave(self.heads, 0)
        out = self.attention(q, k, v, valid_lens)
        return self.W_o(out.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2))
"""


def test_one_matrix_for_queries_keys_and_values_is_filled(check):
    """in_proj_weight holds the three one below the other, and its gradient is read in three parts."""
    assert failed(check(HEAD + FUSED, "multi-head")) == set()


def test_layers_whose_names_tell_nothing_are_taken_in_order_or_asked_for(check):
    """a, b, c, d in the order of the task pass and are noted; otherwise the report asks, and says no more."""
    linear = ("nn.LazyLinear(num_hiddens,", "nn.Linear(num_hiddens, num_hiddens,")
    right = check(renamed("a", "b", "c", "d").replace(*linear), "multi-head")
    assert failed(right) == set()
    assert any("a.weight as W_q.weight" in note for note in right.notes)
    text = (
        renamed("d", "c", "b", "a")
        .replace(*linear)
        .replace("self.d, self.c, self.b, self.a =", "self.a, self.b, self.c, self.d =")
    )
    asked = check(text, "multi-head")
    told = {each.message for each in asked.checks if not each.passed}
    assert len(told) == 2
    assert any("which layer is which?" in message for message in told)
    assert asked.mistakes == ()


def test_nothing_is_said_of_numbers_that_come_of_random_weights(check):
    """Where parameters do not fit, the rest is not tried: no false sentence on values."""
    text = renamed("W_q", "W_k", "W_v", "W_o").replace(
        LAYERS, LAYERS + "\n        self.more = nn.Linear(3, 5)"
    )
    told = {each.message for each in check(text, "multi-head").checks if not each.passed}
    assert len(told) == 2
    assert any("more.weight" in message for message in told)


def test_layers_made_in_forward_are_told(check):
    """They have no place in the module when it is made."""
    text = renamed("W_q", "W_k", "W_v", "W_o").replace(LAYERS, "self.n = num_hiddens")
    text = text.replace(
        "    def split", "    self_W = lambda x: nn.Linear(x.shape[-1], self.n)(x)\n        def split"
    )
    for letter in "qkvo":
        text = text.replace(f"self.W_{letter}(", "self_W(")
    told = [each.message for each in check(text, "multi-head").checks if each.name == "parameters"]
    assert "Layers are made in __init__" in told[0]


def test_a_result_that_changes_from_call_to_call_is_told(check):
    """Chance in an answer has its own sentence, whatever else is wrong."""
    text = SOFTMAX.format(body="return torch.softmax(X + torch.rand_like(X), -1)")
    result = check(text, "masked-softmax")
    assert any("changes from call to call" in each.message for each in result.checks)


@pytest.mark.parametrize("body", ["@torch.compile\ndef", "@torch.compile(mode='max-autotune')\ndef"])
def test_a_compiled_answer_is_checked_without_the_compiler(check, body):
    """torch.compile gives the same numbers after minutes: it is left out."""
    assert check(SOFTMAX.format(body=HIDE).replace("def", body, 1), "masked-softmax").passed


def test_an_optimizer_steps_without_the_compiler(check):
    """A step asks the compiler to stand aside, and importing it takes longer than an answer may."""
    step = """w = torch.ones(1, requires_grad=True)
    torch.optim.AdamW([w]).step()
    import sys
    assert not any(name.startswith("torch._dynamo.") for name in sys.modules)
    """
    assert check(SOFTMAX.format(body=step + HIDE), "masked-softmax").passed


def test_conventions_are_told_apart_all_at_once(exercises):
    """Answers are checked side by side: what another asks for meanwhile is whole."""
    plan = Plan(exercises["masked-softmax"], 1)
    ours, real, meanwhile = plan.choices()[0], plan.checks.reference, []

    def reference(case, **choices):
        if choices != ours and not meanwhile:
            meanwhile.append(None)
            meanwhile[0] = list(plan.told_apart)
        return real(case, **choices)

    plan.checks = replace(plan.checks, reference=reference)
    assert plan.told_apart == meanwhile[0]
    assert len(meanwhile[0]) > 1


def test_strict_fails_what_the_task_says_otherwise(exercises, runner):
    """A convention of the student's passes unless the assignment is strict."""
    text = SOFTMAX.format(body="return torch.softmax(X.masked_fill(hidden, float('-inf')), -1)")
    submission = from_source(text)
    for strict in (False, True):
        checker = Checker(exercises, runner, 3, strict=strict)
        (answer,) = answered(submission, checker.exercises, "masked-softmax")
        result = checker.check(submission, answer)
        assert failed(result) == ({"as the task says"} if strict else set())


def test_numbers_that_differ_are_shown_as_different():
    """Never "expected -1.1329, yours is -1.1329"."""
    want = torch.tensor([-1.13285, 2.0], dtype=torch.float64)
    told = difference(want, want + torch.tensor([1e-5, 0.0], dtype=torch.float64), 1e-6)
    assert told.message == "at (0,): expected -1.13285, yours is -1.13284 (1 of 2 numbers differ)."


def test_arguments_are_called_by_their_names(check):
    """The gradient that is missing, and the input that was written into, are those of the signature."""
    result = check(SOFTMAX.format(body=f"X.masked_fill_(hidden, -9.); {HIDE}"), "masked-softmax")
    assert any("X was changed by the call" in each.message for each in result.checks)
    result = check(SOFTMAX.format(body=f"X = X.detach(); {HIDE}"), "masked-softmax")
    assert any("no gradient reaches X:" in each.message for each in result.checks)


def test_a_shape_is_not_shrunk_until_it_says_nothing(check):
    """A missing dimension is told at sizes that differ."""
    result = check(SOFTMAX.format(body="return torch.softmax(X, -1).sum(1)"), "masked-softmax")
    first = next(each for each in result.checks if not each.passed)
    assert "the shape must be (batch 2, query 3, key 7)" in first.message


def test_answers_that_are_defined_in_other_ways_are_run(checker, tmp_path):
    """What is found without running a file is also there when it runs: a main block, a file beside it."""
    (tmp_path / "beside.py").write_text(SOFTMAX.format(body=HIDE))
    text = SOFTMAX.format(body=HIDE).strip().replace("\n", "\n    ")
    texts = {
        "main": f"if __name__ == '__main__':\n    {text}\n    while True: pass\n",
        "imported": "from .beside import masked_softmax\n",
        "lambda": "import beside\nmasked_softmax = lambda X, v=None: beside.masked_softmax(X, v)\n",
    }
    for name, content in texts.items():
        (tmp_path / f"{name}.py").write_text(content)
    results = checker.check_files([str(tmp_path / f"{name}.py") for name in texts])
    assert [(result.exercise, failed(result)) for result in results] == [("masked-softmax", set())] * 3


def test_a_softmax_of_probabilities_is_told_with_its_line(check):
    """In the answer, and in a line below it that draws them, say."""
    result = check(
        SOFTMAX.format(body=HIDE.replace("return ", "w = ") + "; return w.softmax(-1)"), "masked-softmax"
    )
    assert not result.passed
    assert any("a softmax of rows that are probabilities already" in note for note in result.notes)
    plotted = SOFTMAX.format(body=HIDE) + "\nshown = masked_softmax(torch.randn(1, 2, 3)).softmax(-1)\n"
    result = check(plotted, "masked-softmax")
    assert failed(result) == set()
    last = len(plotted.splitlines())
    assert any(note.startswith(f"line {last} takes a softmax of rows that are") for note in result.notes)
