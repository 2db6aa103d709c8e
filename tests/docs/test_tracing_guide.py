"""What the guide to tracing says that a trace says, it says."""

import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard

GUIDE = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text(encoding="utf-8")
X = torch.randn(1, 5, 4)
GPT = regard.load("pocket-gpt")
IDS = torch.tensor([GPT.tokenizer.encode("to be or not")])


def quoted(section):
    """What the first column of a section's table quotes."""
    rows = re.findall(r"^\| (`.+?) \|", GUIDE.partition(f"## {section}\n")[2].partition("\n## ")[0], re.M)
    return [re.search(r"``(.+?) ``|`(.+?)`", row) for row in rows]


class Module(nn.Module):
    """A model whose forward pass is a function."""

    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.linear(self.function(x))


class Returning(nn.Module):
    """A model that shows its weights, and multiplies with them in a way that nobody follows."""

    def forward(self, x, output_attentions=False):
        attention = (x @ x.mT).softmax(-1)
        out = torch.einsum("bij,bjd,d->bid", attention, x, torch.ones(4))
        return {"x": out, "attentions": (attention[:, None],)} if output_attentions else {"x": out}


def softmax(x):
    return (x @ x.mT).softmax(-1)


def watched(n):
    with regard.watch(GPT.model) as seen:
        for _ in range(n):
            GPT.model(IDS)
    return seen.trace


REFUSED = [
    lambda: regard.trace(nn.Linear(4, 4), X),
    lambda: regard.trace(Module(lambda x: F.dropout(softmax(x), 0.5, True) @ x), X),
    lambda: regard.trace(Module(lambda x: softmax(x) @ x), "a text"),
    lambda: regard.trace(regard.load("t5", random=True), "a text"),
    lambda: regard.trace(GPT, "to be " * 300),
    lambda: watched(2),
    lambda: watched(0),
    lambda: regard.trace(Module(lambda x: softmax(x) @ x), X * 1e6, dtype=torch.float16),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_refusal_says_what_the_guide_quotes(number):
    rows = quoted("When it refuses")
    assert len(rows) == len(REFUSED)
    with pytest.raises(regard.RegardError) as raised:
        REFUSED[number]()
    words = rows[number][1] or rows[number][2]
    assert words in str(raised.value)


def unverified():
    """A trace whose first layer does not give the model's output; tests/oracle has a model like that."""
    made = regard.trace(GPT, IDS)
    first, *others = made.checks.layers
    return replace(made, checks=replace(made.checks, layers=(replace(first, output=1.0), *others)))


def windows(x):
    own = x[:, :, None].expand(-1, -1, 3, -1) + torch.randn(3, 4)
    return torch.einsum("bnw,bnwd->bnd", (own * x[:, :, None]).sum(-1).softmax(-1), own)


def used_twice(x):
    weights = softmax(x)
    return weights @ x + torch.einsum("bij,bjd,d->bid", weights, x, torch.ones(4))


def folded():
    """A call that somebody else makes: it is not made again to measure what are heads."""
    model = Module(lambda x: (softmax(x.repeat(2, 1, 1)) @ x.repeat(2, 1, 1)).sum(0))
    with regard.watch(model) as seen:
        model(X)
    return seen.trace


MARKED = [
    unverified,
    lambda: regard.trace(Module(lambda x: softmax(x) * (softmax(x) > 0.3) @ x), X),
    lambda: regard.trace(Module(lambda x: softmax(x) @ x + softmax(x).sum()), X),
    lambda: regard.trace(Module(windows), X),
    lambda: regard.trace(Module(used_twice), X),
    folded,
    lambda: regard.trace(nn.Sequential(Module(lambda x: softmax(x) @ x), nn.Linear(4, 3), nn.Softmax(-1)), X),
    lambda: regard.trace(Returning(), X),
]


@pytest.mark.parametrize("number", range(len(MARKED)))
def test_a_mark_says_what_the_guide_quotes(number):
    rows = quoted("When it marks")
    assert len(rows) == len(MARKED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = MARKED[number]()
    assert rows[number][2] in repr(made)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_a_model_of_torch_jit_is_refused_in_our_words():
    class Attention(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    model = torch.jit.trace(Attention(), X)
    with pytest.raises(regard.RegardError, match="made no attention call that can be seen"):
        regard.trace(model, X)
