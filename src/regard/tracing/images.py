"""Images as vision models take them: read by the model's own processor, cut into a grid of patches.

Which position of a model is which patch no list says here: it is measured, by changing three patches and
looking which queries of the first attention layer change.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.tracing.recorder import Recorder
from regard.tracing.traces import Grid
from regard.tracing.watch import watching

_FAR = 1e-3  # of the largest change: far more than rounding, far less than what a patch does


def takes_images(model: nn.Module) -> bool:
    """Whether an image, and no text, is what the model reads."""
    return getattr(model, "main_input_name", None) == "pixel_values"


def read_images(
    model: nn.Module, given: Any, processor: Any
) -> tuple[dict[str, Tensor], tuple[str, ...] | None]:
    """What a vision model takes of one image or several, and the names of their files.

    An image is a file's path, one of Pillow's, or an array (height, width, channel).
    """
    if processor is None or not callable(processor):
        raise ArgumentError(
            "an image needs the image processor of its model, which preprocessor_config.json of its folder "
            "describes: give it as `tokenizer`, or give pixel_values as a tensor."
        )
    images = given if isinstance(given, list) else [given]
    named = all(isinstance(image, str | Path) for image in images)
    names = tuple(Path(image).name for image in images) if named else None
    weight = next(model.parameters())
    opened = [open_image(image) if isinstance(image, str | Path) else image for image in images]
    pixels = processor(opened, return_tensors="pt")
    return dict(pixels.to(weight.device, weight.dtype)), names


def open_image(image: str | Path) -> Any:
    """The image of a file, in colours."""
    from PIL import Image, UnidentifiedImageError  # slow to import

    try:
        return Image.open(image).convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ArgumentError(f"{image} cannot be read as an image: {error}.") from error


def grid_of(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], processor: Any
) -> Grid | None:
    """How the positions of a model that was given pixels and nothing else lie in them; None: in no grid."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    cut = next((m for m in model.modules() if isinstance(m, nn.Conv2d) and m.stride == m.kernel_size), None)
    if cut is None or len(given) != 1 or given[0].dim() != 4 or not given[0].is_floating_point():
        return None
    pixels = given[0].detach()
    high, wide = cut.stride
    rows, columns = pixels.shape[2] // high, pixels.shape[3] // wide
    if pixels.shape[1] != cut.in_channels or not rows * columns:
        return None
    changed = pixels[:1].clone()
    for row, column in {(0, 0), (0, columns - 1), (rows - 1, columns - 1)}:
        patch = changed[..., row * high : (row + 1) * high, column * wide : (column + 1) * wide]
        patch.copy_(-1 - patch)

    def swapped(value: Any) -> Any:
        return torch.cat([pixels[:1], changed]) if value is given[0] else value

    try:
        recorder, twin = Recorder(layers=[0]), _twin(model)
    except Exception:  # whatever cannot be copied is traced as any other, without a grid
        return None
    with torch.no_grad(), watching(twin, recorder):
        twin(*map(swapped, args), **{name: swapped(value) for name, value in kwargs.items()})
    queries = getattr(recorder.layers[0], "q", None) if recorder.layers else None
    if queries is None or queries.shape[0] != 2:
        return None
    off = (queries[1] - queries[0]).abs().amax((0, 2))
    moved = (off > _FAR * off.max()).nonzero().flatten().tolist()
    places = sorted({0, columns - 1, rows * columns - 1})
    before = moved[0] if moved else 0
    if moved != [before + place for place in places]:
        return None
    return Grid(rows, columns, before, len(off) - rows * columns - before, _shown(pixels, processor))


def _twin(model: nn.Module) -> nn.Module:
    """The model on the same weights, without anybody's hooks, which would hear of a run nobody asked for."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    for module in twin.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return twin


def _shown(pixels: Float[Tensor, "batch channel height width"], processor: Any) -> Tensor:
    """Pixels as a person sees them, 0 to 255; where nobody knows how they were scaled, from least to most."""
    light = pixels.float().cpu().movedim(1, -1)
    if getattr(processor, "do_normalize", False):
        light = light * torch.tensor(processor.image_std) + torch.tensor(processor.image_mean)
    else:
        least, most = light.min(), light.max()
        light = (light - least) / (most - least).clamp(min=1e-12)
    return (light.clamp(0, 1) * 255).round().to(torch.uint8)
