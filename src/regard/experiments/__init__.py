"""Experiments on any model: what one run's parts do in another, and why an answer came out as it did.

    patch_effects   a clean text against a corrupted one: each head and position exchanged, or estimated
    why             which heads, edges and positions moved the next token, verified by switching them off

Built on `regard.intervene`, so on every model that can be traced.
"""

from regard.experiments.answers import Estimate, Finding, PatchEffects, Why, patch_effects, why

__all__ = ["Estimate", "Finding", "PatchEffects", "Why", "patch_effects", "why"]
