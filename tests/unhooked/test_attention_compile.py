"""attend inside torch.compile: the same numbers and gradients."""

import pytest
import torch

from regard.attention.scores import ScoreRule, SlopeBias
from regard.attention.softmax import attend, weights
from regard.attention.visibility import Visibility

pytestmark = [
    # Where a graph breaks, dynamo itself looks at the .grad of what is no leaf.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    # Dynamo makes an instance of autograd.Function to trace one.
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated"),
]

RULES = {
    "default": ScoreRule(),
    "causal": ScoreRule(visible=Visibility(causal=True)),
    "lengths": ScoreRule(visible=Visibility(lengths=torch.tensor([0, 7]))),
    "window": ScoreRule(visible=Visibility(window=2, causal=True), bias=SlopeBias(torch.tensor([0.5]))),
    "softcap": ScoreRule(softcap=3.0, visible=Visibility(causal=True)),
}


@pytest.fixture(autouse=True)
def fresh():
    """No test sees what another one compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("path", ["plain", "tiled", "fused", None])
@pytest.mark.parametrize("name", RULES)
def test_compiled_attention_equals_eager(name, path):
    """Traced by dynamo and differentiated by AOT autograd; the compiler's own code is not ours to test."""
    if name == "softcap" and path == "fused":
        path = None
    q, k, v = (torch.randn(2, 3, n, 5, requires_grad=True) for n in (7, 11, 11))

    def both(q, k, v):
        out, lse = attend(q, k, v, RULES[name], path=path)
        return out, torch.where(torch.isfinite(lse), lse, 0.0)

    compiled = torch.compile(both, backend="aot_eager")
    results = []
    for function in (both, compiled):
        out, lse = function(q, k, v)
        results.append((out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), (q, k, v))))
    for got, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, expected)


def test_compiled_weights_equal_eager():
    """The whole table, causal."""
    q, k = torch.randn(2, 3, 7, 5), torch.randn(2, 3, 11, 5)
    compiled = torch.compile(weights, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, RULES["causal"]), weights(q, k, RULES["causal"]))


def test_attention_that_hides_nothing_compiles_to_one_graph():
    """Without a rule there is no check of the numbers, so nothing breaks the graph in two."""
    q, k, v = (torch.randn(1, 2, n, 3) for n in (5, 7, 7))
    compiled = torch.compile(lambda q, k, v: attend(q, k, v).out, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v), attend(q, k, v).out)
