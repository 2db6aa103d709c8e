"""Traces: every attention weight of a forward pass, in memory that grows with length alone."""

from regard.tracing.generation import GrowingTrace, trace_generation
from regard.tracing.gradients import LayerGradient, ScoreGradients, score_gradients
from regard.tracing.interventions import InterventionRun, intervene
from regard.tracing.layers import AnyLayer, DenseLayerTrace, LayerTrace, LinearLayerTrace, ScoreParts
from regard.tracing.recorder import Recorder
from regard.tracing.take import trace
from regard.tracing.traces import LayerCheck, Trace, TraceChecks

__all__ = [
    "AnyLayer",
    "DenseLayerTrace",
    "GrowingTrace",
    "InterventionRun",
    "LayerCheck",
    "LayerGradient",
    "LayerTrace",
    "LinearLayerTrace",
    "Recorder",
    "ScoreGradients",
    "ScoreParts",
    "Trace",
    "TraceChecks",
    "intervene",
    "score_gradients",
    "trace",
    "trace_generation",
]
