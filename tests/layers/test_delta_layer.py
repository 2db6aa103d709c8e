"""The delta rule as a layer: chunks, steps and implicit weights are the same layer."""

import pytest
import torch

from regard.errors import ShapeError
from regard.layers.delta import DeltaAttention


def by_the_formula(layer, x):
    """One head and one token at a time: u = b (v - a S^T k), S = a S + k u^T, out = S^T q."""
    outs = []
    for head in range(layer.n_head):
        rows = slice(head * layer.qk_dim, (head + 1) * layer.qk_dim)
        value_rows = slice(head * layer.v_dim, (head + 1) * layer.v_dim)
        state, read = torch.zeros(x.shape[0], layer.qk_dim, layer.v_dim, dtype=x.dtype), []
        for token in x.unbind(1):
            q, k = (linear(token)[:, rows] for linear in (layer.query, layer.key))
            q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
            kept = layer.keep(token)[:, head, None].sigmoid()
            written = layer.write(token)[:, head, None].sigmoid()
            state = state * kept[..., None]
            wrong = written * (layer.value(token)[:, value_rows] - (state.mT @ k[..., None])[..., 0])
            state = state + k[..., None] * wrong[:, None]
            read.append((state.mT @ q[..., None])[..., 0])
        outs.append(torch.stack(read, 1))
    return layer.out(torch.cat(outs, -1))


@pytest.fixture
def layer():
    return DeltaAttention(15, 3, qk_dim=5, v_dim=7, bias=True).double()


def test_chunks_steps_and_weights_are_the_formula(layer):
    """More tokens than a chunk holds; a state is handed on in the middle and after every token."""
    x = torch.randn(2, 71, 15, dtype=torch.float64)
    whole, last = layer(x)
    torch.testing.assert_close(whole, by_the_formula(layer, x))
    first, state = layer(x[:, :17])
    rest, after = layer(x[:, 17:], state)
    torch.testing.assert_close(torch.cat([first, rest], 1), whole)
    torch.testing.assert_close(after, last)
    steps, state = [], None
    for token in x.split(1, 1):
        out, state = layer(token, state)
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    v = layer.value(x).unflatten(-1, (3, 7)).transpose(1, 2)
    torch.testing.assert_close(layer.out((layer.weights(x) @ v).transpose(1, 2).flatten(2)), whole)


def test_it_learns_from_every_part(layer):
    """Each parameter has a gradient, and a later token never reaches an earlier output."""
    x = torch.randn(2, 11, 15, dtype=torch.float64, requires_grad=True)
    layer(x)[0][:, 6].square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in layer.parameters())
    assert (x.grad[:, 7:] == 0).all()
    assert (x.grad[:, :7].abs().sum(-1) > 0).all()


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match="model_dim"):
        DeltaAttention(15, 4)
