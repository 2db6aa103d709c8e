"""How much all queries look at each key: the sums of the columns of weights, in O(N) memory."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.scores import ScoreRule
from regard.attention.shapes import Keys, Queries, check_attention, row_blocks, whole_slice


def column_sums(
    q: Queries, k: Keys, lse: Float[Tensor, "batch head query"], rule: ScoreRule, rows: slice | None = None
) -> Float[Tensor, "batch head key"]:
    """Sum each key's weights over the queries, in memory that grows with the length only.

    Args:
        q: Queries, ``(batch, head, query, qk_dim)``.
        k: Keys, ``(batch, kv_head, key, qk_dim)``.
        lse: ``(batch, head, query)``, what `attend(q, k, v, rule)` returned.
        rule: The rule it was given.
        rows: Only these queries. Default: all.

    Returns:
        ``(batch, head, key)``. All sums of a head together are its number of queries that see something, less
        what a sink takes.

    Raises:
        ShapeError: If the inputs or the rule do not fit together.

    Example:
        >>> from regard.attention import Visibility, attend
        >>> q = k = torch.zeros(1, 1, 3, 2)
        >>> rule = ScoreRule(visible=Visibility(causal=True))
        >>> column_sums(q, k, attend(q, k, k, rule).lse, rule)[0, 0]
        tensor([1.8333, 0.8333, 0.3333])
    """
    check_attention(q, k)
    rule.check(q, k)
    sums = q.new_zeros(*q.shape[:2], k.shape[2], dtype=torch.promote_types(q.dtype, torch.float32))
    # A row that sees nothing is hidden everywhere: any finite number serves in the place of its -inf.
    row_lse = lse.clamp_min(torch.finfo(lse.dtype).min)[..., None]
    for strip in row_blocks(whole_slice("rows", rows, q.shape[2]), rule.row_cost(q, k)):
        cols = rule.visible.key_range(strip, k.shape[2])
        sums[:, :, cols] += torch.exp(rule.scores(q, k, strip, cols) - row_lse[:, :, strip]).sum(2)
    return sums
