"""The picture under a vision model's weights: what the model saw, or that in more pixels."""

import base64
import json
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.errors import ArgumentError
from regard.tracing.traces import Grid, Trace
from regard.view.document import LONGEST, pictures
from regard.view.page import export

ROWS, COLUMNS, PATCH = 3, 7, 8


def seen_trace(image=True):
    """Weights of 2 heads over CLS and 3 x 7 patches, and a picture of one colour for each patch."""
    colours = np.random.default_rng(5).integers(0, 256, (ROWS, COLUMNS, 3), dtype=np.uint8)
    pixels = torch.from_numpy(colours.repeat(PATCH, 0).repeat(PATCH, 1))[None]
    grid = Grid(ROWS, COLUMNS, before=1, image=pixels if image else None)
    weights = torch.randn(2, 22, 22, generator=torch.Generator().manual_seed(0)).softmax(-1)
    return replace(Trace.from_weights(weights, rows=grid.names, cols=grid.names), grid=grid)


def opened(url):
    """The pixels of a data URL."""
    return Image.open(BytesIO(base64.b64decode(url.partition(",")[2])))


def test_what_the_model_saw_is_kept_with_the_page(tmp_path):
    """A patch's middle has its colour in the file, but for what JPEG rounds; the grid says where it is."""
    found = seen_trace()
    export(found, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text().partition('id="regard-data">')[2].partition("</script>")[0]
    grid = json.loads(text)["docs"][0]["meta"]["grid"]
    assert (grid["rows"], grid["columns"], grid["before"]) == (ROWS, COLUMNS, 1)
    drawn = np.asarray(opened(grid["image"]), dtype=int)
    middle = slice(PATCH // 2, None, PATCH)
    wanted = found.grid.image[0].numpy()[middle, middle].astype(int)
    assert np.abs(drawn[middle, middle] - wanted).max() <= 12


def test_an_image_in_more_pixels_takes_its_place_and_stays_bounded():
    """The same picture, larger or of another shape, is drawn instead; at most 640 pixels go into the page."""
    found = seen_trace()
    large = Image.fromarray(found.grid.image[0].numpy()).resize((1400, 900), Image.Resampling.NEAREST)
    (url,) = pictures(found, large)
    assert max(opened(url).size) == LONGEST
    assert pictures(found, np.asarray(large)) == [url]


def test_an_image_is_shown_by_name(tmp_path):
    """regard.show reads a file and keeps it in the notebook with the numbers."""
    found = seen_trace()
    Image.fromarray(found.grid.image[0].numpy()).save(tmp_path / "seen.png")
    shown = regard.show(found, image=tmp_path / "seen.png")
    assert json.loads(shown.docs)[0]["meta"]["grid"]["image"].startswith("data:image/jpeg;base64,")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("missing.png", "cannot be read as an image"),
        (__file__, "cannot be read as an image"),
        (np.zeros((4, 4, 3)), "an array \\(height, width, channel\\) of bytes. Got ndarray"),
        (7, "of bytes. Got int"),
        ([], "of 1 images, and 0 were given"),
        (np.random.default_rng(1).integers(0, 256, (24, 56, 3), dtype=np.uint8), "is not what the model saw"),
    ],
    ids=["no file", "no image", "floats", "a number", "none for one", "another one"],
)
def test_what_is_no_picture_of_the_trace_is_refused(given, words):
    with pytest.raises(ArgumentError, match=words):
        pictures(seen_trace(), given)


def test_an_image_needs_a_grid():
    """Weights and texts have no patches for it to lie under."""
    with pytest.raises(ArgumentError, match="no grid of patches"):
        regard.show([[0.5, 0.5]], image="cat.png")
    with pytest.raises(ArgumentError, match="trace of a vision model, not with a text"):
        regard.show("a text", image="cat.png")


def test_a_cropped_image_is_refused():
    """Its patches would be elsewhere. Cropped by an eighth a picture of many colours is another one."""
    found = seen_trace()
    whole = Image.fromarray(found.grid.image[0].numpy()).resize((560, 240))
    with pytest.raises(ArgumentError, match="cropped"):
        pictures(found, whole.crop((35, 15, 525, 225)))
