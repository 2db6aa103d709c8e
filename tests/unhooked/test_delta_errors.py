"""What the gated delta rule says when its inputs do not fit."""

import pytest
import torch

from regard.attention.delta import attend_delta, delta_step
from regard.errors import ArgumentError, ShapeError

Q, V, EACH = torch.randn(2, 3, 29, 5), torch.randn(2, 3, 29, 7), torch.zeros(2, 3, 29)


def test_what_does_not_fit_is_refused():
    """Sizes by their names, before anything is computed."""
    with pytest.raises(ShapeError, match="one query and one key for each token"):
        attend_delta(Q[:, :, :5], Q, V, EACH, EACH)
    with pytest.raises(ShapeError, match=r"beta must be \(batch, head, position\) = \(2, 3, 29\)"):
        attend_delta(Q, Q, V, EACH, EACH[..., :5])
    with pytest.raises(ShapeError, match=r"the state must be .* = \(2, 3, 5, 7\)"):
        attend_delta(Q, Q, V, EACH, EACH, state=torch.zeros(2, 3, 5, 5))
    with pytest.raises(ShapeError, match="a step takes one token"):
        delta_step(Q, Q, V, EACH, EACH, torch.zeros(2, 3, 5, 7))
    with pytest.raises(ArgumentError, match="chunk must be at least 1"):
        attend_delta(Q, Q, V, EACH, EACH, chunk=0)
