"""Modules: attention layers and blocks, positions, the cache."""

from regard.layers.attention import AdditiveAttention, MultiHeadAttention, Record, merge_heads, split_heads
from regard.layers.block import Block, BlockConfig, FeedForward
from regard.layers.cache import KVCache, LayerCache
from regard.layers.delta import DeltaAttention
from regard.layers.eviction import Evict
from regard.layers.latent import LatentAttention
from regard.layers.positions import (
    LearnedPositions,
    RelativeBias,
    Rotary,
    RotaryCosSin,
    RotaryScaling,
    SinusoidalPositions,
    sinusoidal,
)

__all__ = [
    "AdditiveAttention",
    "Block",
    "BlockConfig",
    "DeltaAttention",
    "Evict",
    "FeedForward",
    "KVCache",
    "LatentAttention",
    "LayerCache",
    "LearnedPositions",
    "MultiHeadAttention",
    "Record",
    "RelativeBias",
    "Rotary",
    "RotaryCosSin",
    "RotaryScaling",
    "SinusoidalPositions",
    "merge_heads",
    "sinusoidal",
    "split_heads",
]
