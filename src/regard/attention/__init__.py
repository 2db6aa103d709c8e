"""Attention as functions on tensors: who may look at whom, scores by tile, `attend`, kernelised attention."""
