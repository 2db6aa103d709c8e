"""Exercise: attention by a feature map, in time linear in the length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.attention.feature_maps import FeatureMap
from regard.attention.linear import attend_linear
from regard.exercises.spec import Case, Code, Draw, Exercise, Mistake, Probe, Right, Trial

TASK = """
Attention whose weights are products of features, where softmax attention has exp(q . k):

    out_i = sum_j (phi(q_i) . phi(k_j)) v_j / sum_j (phi(q_i) . phi(k_j))

- `Q` (n, d), `K` (n, d), `V` (n, m). `phi` is a function that maps (..., d) to (..., D) on the last axis; its
  products are positive. Returns (n, m).
- `causal=False`: j runs over all positions. The sums over j do not depend on i, so take them once: no n x n
  table may be made.
- `causal=True`: j runs over 0 .. i. Here a table is allowed.
"""

STARTER = '''import torch


def linear_attention(Q, K, V, phi, causal=False):
    """Q, K (n, d), V (n, m), phi maps (..., d) to (..., D) -> (n, m). No n x n table unless causal."""
    raise NotImplementedError
'''

STEPS = """import torch

def linear_attention(Q, K, V, phi, causal=False):
    fq = phi(Q)
    fk = phi(K)
    if causal:
        table = fq @ fk.T
        table = torch.tril(table)
        total = table.sum(dim=1, keepdim=True)
        return (table @ V) / total
    S = fk.T @ V
    z = fk.sum(dim=0)
    top = fq @ S
    bottom = fq @ z
    return top / bottom[:, None]
"""

RUNNING = """import torch

def linear_attention(Q, K, V, phi, causal=False):
    q, k = phi(Q), phi(K)
    if not causal:
        num = torch.einsum("nf,fm->nm", q, torch.einsum("nf,nm->fm", k, V))
        den = torch.einsum("nf,f->n", q, k.sum(0))
        return num / den.unsqueeze(-1)
    S, z, rows = 0, 0, []
    for i in range(Q.shape[0]):
        S = S + torch.outer(k[i], V[i])
        z = z + k[i]
        rows.append((q[i] @ S) / (q[i] @ z))
    return torch.stack(rows)
"""

CUMULATIVE = """import torch

def linear_attention(Q, K, V, phi, causal=False):
    Q, K = phi(Q), phi(K)
    outer = K[:, :, None] * V[:, None, :]
    if causal:
        S, z = torch.cumsum(outer, 0), torch.cumsum(K, 0)
    else:
        S, z = outer.sum(0, keepdim=True), K.sum(0, keepdim=True)
    return (Q[:, :, None] * S).sum(1) / ((Q * z).sum(1, keepdim=True) + 1e-6)
"""

ONES = """import torch

def linear_attention(Q, K, V, phi, causal=False):
    with_one = torch.cat([V, V.new_ones(V.shape[0], 1)], dim=1)
    if causal:
        weights = torch.matmul(phi(Q), phi(K).transpose(0, 1))
        i = torch.arange(Q.shape[0], device=Q.device)
        weights = torch.where(i[:, None] >= i[None, :], weights, torch.zeros_like(weights))
        both = weights @ with_one
    else:
        both = torch.matmul(phi(Q), torch.matmul(phi(K).transpose(0, 1), with_one))
    return both[:, :-1] / both[:, -1:]
"""

EACH_ROW = """import torch

def linear_attention(Q, K, V, phi, causal=False):
    n = Q.size(0)
    keys = [phi(K[j]) for j in range(n)]
    if not causal:
        S = sum(torch.outer(f, v) for f, v in zip(keys, V))
        z = sum(keys)
        return torch.stack([(phi(q) @ S) / (phi(q) @ z) for q in Q])
    rows = []
    for i in range(n):
        w = torch.stack([torch.dot(phi(Q[i]), keys[j]) for j in range(i + 1)])
        rows.append((w / w.sum()) @ V[: i + 1])
    return torch.stack(rows)
"""

ELU = Code("lambda x: torch.nn.functional.elu(x) + 1")
# Twice as many features as dimensions: phi must be given rows, and sizes must not be taken from d.
SPLIT = Code("lambda x: torch.cat([torch.relu(x) + 0.5, torch.relu(-x) + 0.5], dim=-1)")
EXP = Code("lambda x: torch.exp(x / 2)")


class Given(FeatureMap):
    """Our linear attention's view of a function given as an argument."""

    def __init__(self, function: Any) -> None:
        object.__setattr__(self, "function", function)

    def phi(self, x: Tensor) -> Tensor:
        features: Tensor = self.function(x)  # type: ignore[attr-defined]
        return features

    def dim(self, qk_dim: int) -> int:
        return int(self.phi(torch.zeros(1, qk_dim)).shape[-1])


def reference(case: Case) -> Tensor:
    """Our linear attention, of one head of one sequence."""
    *inputs, phi = case.args
    q, k, v = (x[None, None] for x in inputs)
    return attend_linear(q, k, v, Given(phi.value()), causal=case.kwargs.get("causal", False)).out[0, 0]


def whole(draw: Draw, phi: Code = ELU, **kwargs: Any) -> Case:
    # Numbers around 1 keep every sum of products well above 0, whatever is added to it for safety.
    q, k = (draw.normal("n", "d", mean=1.0) for _ in range(2))
    return Case((q, k, draw.normal("n", "m"), phi), kwargs)


def causal(draw: Draw, phi: Code = ELU) -> Case:
    return whole(draw, phi, causal=True)


def split_features(draw: Draw) -> Case:
    return whole(draw, SPLIT)


def split_causal(draw: Draw) -> Case:
    return causal(draw, SPLIT)


def exponential(draw: Draw) -> Case:
    return whole(draw, EXP, causal=False)


def future_changed(draw: Draw) -> tuple[Case, ...]:
    base = causal(draw)
    q, k, v, phi = base.args
    later = torch.arange(draw["n"])[:, None] > draw["n"] // 2
    return base, base.with_args(q, torch.where(later, k + 1.0, k), torch.where(later, v - 2.0, v), phi)


def query_changed(draw: Draw) -> tuple[Case, ...]:
    base = whole(draw)
    q = base.args[0].clone()
    q[0] = q[0].flip(0) * 2.0
    return base, base.with_args(q, *base.args[1:])


def below_a_table(sizes: Mapping[str, int]) -> int:
    return sizes["n"] * sizes["n"] - 1


TABLE = "table = torch.tril(table)"
TOTAL = "total = table.sum(dim=1, keepdim=True)"
WEIGHED = "return (table @ V) / total"
RETURN = "return top / bottom[:, None]"
SIZES = {"n": 7, "d": 3, "m": 5}
PHI_PLACE = "Look at where phi is applied."

EXERCISE = Exercise(
    id="linear-attention",
    title="Linear attention",
    names=("linear_attention",),
    task=TASK,
    starter=STARTER,
    reference=reference,
    right=(
        Right("sums once, a table when causal", STEPS),
        Right("a running state", RUNNING),
        Right("cumulative sums", CUMULATIVE),
        Right("a column of ones for the normaliser", ONES),
        Right("row by row", EACH_ROW),
    ),
    words={"": ("position", "v_dim")},
    trials=(
        Trial("all positions", whole, SIZES, variants=True),
        Trial("causal", causal, SIZES, variants=True),
        Trial("more features than dimensions", split_features, {**SIZES, "n": 5}),
        Trial("causal, more features than dimensions", split_causal, {**SIZES, "m": 2}),
        Trial("another feature map", exponential, {"n": 5, "d": 2, "m": 3}),
        Trial("all sizes alike", whole, {"n": 5, "d": 5, "m": 5}),
        Trial("causal, all sizes alike", causal, {"n": 5, "d": 5, "m": 5}),
        Trial("one position", whole, {**SIZES, "n": 1}),
        Trial(
            "a long sequence",
            whole,
            {"n": 61, "d": 5, "m": 7},
            grad=False,
            most_numbers=below_a_table,
            says="A table of n x n is what linear attention does without: multiply phi(K)^T V first.",
        ),
    ),
    probes=(
        Probe(
            "the future has no say",
            future_changed,
            SIZES,
            says="with causal=True, later keys and values were changed: earlier rows may not move.",
        ),
        Probe(
            "a query stands alone",
            query_changed,
            SIZES,
            says="one query was changed: the other rows may not move.",
        ),
    ),
    hints=(
        "Some row is not the average of V with weights phi(q_i) . phi(k_j).",
        "Take n = 2 and work row 1 out by hand; check that the weights sum to 1.",
        "Both sums run over the keys: S = sum phi(k_j) v_j^T above, z = sum phi(k_j) below.",
        "top = phi(Q) (phi(K)^T V), bottom = phi(Q) z; when causal, sums run up to the row's own position.",
    ),
    mistakes=(
        Mistake(
            "no normaliser",
            (
                "Rows are sums of the values, not averages.",
                "Look at the last line.",
                "The weights phi(q) . phi(k) do not sum to 1 by themselves.",
                "Divide by the sum of the weights.",
            ),
            edits=((RETURN, "return top"), (WEIGHED, "return table @ V")),
        ),
        Mistake(
            "no normaliser when causal",
            (
                "With causal=True rows are sums, not averages.",
                "Look at the causal branch.",
                "The sum of a row's weights is left out there.",
                "Divide by the sum of the weights up to the row's own position.",
            ),
            edits=((WEIGHED, "return table @ V"),),
        ),
        Mistake(
            "divided by the length instead of the weights",
            (
                "Rows are not averages: their weights do not sum to 1.",
                "Look at what is divided by.",
                "n is the sum of n weights of 1, and these are not 1.",
                "Divide by the sum of phi(q_i) . phi(k_j) over j.",
            ),
            edits=((RETURN, "return top / Q.shape[0]"), (WEIGHED, "return (table @ V) / Q.shape[0]")),
        ),
        Mistake(
            "softmax attention",
            (
                "phi has no say.",
                "Look at how the weights are made.",
                "exp(q . k) stands where phi(q) . phi(k) should.",
                "Use the features, and divide by their sum.",
            ),
            edits=((RETURN, "return torch.softmax(Q @ K.T, dim=1) @ V"),),
        ),
        Mistake(
            "scaled softmax attention",
            (
                "phi has no say.",
                "Look at how the weights are made.",
                "exp(q . k / sqrt(d)) stands where phi(q) . phi(k) should.",
                "Use the features, and divide by their sum.",
            ),
            edits=((RETURN, "return torch.softmax(Q @ K.T / Q.shape[1] ** 0.5, dim=1) @ V"),),
        ),
        Mistake(
            "a softmax over products of features",
            (
                "The weights are too sharp.",
                "Look at what happens to phi(q) . phi(k).",
                "The products are the weights already; the softmax takes exp of them.",
                "Divide by their sum, without exp.",
            ),
            edits=(
                (RETURN, "return torch.softmax(fq @ fk.T, dim=1) @ V"),
                (TABLE, 'table = torch.tril(table) + torch.full_like(table, float("-inf")).triu(1)'),
                (TOTAL, "table, total = torch.softmax(table, dim=1), 1.0"),
            ),
        ),
        Mistake(
            "phi on the queries only",
            (
                "The keys enter as they are.",
                PHI_PLACE,
                "K goes into the sums without its features.",
                "Use phi(K) in both sums.",
            ),
            edits=(("fk = phi(K)", "fk = K"),),
        ),
        Mistake(
            "phi on the keys only",
            (
                "The queries enter as they are.",
                PHI_PLACE,
                "Q meets the sums without its features.",
                "Use phi(Q) above and below.",
            ),
            edits=(("fq = phi(Q)", "fq = Q"),),
        ),
        Mistake(
            "no phi at all",
            (
                "phi has no say.",
                PHI_PLACE,
                "The products are q . k, which may even be negative.",
                "Map both Q and K.",
            ),
            edits=(("fq = phi(Q)", "fq = Q"), ("fk = phi(K)", "fk = K")),
        ),
        Mistake(
            "phi on the product",
            (
                "The weights are phi(q . k), not phi(q) . phi(k).",
                PHI_PLACE,
                "A feature map takes a vector; it is applied to the table of products.",
                "Map Q and K first, then multiply.",
            ),
            edits=((RETURN, "w = phi(Q @ K.T)[:, :len(K)]\n    return (w @ V) / w.sum(1, keepdim=True)"),),
        ),
        Mistake(
            "phi along the sequence instead of the dimensions",
            (
                "Right for maps that take each number alone, wrong for others.",
                PHI_PLACE,
                "phi works on the last axis, and is given K transposed.",
                "Map K as (n, d), then transpose.",
            ),
            edits=(("fk = phi(K)", "fk = phi(K.T).T"),),
        ),
        Mistake(
            "causal has no effect",
            (
                "Earlier rows see later keys.",
                "Look at the causal branch.",
                "All positions are summed whatever causal says.",
                "Keep, for row i, the keys 0 .. i.",
            ),
            edits=((TABLE, "table = table"),),
        ),
        Mistake(
            "causal the wrong way round",
            (
                "Rows see the keys after them, not before.",
                "Look at the triangle.",
                "The upper triangle holds the later keys.",
                "Keep the lower triangle: key position <= query position.",
            ),
            edits=((TABLE, "table = torch.triu(table)"),),
        ),
        Mistake(
            "a position does not see itself",
            (
                "Row 0 is NaN: it sees nothing.",
                "Look at the diagonal.",
                "The triangle leaves it out; j runs up to and including i.",
                "Keep the diagonal.",
            ),
            edits=((TABLE, "table = torch.tril(table, diagonal=-1)"),),
        ),
        Mistake(
            "a position sees one step ahead",
            (
                "Each row sees the key after it.",
                "Look at the diagonal.",
                "The triangle has one diagonal too many.",
                "tril without an offset.",
            ),
            edits=((TABLE, "table = torch.tril(table, diagonal=1)"),),
        ),
        Mistake(
            "the causal rows are divided by the sum over all keys",
            (
                "With causal=True the weights of early rows sum to far less than 1.",
                "Look at the normaliser of the causal branch.",
                "The hidden keys are left out above and kept below.",
                "Sum the weights after the triangle is cut.",
            ),
            edits=((TOTAL, "total = (fq @ fk.T).sum(dim=1, keepdim=True)"),),
        ),
        Mistake(
            "the normaliser sums over the queries",
            (
                "Columns of the weights sum to 1, rows do not.",
                "Look at the axis of the sum below.",
                "Each row is divided by what its key receives from all queries.",
                "Sum over the keys: z = sum of phi(k_j).",
            ),
            edits=(("z = fk.sum(dim=0)", "z = fq.sum(dim=0)"), ("bottom = fq @ z", "bottom = fk @ z")),
        ),
        Mistake(
            "one normaliser for all rows",
            (
                "All rows are divided by the same number.",
                "Look at the sum below.",
                "It runs over queries and keys alike.",
                "Each row has a normaliser of its own: phi(q_i) . z.",
            ),
            edits=((RETURN, "return top / bottom.sum()"),),
        ),
        Mistake(
            "a table of n x n though it is not causal",
            (
                "The numbers are right, and the cost grows with the square of the length.",
                "Look at the order of the three factors.",
                "(phi(Q) phi(K)^T) V makes the table; phi(Q) (phi(K)^T V) does not.",
                "Multiply phi(K)^T with V first.",
            ),
            edits=(("top = fq @ S", "top = (fq @ fk.T) @ V"),),
        ),
        Mistake(
            "always causal",
            (
                "Later keys are hidden even with causal=False.",
                "Look at the branch.",
                "The option is not looked at.",
                "Cut the triangle only when causal is true.",
            ),
            edits=(("if causal:", "if True:"),),
        ),
    ),
)
