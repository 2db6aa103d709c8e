"""What a task leaves open: every choice passes, is told in a line and stands in the task's text."""

import pytest

from regard.checking.catalogue import ours
from regard.checking.check import Checker
from regard.checking.submission import answered, from_source

BROADCAST = """
import math
import torch
from torch import nn
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))
    def split_heads(self, x):
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)
    def combine_heads(self, x):
        return x.transpose(1, 2).flatten(2)
    def scaled_dot_product_attention(self, Q, K, V, mask=None):
        scores = Q @ K.transpose(-2, -1) / math.sqrt(Q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return scores.softmax(-1) @ V
    def forward(self, Q, K, V, mask=None):
        q, k, v = (self.split_heads(f(x)) for f, x in ((self.W_q, Q), (self.W_k, K), (self.W_v, V)))
        return self.W_o(self.combine_heads(self.scaled_dot_product_attention(q, k, v, mask)))
"""
AFTER_DROPOUT = """
import torch
from torch import nn
class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
    def forward(self, queries, keys, values, valid_lens=None):
        scores = queries @ keys.transpose(1, 2) / queries.shape[-1] ** 0.5
        if valid_lens is not None:
            lens = valid_lens[:, None] if valid_lens.dim() == 1 else valid_lens
            hidden = torch.arange(keys.shape[1], device=keys.device) >= lens[..., None]
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = self.dropout(scores.softmax(-1))
        return weights @ values, weights
"""
WIDE_OUTPUT = """
import torch
from torch import nn
class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, embedding_dim, qk_length, value_length):
        super().__init__()
        self.h = num_heads
        self.W_q = nn.Linear(embedding_dim, num_heads * qk_length)
        self.W_k = nn.Linear(embedding_dim, num_heads * qk_length)
        self.W_v = nn.Linear(embedding_dim, num_heads * value_length)
        self.W_o = nn.Linear(num_heads * value_length, num_heads * value_length)
    def split_heads(self, x, vec_length):
        return x.unflatten(-1, (self.h, vec_length)).transpose(1, 2)
    def combine_heads(self, x):
        return x.transpose(1, 2).flatten(2)
    def forward(self, Q, K, V):
        q, k, v = (f(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for f, x in
                   ((self.W_q, Q), (self.W_k, K), (self.W_v, V)))
        return self.W_o(self.combine_heads(nn.functional.scaled_dot_product_attention(q, k, v)))
"""


@pytest.fixture(scope="module")
def check(runner):
    def checked(source, id, **options):
        submission = from_source(source)
        (answer,) = answered(submission, ours(), id)
        return Checker(ours(), runner, seed=5, **options).check(submission, answer)

    return checked


def failed(result):
    return {check.name: check.told for check in result.checks if not check.passed}


@pytest.mark.parametrize(
    ("source", "id", "told"),
    [
        (BROADCAST, "multi-head-mask", "the axes of a mask: (1, 1, Lq, Lk), or (batch, 1, Lq, Lk)"),
        (AFTER_DROPOUT, "dot-product-attention", "returned in training: those after dropout"),
        (WIDE_OUTPUT, "multi-head-lengths", "the width of the output: num_heads * value_length"),
    ],
    ids=["masks that broadcast", "weights after dropout", "a wide output"],
)
def test_a_textbook_form_passes_and_is_told_in_one_line(check, source, id, told):
    """Homeworks hand out these answers; with --strict only our choice passes."""
    result = check(source, id)
    assert failed(result) == {}
    assert [told in note for note in result.conventions].count(True) == 1
    assert failed(check(source, id, strict=True))


def test_a_decoder_may_join_context_and_embedding_in_either_order(check):
    """The weights that read them are the answer's own."""
    (right,) = (text for text in ours()["seq2seq-decoder"].right if "cat((seen, emb)" in text)
    result = check(right.replace("cat((seen, emb)", "cat((emb, seen)"), "seq2seq-decoder")
    assert failed(result) == {}
    assert any("what the GRU is given: (embedding, context)" in note for note in result.conventions)


def test_a_wrong_answer_with_a_mask_that_broadcasts_is_named_as_one_with_another_mask(check):
    """The calls are made in the way the answer understands before its mistake is looked for."""
    result = check(BROADCAST.replace(" / math.sqrt(Q.shape[-1])", ""), "multi-head-mask")
    assert [mistake.name for named in result.mistakes for mistake in named.mistakes] == [
        "attention without its scale"
    ]


def test_every_freedom_of_a_convention_stands_in_the_task():
    """Task and verdict are one table: what is accepted is what the task's text says."""
    for exercise in ours().values():
        text = " ".join(exercise.task.split())
        fixed = " ".join(exercise.task_text(fixed=True).split())
        for choices in exercise.freedom:
            assert f"- {choices.all}" in text, exercise.id
            assert f"- {choices.ours}" in fixed, exercise.id
        assert ("Yours to choose" in text) == bool(exercise.freedom)
        assert "Yours to choose" not in fixed
        for choices in exercise.conventions.values():
            told = [sentence for sentence in choices.values() if "(ours:" in sentence]
            assert len(told) in (0, len(choices)), exercise.id
