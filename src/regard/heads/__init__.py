"""What each head does, against chance. What a model is without it: `regard.experiments`.

    Measures    measure survey Survey                     numbers of every head, on one text or many
    Labels      label HeadLabel LABELS RULES              the names people give to heads, by stated rules
    Chance      stands_out AgainstChance random_null      what chance gives, to all heads at once
    Relations   score_relations score_pairs read_conllu   heads that follow grammar, or any pairs of words
    Flow        rollout value_weighted logit_attribution  where an output's information came from
    Circuits    ov_circuit qk_circuit composition logit_lens score_split
    Tables      columns_of to_dataframe                   for pandas, or a CSV file
    Caches      lost_attention                            what one that forgets would lose of each head

>>> from regard import trace, load
>>> from regard.heads import label, measure
>>> labels = label(measure(trace(load("pocket-gpt"), "the cat sat on the mat")))
"""

from regard.heads.chance import RandomNull, largest_share, stands_out
from regard.heads.circuits import (
    Circuit,
    Composition,
    ScoreSplit,
    composition,
    logit_lens,
    ov_circuit,
    qk_circuit,
    score_split,
)
from regard.heads.flow import Attribution, logit_attribution, lost_attention, rollout, value_weighted
from regard.heads.labels import RULES, AgainstChance, ComparedScore, HeadLabel, LabelRule, label
from regard.heads.measures import Measures, measure
from regard.heads.nulls import random_null
from regard.heads.probes import planted_needle, repeated_tokens
from regard.heads.relations import RelationScore, Sentence, Word, read_conllu, score_pairs, score_relations
from regard.heads.surveys import Survey, columns_of, survey, to_dataframe
from regard.registry import LABELS

__all__ = [
    "LABELS",
    "RULES",
    "AgainstChance",
    "Attribution",
    "Circuit",
    "ComparedScore",
    "Composition",
    "HeadLabel",
    "LabelRule",
    "Measures",
    "RandomNull",
    "RelationScore",
    "ScoreSplit",
    "Sentence",
    "Survey",
    "Word",
    "columns_of",
    "composition",
    "label",
    "largest_share",
    "logit_attribution",
    "logit_lens",
    "lost_attention",
    "measure",
    "ov_circuit",
    "planted_needle",
    "qk_circuit",
    "random_null",
    "read_conllu",
    "repeated_tokens",
    "rollout",
    "score_pairs",
    "score_relations",
    "score_split",
    "stands_out",
    "survey",
    "to_dataframe",
    "value_weighted",
]
