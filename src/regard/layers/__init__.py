"""Modules: attention layers and blocks, positions, norms, the cache."""
