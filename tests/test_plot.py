"""Figures: what is drawn is what was given."""

import subprocess
import sys

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from regard.plot import HIDDEN, PALETTE, heat_map


def colour_at(figure, row, col):
    """The colour drawn a little off the centre of a cell, clear of the number written in it."""
    figure.canvas.draw()
    x, y = figure.axes[0].transData.transform((col + 0.4, row + 0.4))
    pixels = np.asarray(figure.canvas.buffer_rgba())
    return pixels[pixels.shape[0] - 1 - int(y), int(x), :3] / 255


def test_a_cell_has_the_colour_of_its_weight_in_row_query_and_column_key():
    """The colour of row i, column j is that of the weight of query i on key j, from 0 to the largest."""
    weights = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]])
    figure = heat_map(weights, ["a", "b"], ["x", "y", "z"])
    for (row, col), value in np.ndenumerate(weights.numpy()):
        expected = colormaps[PALETTE](value / 0.7)[:3]
        np.testing.assert_allclose(colour_at(figure, row, col), expected, atol=1.01 / 255)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a", "b"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["x", "y", "z"]
    assert figure.axes[0].get_ylabel() == "query (looks)"


def test_hidden_cells_differ_from_cells_of_weight_zero():
    """What may not be looked at is grey; what is looked at with weight 0 has the lowest colour."""
    visible = torch.tensor([[True, False], [True, True]])
    figure = heat_map(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), "ab", "ab", visible=visible)
    np.testing.assert_allclose(colour_at(figure, 0, 1), to_rgb(HIDDEN), atol=1.01 / 255)
    np.testing.assert_allclose(colour_at(figure, 1, 1), colormaps[PALETTE](0.0)[:3], atol=1.01 / 255)


def test_one_scale_can_serve_several_figures():
    """Given `largest`, a weight has the same colour in every figure; axes of one's own are used."""
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert heat_map(torch.full((2, 2), 0.5), "ab", "ab", ax=left, largest=1.0) is figure
    heat_map(torch.eye(2), "ab", "ab", ax=right, largest=1.0)
    assert left.images[0].get_clim() == right.images[0].get_clim() == (0.0, 1.0)


def test_long_sequences_are_numbered():
    """65 words would overlap, so numbered positions stand in their place; 64 words are still written."""
    for length, words in ((64, {"word"}), (65, set())):
        figure = heat_map(torch.rand(length, length), ["word"] * length, ["word"] * length)
        figure.canvas.draw()
        labels = {label.get_text() for label in figure.axes[0].get_xticklabels()}
        assert labels & {"word"} == words


def test_drawing_leaves_pyplot_alone(tmp_path):
    """A figure is drawn and saved without importing pyplot, whose state belongs to the user."""
    code = (
        "import sys, torch; from regard.plot import heat_map;"
        "heat_map(torch.eye(2), 'ab', 'ab').savefig('a.png'); print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
