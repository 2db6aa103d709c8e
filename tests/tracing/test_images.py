"""Vision models: an image from a file, and where in it the positions of the trace are."""

import threading

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import nn

from regard.errors import ArgumentError
from regard.files.loading import load
from regard.tracing.take import trace
from regard.tracing.traces import Grid, Trace

HEIGHT, WIDTH, PATCH = 24, 56, 8  # 3 rows of 7 patches
SIZES = {
    "hidden_size": 20, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 22,
    "image_size": [HEIGHT, WIDTH], "patch_size": PATCH,
}  # fmt: skip


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    """A file of 96 x 112 pixels, each 4 x 2 of which are of one colour."""
    colours = np.random.default_rng(3).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    path = tmp_path_factory.mktemp("images") / "seen.png"
    Image.fromarray(colours.repeat(4, 0).repeat(2, 1)).save(path)
    return path, colours


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("folders") / "vit"
    torch.manual_seed(0)
    transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES)).save_pretrained(path)
    size = {"height": HEIGHT, "width": WIDTH}
    transformers.ViTImageProcessor(size=size, resample=0, image_mean=[0.3, 0.4, 0.5]).save_pretrained(path)
    return path


def test_a_folder_reads_an_image_and_the_trace_knows_its_patches(folder, picture, tmp_path):
    """Tokens are CLS and patches by row and column; the image is what the model saw; a file keeps both."""
    path, colours = picture
    loaded = load(folder)
    seen = trace(loaded, [path, path])
    patches = [f"{row},{column}" for row in range(3) for column in range(7)]
    assert seen.tokens == (("CLS", *patches),) * 2
    assert seen.text == ("seen.png",) * 2
    assert (seen.grid.rows, seen.grid.columns, seen.grid.before, seen.grid.after) == (3, 7, 1, 0)
    assert seen.checks.passed
    assert seen.layers[0].n_query == len(seen.tokens[0])
    # Resized by taking every fourth and second pixel: the colours that were written.
    assert torch.equal(seen.grid.image[1], torch.from_numpy(colours))
    seen.save(tmp_path / "seen.trace")
    read = Trace.load(tmp_path / "seen.trace")
    assert read.tokens == seen.tokens
    assert read.grid.as_dict().keys() == seen.grid.as_dict().keys()
    assert torch.equal(read.grid.image, seen.grid.image)
    pixels = loaded.model.processor(Image.open(path), return_tensors="pt")
    assert torch.equal(trace(loaded, dict(pixels)).weights(1, 2), seen.weights(1, 2))
    assert torch.equal(trace(loaded, Image.open(path)).weights(1, 2), seen.weights(1, 2))


@pytest.mark.parametrize(
    ("name", "more", "before", "after"),
    [
        ("Deit", {}, 2, 0),
        ("Beit", {}, 1, 0),
        ("Dinov2WithRegisters", {"num_register_tokens": 3, "image_size": 32}, 4, 0),
        ("SiglipVision", {"image_size": 32}, 0, 0),
        ("Yolos", {"num_detection_tokens": 11}, 1, 11),
    ],
)
def test_special_tokens_are_counted_wherever_they_stand(name, more, before, after):
    """Before the patches or after them: which position is which patch was measured, not assumed."""
    kind = next(kind for kind in dir(transformers) if kind.lower() == f"{name}config".lower())
    config = getattr(transformers, kind)(**{**SIZES, **more})
    model = getattr(transformers, kind.replace("Config", "Model"))(config).eval()
    high, wide = (32, 32) if "image_size" in more else (HEIGHT, WIDTH)
    grid = trace(model, {"pixel_values": torch.randn(1, 3, high, wide)}).grid
    assert (grid.rows, grid.columns) == (high // PATCH, wide // PATCH)
    assert (grid.before, grid.after) == (before, after)
    assert len(grid.names) == before + grid.rows * grid.columns + after


class ByHand(nn.Module):
    """Patches in a given order, and attention over them."""

    def __init__(self, order):
        super().__init__()
        self.cut = nn.Conv2d(3, 12, PATCH, PATCH)
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.order = order

    def forward(self, pixels):
        patches = self.cut(pixels)  # (batch, channel, row, column)
        patches = patches.mT if self.order == "columns first" else patches
        hidden = patches.flatten(2).mT
        if self.order == "mixed":
            hidden = hidden + hidden.mean(1, keepdim=True)
        return self.attention(hidden, hidden, hidden)[0]


@pytest.mark.parametrize("order", ["rows first", "columns first", "mixed"])
def test_a_grid_is_claimed_only_where_positions_follow_it(order):
    """Patches down the columns, or mixed with one another before attention, are no grid of ours."""
    seen = trace(ByHand(order).eval(), torch.randn(2, 3, HEIGHT, WIDTH))
    if order == "rows first":
        assert (seen.grid.rows, seen.grid.columns, seen.grid.before, seen.grid.after) == (3, 7, 0, 0)
        image = seen.grid.image
        assert (image.shape, int(image.min()), int(image.max())) == ((2, HEIGHT, WIDTH, 3), 0, 255)
    else:
        assert seen.grid is None
        assert seen.tokens == ()


def test_what_is_no_image_is_refused_in_words(folder, tmp_path):
    """A file that is none, one that is not there, and a model whose folder has no processor."""
    (tmp_path / "words.png").write_text("no image")
    loaded = load(folder)
    for path in (tmp_path / "words.png", tmp_path / "nowhere.png"):
        with pytest.raises(ArgumentError, match=r"\.png cannot be read as an image"):
            trace(loaded, path)
    with pytest.raises(ArgumentError, match="needs the image processor"):
        trace(loaded.model.inner, "seen.png")
    with pytest.raises(ArgumentError, match="at least one row"):
        Grid(0, 3)


def test_measuring_the_grid_calls_no_hook_and_needs_no_copy():
    """Hooks hear of the run that was asked for alone; a model that cannot be copied is traced too."""
    torch.manual_seed(0)
    model = transformers.ViTModel(transformers.ViTConfig(**SIZES)).eval()
    runs = []
    model.register_forward_hook(lambda *_: runs.append(1))
    pixels = {"pixel_values": torch.randn(1, 3, HEIGHT, WIDTH)}
    seen = trace(model, pixels)
    assert runs == [1]
    assert seen.grid is not None
    model.guard = threading.Lock()
    locked = trace(model, pixels)
    assert locked.grid is None
    assert torch.equal(locked.weights(1, 2), seen.weights(1, 2))
