"""Pictures: matplotlib figures, and escaped, self-contained HTML (`regard.drawing.html`).

    heat_map, heat_maps     one head, several heads
    lines, shaded_text      links between tokens, the text itself
    head_grid, head_pictures   layers x heads: labels, small pictures
    curves, effect_maps     named lines; layers x heads, and layers x positions, of effects

The names load on first use: matplotlib is slow to import, and most of what imports this package never draws.
"""

from importlib import import_module

__all__ = [
    "curves",
    "effect_maps",
    "head_grid",
    "head_pictures",
    "heat_map",
    "heat_maps",
    "lines",
    "shaded_text",
    "timeline_map",
]


def __getattr__(name: str) -> object:
    """Import the function of a figure when it is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'regard.drawing' has no attribute {name!r}")
    return getattr(import_module("regard.drawing.figures"), name)
