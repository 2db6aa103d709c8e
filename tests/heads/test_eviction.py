"""What a cache that forgets would lose, by its definition over dense weights."""

import pytest
import torch
from tiny_models import tiny, whole

from regard.errors import ArgumentError, UnsupportedError
from regard.heads import lost_attention
from regard.layers.eviction import Evict
from regard.tracing.take import trace
from regard.tracing.traces import Trace

AT = 11
POLICIES = [
    Evict("streaming", budget=5, sinks=2),
    Evict("h2o", budget=5),
    Evict("snapkv", budget=5, recent=2, pool=3),
]


def plainly(weights, evict, group):
    """The share on what goes after AT tokens, from one text's whole matrices (head, query, key)."""
    shares = []
    for head in range(weights.shape[0]):
        together = weights[head // group * group : (head // group + 1) * group]
        if evict.policy == "streaming":
            stay = [*range(evict.sinks), *range(AT - evict.budget + evict.sinks, AT)]
        else:
            rows = range(AT) if evict.policy == "h2o" else range(AT - evict.recent, AT)
            votes = together[:, list(rows)].sum((0, 1))[: AT - evict.recent]
            if evict.policy == "snapkv":
                votes = torch.stack([votes[max(0, i - 1) : i + 2].sum() for i in range(len(votes))])
            best = votes.argsort(descending=True)[: evict.budget - evict.recent]
            stay = [*best.tolist(), *range(AT - evict.recent, AT)]
        gone = [key for key in range(AT) if key not in stay]
        assert len(gone) == AT - evict.budget
        shares.append(weights[head, AT:][:, gone].sum() / weights[head, AT:].sum())
    return torch.stack(shares)


@pytest.mark.parametrize("evict", POLICIES, ids=lambda evict: evict.policy)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_share_lost_is_that_of_the_dense_weights(evict, family):
    """For each layer and head, grouped or not, of one text and of a padded batch."""
    seen = trace(tiny(family), ["the cat sat on the mat because", "a dog was here"])
    for batch, n_token in ((0, 30), (1, 14)):
        got = lost_attention(seen, evict, at=AT, batch=batch)
        start = 0 if seen.key_mask is None else int(seen.key_mask[batch].int().argmax())
        for index, layer in enumerate(seen.layers):
            weights = whole(layer)[batch, :, start : start + n_token, start : start + n_token]
            wanted = plainly(weights, evict, 2 if family == "llama" else 1)
            torch.testing.assert_close(got[index], wanted, rtol=0, atol=1e-5)


def test_a_budget_for_all_of_the_prompt_loses_nothing():
    """And half of the tokens are the prompt unless it is said."""
    seen = trace(tiny("gpt2"), "the cat sat on the mat")
    assert bool((lost_attention(seen, Evict("h2o", budget=11)) == 0).all())
    assert bool((lost_attention(seen, Evict("h2o", budget=10)) > 0).all())


def test_what_has_no_cache_is_refused():
    """An encoder sees the future; a prompt must leave tokens after it."""
    with pytest.raises(UnsupportedError, match="sees the future"):
        lost_attention(trace(tiny("bert"), "the cat sat"), Evict("h2o", budget=2))
    with pytest.raises(ArgumentError, match=r"below the 3 tokens there are. Got 3"):
        lost_attention(Trace.from_weights(torch.eye(3)), Evict("h2o", budget=2), at=3)
    with pytest.raises(ArgumentError, match="no such layer"):
        lost_attention(Trace.from_weights(torch.ones(2, 3)), Evict("h2o", budget=2))
