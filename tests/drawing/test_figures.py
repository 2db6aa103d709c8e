"""Figures: what is drawn is what was given."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from regard.drawing.figures import (
    DIVERGING,
    HIDDEN,
    PALETTE,
    head_grid,
    head_pictures,
    heat_map,
    heat_maps,
    lines,
    save_figure,
    shaded_text,
    timeline_map,
)
from regard.errors import ArgumentError, ShapeError


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
        expected = PALETTE(value / 0.7)[:3]
        np.testing.assert_allclose(colour_at(figure, row, col), expected, atol=1.01 / 255)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a", "b"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["x", "y", "z"]
    assert figure.axes[0].get_ylabel() == "query (looks)"


def test_hidden_cells_differ_from_cells_of_weight_zero():
    """What may not be looked at is grey; what is looked at with weight 0 has the lowest colour."""
    visible = torch.tensor([[True, False], [True, True]])
    figure = heat_map(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), "ab", "ab", visible=visible)
    np.testing.assert_allclose(colour_at(figure, 0, 1), to_rgb(HIDDEN), atol=1.01 / 255)
    np.testing.assert_allclose(colour_at(figure, 1, 1), PALETTE(0.0)[:3], atol=1.01 / 255)


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
        "import sys, torch; from regard.drawing.figures import heat_map;"
        "heat_map(torch.eye(2), 'ab', 'ab').savefig('a.png'); print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def colour_in(figure, panel, row, col):
    """The colour drawn in a cell of one panel of a grid."""
    figure.canvas.draw()
    x, y = panel.transData.transform((col + 0.3, row + 0.3))
    pixels = np.asarray(figure.canvas.buffer_rgba())
    return pixels[pixels.shape[0] - 1 - int(y), int(x), :3] / 255


def test_a_difference_has_its_own_colours_and_0_in_the_middle():
    """Where the first is larger it is orange, where the second is, blue; equal cells are nearly white."""
    figure = heat_map(torch.tensor([[0.4, -0.4, 0.0]]), ["a"], "xyz", diverging=True)
    more, less, same = (colour_at(figure, 0, col) for col in range(3))
    for found, share in ((more, 1.0), (less, 0.0), (same, 0.5)):
        np.testing.assert_allclose(found, DIVERGING(share)[:3], atol=2.01 / 255)
    assert more[0] > more[2] + 0.2
    assert less[2] > less[1] + 0.2
    assert same.min() > 0.9


def panels_of(figure):
    return [child for child in figure.axes[0].child_axes if child.get_title(loc="left")]


def test_a_grid_has_a_row_for_each_sequence_and_a_column_for_each_head():
    """Panel (batch, head) shows those weights, on colours up to its own largest, with a bar that says so."""
    weights = torch.rand(2, 3, 5, 7)
    figure = heat_maps(weights)
    panels = panels_of(figure)
    assert [panel.get_title(loc="left") for panel in panels] == [
        f"sequence {batch}, head {head}" for batch in range(2) for head in range(3)
    ]
    figure.canvas.draw()
    places = [panel.get_window_extent() for panel in panels]
    assert places[0].x1 < places[1].x0
    assert places[0].y0 > places[3].y1
    for index, panel in enumerate(panels):
        own = weights.flatten(0, 1)[index]
        wanted = PALETTE(float(own[4, 6] / own.max()))[:3]
        np.testing.assert_allclose(colour_in(figure, panel, 4, 6), wanted, atol=2.01 / 255)
        (bar,) = panel.child_axes
        assert bar.get_ylim() == (0.0, own.max().item())


def test_a_grid_hides_what_one_panel_hides():
    """`visible` may be one table for all panels."""
    visible = torch.ones(5, 5).tril().bool()[None]
    figure = heat_maps(torch.rand(3, 5, 5), visible=visible)
    for panel in panels_of(figure):
        np.testing.assert_allclose(colour_in(figure, panel, 1, 4), to_rgb(HIDDEN), atol=1.01 / 255)


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: heat_maps(torch.rand(3, 5, 5), ax=ax),
        lambda ax: head_pictures([[np.eye(3)]], ax=ax),
        lambda ax: lines(torch.rand(1, 3, 5), "abc", "vwxyz", ax=ax),
        lambda ax: shaded_text(torch.rand(3), ["one", "two", "three"], ax=ax),
        lambda ax: head_grid([["sink"]], ["sink", "none"], ax=ax),
    ],
    ids=["heat_maps", "head_pictures", "lines", "shaded_text", "head_grid"],
)
def test_every_figure_draws_into_axes_of_ones_own(draw):
    """With `ax` the figure is the reader's own, and nothing else of it is touched."""
    figure = Figure(figsize=(8, 4))
    left, right = figure.subplots(1, 2)
    assert draw(left) is figure
    assert left.has_data() or left.child_axes or left.texts
    assert not right.has_data()
    assert figure.axes[:2] == [left, right]


def test_small_pictures_stand_in_rows_of_layers():
    """Head 1 of layer 0 is right of head 0, layer 1 below it; NaN is grey and the largest weight bright."""
    first = np.array([[1.0, np.nan], [0.25, 1.0]])
    figure = head_pictures([[first, np.ones((2, 2))], [np.ones((2, 2))]])
    wall = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(wall[0, 0, :3], PALETTE(1.0)[:3])
    np.testing.assert_allclose(wall[0, 1, :3], to_rgb(HIDDEN))
    np.testing.assert_allclose(wall[1, 0, :3], PALETTE(0.5)[:3])  # square root of 0.25
    np.testing.assert_allclose(wall[4, 4:6, :3], 1)  # layer 1 has no head 1: white


def test_lines_join_the_queries_to_the_keys_they_look_at():
    """A link begins at its query's row and ends at its key's, as wide as its share of the largest weight."""
    weights = torch.tensor([[[0.0, 0.5, 0.0], [1.0, 0.0, 0.0]]])
    figure = lines(weights, ["a", "b"], ["x", "y", "z"])
    (drawn,) = figure.axes[0].collections
    ends = [(tuple(link[0]), tuple(link[-1])) for link in drawn.get_segments()]
    assert ends == [((0.0, 0.0), (1.0, 1.0)), ((0.0, 1.0), (1.0, 0.0))]
    half, whole = drawn.get_linewidths()
    assert half == pytest.approx(0.4 + 3.6 * 0.5)
    assert whole == pytest.approx(4.0)


def test_lines_of_chosen_queries_leave_the_others_out():
    """Links of other queries are not drawn."""
    figure = lines(torch.full((2, 3, 5), 0.2), "abc", "vwxyz", chosen=[1])
    for drawn in figure.axes[0].collections:
        assert {link[0][1] for link in drawn.get_segments()} == {1.0}


def test_text_is_wrapped_and_shaded_by_weight():
    """Tokens stand in reading order within the width; the heaviest is darkest, hidden ones are grey."""
    tokens = ["one", "two", "##s", "three", "four"]
    visible = torch.tensor([True, True, True, True, False])
    figure = shaded_text(torch.tensor([0.1, 0.2, 0.8, 0.4, 0.0]), tokens, visible=visible, chosen=1, width=11)
    words = [text.get_text() for text in figure.axes[0].texts]
    assert words == ["one", "two", "s", "three", "four"]
    places = [text.get_position() for text in figure.axes[0].texts]
    assert places == [(0, 0.5), (4, 0.5), (7, 0.5), (0, 1.5), (6, 1.5)]
    darkness = [1 - np.mean(patch.get_facecolor()[:3]) for patch in figure.axes[0].patches]
    assert np.argsort(darkness[:4]).tolist() == [0, 1, 3, 2]
    assert figure.axes[0].patches[4].get_facecolor()[:3] == pytest.approx(to_rgb(HIDDEN))
    assert figure.axes[0].patches[1].get_edgecolor()[:3] == pytest.approx(to_rgb("#d55e00"))


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: heat_maps(torch.rand(2, 3, 3), rows="ab"), "with 2 rows and 3 cols"),
        (lambda: head_pictures([]), "at least one"),
        (lambda: lines(torch.rand(0, 3, 3), "abc", "abc"), "at least one"),
        (lambda: shaded_text(torch.rand(3), ["one"]), "with 1 rows and 1 cols"),
    ],
    ids=["labels", "no picture", "no head", "tokens"],
)
def test_what_does_not_fit_is_said(draw, words):
    """A wrong number of labels is refused with the numbers, and so is nothing."""
    with pytest.raises(ShapeError, match=words):
        draw()


@pytest.mark.parametrize(
    ("name", "kind", "begins"),
    [
        ("a.png", None, b"\x89PNG"),
        ("a", None, b"\x89PNG"),
        ("a.pdf", None, b"%PDF"),
        ("a.pdf", "png", b"%PDF"),
        ("a.svg", "svg", b"<?xml"),
    ],
)
def test_a_picture_has_the_format_of_its_ending(tmp_path, name, kind, begins):
    """What was asked for by name and a PDF agree; a file without an ending is a PNG."""
    save_figure(heat_map(torch.eye(2), ["a", "b"], ["a", "b"]), tmp_path / name, kind)
    assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.parametrize(("name", "kind"), [("a.jpg", None), ("a.svg", "png"), ("a.png", "svg")])
def test_a_picture_of_another_ending_is_refused(tmp_path, name, kind):
    """No file says it is what it is not."""
    with pytest.raises(ArgumentError, match="cannot be written"):
        save_figure(heat_map(torch.eye(2), ["a", "b"], ["a", "b"]), tmp_path / name, kind)
    assert not (tmp_path / name).exists()


def test_a_map_of_many_positions_numbers_its_axes_by_position():
    """Two hundred places of five positions each: ticks say positions, at the place that holds them."""
    names = [str(5 * place) for place in range(200)]
    axes = heat_map(torch.rand(200, 200), names, names).axes[0]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert list(zip(axes.get_xticks(), labels, strict=True)) == [
        (place, str(5 * place)) for place in (0, 40, 80, 120, 160)
    ]


def test_a_timeline_has_seconds_below_and_its_sound_above():
    """The map covers the sound's time, and a path is a dot in the middle of its place."""
    path = torch.tensor([0, 1, 3])
    figure = timeline_map(
        torch.rand(3, 4), ["a", "b", "c"], 2.0, spectrogram=torch.rand(5, 8), path=path, title="heard"
    )
    sound, axes = figure.axes[:2]
    assert sound.get_title(loc="left") == "heard"
    assert tuple(axes.images[0].get_extent()) == (0.0, 2.0, 2.5, -0.5)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert axes.lines[0].get_xdata().tolist() == [0.25, 0.75, 1.75]
    with pytest.raises(ShapeError, match="name for each row"):
        timeline_map(torch.rand(3, 4), ["a"], 2.0)


def test_a_map_of_weights_that_were_softmaxed_twice_says_so():
    """The classic slip of a plotting cell; weights themselves, masked or not, are drawn without a word."""
    scores = torch.randn(5, 5, generator=torch.Generator().manual_seed(3))
    weights = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf).softmax(-1)
    labels = list("abcde")
    heat_map(weights, labels, labels)
    heat_map(scores.softmax(-1), labels, labels)
    with pytest.warns(UserWarning, match="probabilities already"):
        heat_map(weights.softmax(-1), labels, labels)
