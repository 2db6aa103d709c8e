"""`watch`: whatever a program does with a model, seen."""

import threading

import pytest
import torch
from tiny_models import NanoGPT, whole
from torch import nn
from torch.nn import functional as F

import regard
from regard.errors import ArgumentError, TraceError
from regard.tracing import calls, watch


class Cached(nn.Module):
    """One causal attention that keeps its keys and values, as a decoder does."""

    def __init__(self, window=None):
        super().__init__()
        self.in_proj, self.window, self.past = nn.Linear(6, 18), window, None

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 3)).transpose(1, 2) for part in self.in_proj(x).chunk(3, -1))
        if self.past is not None:
            k, v = (torch.cat(pair, 2) for pair in zip(self.past, (k, v), strict=True))
        n_query, n_key = q.shape[2], k.shape[2]
        ahead = torch.arange(n_key) - torch.arange(n_key - n_query, n_key)[:, None]
        seen = ahead <= 0
        if self.window is not None:
            seen &= ahead > -self.window
        self.past = (
            (k, v) if self.window is None else (k[:, :, -self.window + 1 :], v[:, :, -self.window + 1 :])
        )
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


@pytest.mark.parametrize("window", [None, 4], ids=["all", "window"])
@pytest.mark.parametrize("steps", [[7, 1, 1, 1], [3, 4, 3], [10]], ids=str)
def test_steps_with_a_cache_grow_into_the_trace_of_the_whole(steps, window):
    """Prompt, chunks and single tokens, also where a window forgets: one trace, equal to that of one call."""
    model, x = Cached(window).eval(), torch.randn(2, 10, 6)
    wanted = regard.trace(model, (x,)).layers[0]
    model.past = None
    with torch.no_grad(), regard.watch(model, keep_v=True) as seen:
        for part in x.split(steps, 1):
            model(part)
    layer = seen.trace.layers[0]
    assert layer.shape == (2, 2, 10, 10)
    assert torch.allclose(whole(layer), whole(wanted), atol=1e-6)
    assert layer.rule.visible.causal
    assert layer.rule.visible.dense is None
    assert torch.allclose(layer.v, wanted.v if wanted.v is not None else layer.v)
    assert seen.trace.checks.passed


def test_calls_that_do_not_continue_one_another_are_several_traces():
    """Two texts are two traces; asking for the one trace says so."""
    model = NanoGPT().eval()
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randint(0, 61, (1, 7)))
        model(torch.randint(0, 61, (2, 5)))
        model(torch.randint(0, 61, (2, 4)))
        model(torch.randint(0, 61, (2, 4)))
    assert [trace.layers[0].n_query for trace in seen.traces] == [7, 5, 4, 4]
    assert seen.traces[1].n_batch == 2
    with pytest.raises(TraceError, match=r"4 calls.*`traces`"):
        _ = seen.trace
    with regard.watch(model) as nothing:
        pass
    with pytest.raises(TraceError, match="no attention of the model was seen"):
        _ = nothing.trace


def test_a_model_is_seen_in_whatever_thread_it_runs():
    """`generate` is often run in a thread of its own, with a streamer in this one."""
    model = NanoGPT().eval()
    inputs = [torch.randint(0, 61, (1, n)) for n in (3, 5, 7)]
    with regard.watch(model) as seen:
        threads = [threading.Thread(target=lambda ids=ids: model(ids)) for ids in inputs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one_more = threading.Thread(target=lambda: model(inputs[0]))  # may get the number of one that ended
        one_more.start()
        one_more.join()
    assert sorted(trace.layers[0].n_query for trace in seen.traces) == [3, 3, 5, 7]
    assert all(trace.n_layer == 2 for trace in seen.traces)


def test_two_models_are_kept_apart():
    """What one model does is no part of the other's trace."""
    one, other, ids = NanoGPT().eval(), NanoGPT().eval(), torch.randint(0, 61, (1, 7))
    with torch.no_grad(), regard.watch(one) as of_one, regard.watch(other, layers=[-1]) as of_other:
        one(ids)
        other(ids[:, :5])
    assert of_one.trace.layers[0].n_query == 7
    assert of_other.trace.names == ("h.1",)
    assert of_other.trace.layers[0].n_query == 5


def test_two_blocks_around_one_model_leave_nothing_behind():
    """They end in the order they began; what runs after them is neither watched nor changed."""
    model, ids = NanoGPT().eval(), torch.randint(0, 61, (1, 7))
    with (
        torch.no_grad(),
        regard.watch(model) as one,
        regard.intervene(model) as run,
        regard.watch(model) as other,
    ):
        run.gate(layer=0, by=0.0)
        model(ids)
    assert one.trace.names == other.trace.names == ("h.0", "h.1")
    assert not watch._interceptors.get()


def test_outputs_and_gradients_are_the_models_own():
    """Watching a training step changes neither, to the bit; and nothing is left behind."""
    model, ids = NanoGPT().train(), torch.randint(0, 61, (2, 7))
    model(ids).sum().backward()
    wanted = [parameter.grad.clone() for parameter in model.parameters()]
    plain = model(ids)
    model.zero_grad()
    with regard.watch(model) as seen:
        out = model(ids)
        out.sum().backward()
    assert torch.equal(out, plain)
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), wanted, strict=True))
    assert not any(tensor.requires_grad for layer in seen.trace.layers for tensor in layer.tensors)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_failing_call_leaves_the_watch_whole():
    """An error of the model reaches its caller, and the next call is seen."""
    model = NanoGPT().eval()
    with torch.no_grad(), regard.watch(model) as seen:
        with pytest.raises(IndexError):
            model(torch.tensor([[61]]))
        model(torch.tensor([[5, 7]]))
    assert seen.trace.layers[0].n_query == 2


def test_a_first_step_that_is_not_explained_is_marked(monkeypatch):
    """Of several steps the first that failed its check is the one that the trace tells of."""
    model, x = Cached().eval(), torch.randn(1, 5, 6)
    right = calls.log_sum_exp
    shifts = iter([0.5, 0.0])
    monkeypatch.setattr("regard.tracing.watch.log_sum_exp", lambda *given: right(*given) + next(shifts))
    with torch.no_grad(), regard.watch(model) as seen:
        for part in x.split([4, 1], 1):
            model(part)
    with pytest.warns(UserWarning, match="does not agree"):
        trace = seen.trace
    assert len(trace.unverified) == 1


def test_only_models_are_watched():
    """A function is none."""
    with pytest.raises(ArgumentError, match=r"torch\.nn\.Module. Got int"), regard.watch(3):
        pass
