"""Messages of plot.py, as a user meets them."""

import pytest
import torch

from regard.drawing.figures import heat_map
from regard.errors import ShapeError


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 3, 5)])
def test_labels_that_do_not_fit_are_counted_in_the_message(shape):
    """The message names the shape and both numbers of labels."""
    with pytest.raises(
        ShapeError, match=r"weights is \(.*\), with 2 rows and 3 cols: it must be \(query, key\)"
    ):
        heat_map(torch.zeros(shape), "ab", "xyz")


def test_a_visibility_of_another_shape_is_refused():
    """The message names both shapes."""
    with pytest.raises(ShapeError, match=r"visible is \(3, 2\) and weights is \(2, 3\)"):
        heat_map(torch.zeros(2, 3), "ab", "xyz", visible=torch.ones(3, 2, dtype=torch.bool))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_no_weights_cannot_be_drawn(shape):
    """A picture without a cell is refused, with the shape."""
    with pytest.raises(ShapeError, match=r"weights is .*, one at least"):
        heat_map(torch.zeros(shape), "a" * shape[0], "b" * shape[1])
