"""The gated delta rule: three forms, one function, and the transformers library's own."""

import pytest
import torch
from torch.nn import functional as F
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from regard.attention.delta import attend_delta, delta_step, delta_weights

BATCH, HEAD, LENGTH, QK_DIM, V_DIM = 2, 3, 29, 5, 7
CLOSE = {"rtol": 0, "atol": 1e-12}  # float64: some hundreds of roundings of numbers around 1


def draw(length=LENGTH):
    source = torch.Generator().manual_seed(length)
    q, k = (torch.randn(BATCH, HEAD, length, QK_DIM, generator=source).double() for _ in range(2))
    v = torch.randn(BATCH, HEAD, length, V_DIM, generator=source).double()
    log_decay = -torch.rand(BATCH, HEAD, length, generator=source).double()
    beta = torch.rand(BATCH, HEAD, length, generator=source).double()
    return F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, log_decay, beta


def test_a_value_is_replaced_worked_by_hand():
    """Key (1, 0) is given 3, then 5: the memory says 5, linear attention would say 8. Halved, it says 2.5."""
    k = torch.tensor([[[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]]])
    q = torch.tensor([[[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]]])
    v = torch.tensor([[[[3.0], [5.0], [9.0]]]])
    log_decay = torch.tensor([[[0.0, 0.0, 0.5]]]).log().nan_to_num(neginf=0.0)
    out, state = attend_delta(q, k, v, log_decay, torch.ones(1, 1, 3), scale=1.0)
    torch.testing.assert_close(out.flatten(), torch.tensor([3.0, 5.0, 2.5]))
    torch.testing.assert_close(state.flatten(), torch.tensor([2.5, 9.0]))


@pytest.mark.parametrize("chunk", [1, 4, 29, 64])
def test_chunks_steps_and_weights_agree(chunk):
    """Whatever the chunk; from a state too; and the weights that were never formed give the output."""
    q, k, v, log_decay, beta = draw()
    out, last = attend_delta(q, k, v, log_decay, beta, chunk=chunk)
    state, steps = torch.zeros(BATCH, HEAD, QK_DIM, V_DIM, dtype=torch.float64), []
    for token in zip(*(x.split(1, 2) for x in (q, k, v, log_decay, beta)), strict=True):
        step, state = delta_step(*token, state)
        steps.append(step)
    torch.testing.assert_close(out, torch.cat(steps, 2), **CLOSE)
    torch.testing.assert_close(last, state, **CLOSE)
    torch.testing.assert_close(delta_weights(q, k, log_decay, beta) @ v, out, **CLOSE)
    first, second = (
        [x[:, :, part] for x in (q, k, v, log_decay, beta)] for part in (slice(11), slice(11, 29))
    )
    begun = attend_delta(*first, chunk=chunk)
    gone_on = attend_delta(*second, state=begun.state, chunk=chunk)
    torch.testing.assert_close(torch.cat([begun.out, gone_on.out], 2), out, **CLOSE)
    torch.testing.assert_close(gone_on.state, last, **CLOSE)


def test_it_is_the_function_of_transformers():
    """Qwen3-Next's plain PyTorch, chunked and recurrent, in float32."""
    given = [x.float() for x in draw()]
    out, state = attend_delta(*given)
    theirs = [x.transpose(1, 2) for x in given]
    for function in (qwen.torch_chunk_gated_delta_rule, qwen.torch_recurrent_gated_delta_rule):
        expected, last = function(*theirs, output_final_state=True)
        torch.testing.assert_close(out, expected.transpose(1, 2), rtol=0, atol=2e-6)
        torch.testing.assert_close(state, last, rtol=0, atol=2e-6)


def test_its_gradient_is_that_of_the_steps():
    """gradcheck, with a state in and out."""
    given = [x[:1, :2, :7].clone().requires_grad_() for x in draw()]
    state = torch.randn(1, 2, QK_DIM, V_DIM, dtype=torch.float64, requires_grad=True)

    def attended(*given):
        return attend_delta(*given[:5], state=given[5], chunk=3)

    assert torch.autograd.gradcheck(attended, (*given, state))
