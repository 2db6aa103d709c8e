"""The picture under the weights of a vision model, small enough to stand in a page."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import ArgumentError
from regard.tracing.images import open_image
from regard.tracing.traces import Trace

LONGEST = 640  # pixels of the longer side: some 100 KB
_ALIKE = 0.95  # correlation of pixels: ways to make a picture smaller differ by less, a crop by more


def pictures(trace: Trace, given: Any = None) -> list[str | None]:
    """A data URL for each sequence of a trace: what its model saw, or what is `given` in its place.

    None where there is no grid of patches that a picture could lie under.
    """
    grid = trace.grid
    seen = None if grid is None or grid.image is None else [_opened(image) for image in grid.image.numpy()]
    if given is None:
        return [None] * trace.n_batch if seen is None else [_url(image) for image in seen]
    if grid is None:
        raise ArgumentError(
            "the trace has no grid of patches for an image to lie under: it is no vision model's, or its "
            "positions are no grid."
        )
    images = [_opened(image) for image in (given if isinstance(given, list) else [given])]
    if len(images) != trace.n_batch:
        raise ArgumentError(f"the trace is of {trace.n_batch} images, and {len(images)} were given.")
    if seen is not None:
        for image, shown in zip(images, seen, strict=True):
            _check_fit(image, shown)
    return [_url(image) for image in images]


def _opened(image: Any) -> Any:
    from PIL import Image  # slow to import

    if isinstance(image, str | Path):
        return open_image(image)
    try:
        if not isinstance(image, Image.Image):
            array = np.asarray(image)
            image = Image.fromarray(
                array[..., 0] if array.ndim == 3 and array.shape[2] < 3 else array[..., :3]
            )
        return image.convert("RGB")
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise ArgumentError(
            "an image is the path of its file, one of Pillow's, or an array (height, width, channel) of "
            f"bytes. Got {type(image).__name__}: {error}."
        ) from error


def _check_fit(image: Any, seen: Any) -> None:
    """Raise unless the image is what the model saw but for its size: a cropped one has patches elsewhere."""
    ours, theirs = (np.asarray(one.resize((32, 32)), dtype=np.float64).ravel() for one in (image, seen))
    flat = min(ours.std(), theirs.std()) < 1  # of one colour: nothing to compare
    if not flat and np.corrcoef(ours, theirs)[0, 1] < _ALIKE:
        raise ArgumentError(
            f"the image, made {seen.width} x {seen.height} pixels, is not what the model saw: another, or "
            "its processor cropped it. Leave `image` out to see what the model saw, or give that part."
        )


def _url(image: Any) -> str:
    image.thumbnail((LONGEST, LONGEST))
    written = BytesIO()
    image.save(written, "JPEG", quality=92, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode('ascii')}"
