"""What parts of a model do, by changing them: every change is run, many at once, as rows of a batch.

effects          a prediction without each head, edge, position or layer
why              what moved a prediction, in one sentence and a table
patch_effects    a corrupted text with each head and position of the clean one
ablation         the loss without each head; pruning_curve, without more and more; ablated, in a block
importance       a gradient that estimates it
prune            heads removed for good
RowEngine           runs any list of changes
"""

from regard.experiments.changes import (
    Change,
    HeadGate,
    KnockOut,
    PatchModule,
    PatchOutputs,
    PatchWeights,
)
from regard.experiments.circuits import CircuitCurve, ScoredCircuit, circuit
from regard.experiments.engine import LogitReading, RowEngine, RowScores
from regard.experiments.exact import Effect, Effects, ModelPart, effects
from regard.experiments.explain import Finding, HeadPair, Why, why
from regard.experiments.losses import (
    Curve,
    ablated,
    ablation,
    head_means,
    importance,
    losses_without,
    mean_loss,
    pruning_curve,
    ranked_heads,
)
from regard.experiments.patching import PatchEffects, patch_effects
from regard.experiments.paths import PathEffect, PathEffects, path_effects
from regard.experiments.pruning import prune, save_pruned
from regard.experiments.targets import PredictionTarget
from regard.experiments.tasks import TASKS, TaskPrompts, task_prompts

__all__ = [
    "TASKS",
    "Change",
    "CircuitCurve",
    "Curve",
    "Effect",
    "Effects",
    "Finding",
    "HeadGate",
    "HeadPair",
    "KnockOut",
    "LogitReading",
    "ModelPart",
    "PatchEffects",
    "PatchModule",
    "PatchOutputs",
    "PatchWeights",
    "PathEffect",
    "PathEffects",
    "PredictionTarget",
    "RowEngine",
    "RowScores",
    "ScoredCircuit",
    "TaskPrompts",
    "Why",
    "ablated",
    "ablation",
    "circuit",
    "effects",
    "head_means",
    "importance",
    "losses_without",
    "mean_loss",
    "patch_effects",
    "path_effects",
    "prune",
    "pruning_curve",
    "ranked_heads",
    "save_pruned",
    "task_prompts",
    "why",
]
