"""Attention as functions on tensors: who may look at whom, scores by tile, `attend`, kernelised attention."""

from regard.attention.columns import column_sums
from regard.attention.delta import DeltaAttended, attend_delta, delta_step, delta_weights
from regard.attention.feature_maps import EluPlusOne, FeatureMap, Quadratic, RandomFeatures, Relu, feature_map
from regard.attention.linear import LinearAttended, LinearState, attend_linear, linear_step, linear_weights
from regard.attention.scores import Bias, DenseBias, DistanceBias, ScoreRule, SlopeBias, alibi_slopes
from regard.attention.softmax import Attended, attend, attend_hard, masked_softmax, weights
from regard.attention.visibility import Visibility

__all__ = [
    "Attended",
    "Bias",
    "DeltaAttended",
    "DenseBias",
    "DistanceBias",
    "EluPlusOne",
    "FeatureMap",
    "LinearAttended",
    "LinearState",
    "Quadratic",
    "RandomFeatures",
    "Relu",
    "ScoreRule",
    "SlopeBias",
    "Visibility",
    "alibi_slopes",
    "attend",
    "attend_delta",
    "attend_hard",
    "attend_linear",
    "column_sums",
    "delta_step",
    "delta_weights",
    "feature_map",
    "linear_step",
    "linear_weights",
    "masked_softmax",
    "weights",
]
