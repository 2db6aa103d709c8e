"""Recurrent networks: one step, whole sequences, lengths, gradients."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard import recurrent
from regard.recurrent import GRUWeights, LSTMWeights, RNNWeights, last_state

TIME, BATCH, INPUT_DIM, HIDDEN = 7, 3, 5, 11

# Sums of a few dozen terms of order 1, through a few contracting steps: some tens of roundings.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 5e-6, torch.float16: 1e-2, torch.bfloat16: 8e-2}


def flat(function, weights, n_state):
    """The function with its weights one after the other, as leaves that gradients are asked of."""
    n_input = 1 + n_state
    return lambda *args, **options: function(*args[:n_input], weights(*args[n_input:]), **options)


rnn_step, rnn_forward = (flat(f, RNNWeights, 1) for f in (recurrent.rnn_step, recurrent.rnn_forward))
lstm_step, lstm_forward = (flat(f, LSTMWeights, 2) for f in (recurrent.lstm_step, recurrent.lstm_forward))
gru_step, gru_forward = (flat(f, GRUWeights, 1) for f in (recurrent.gru_step, recurrent.gru_forward))


def lstm_last(*args, **options):
    """The form that returns only the last cell state."""
    return lstm_forward(*args, cells=False, **options)


def by_steps(step, X, states, weights, **options):
    """The oracle: the step called once for each input, every state kept."""
    kept = [[] for _ in states]
    for x_t in X.unbind():
        new = step(x_t, *states, *weights, **options)
        states = new if isinstance(new, tuple) else (new,)
        for sequence, state in zip(kept, states, strict=True):
            sequence.append(state)
    return tuple(torch.stack(sequence) for sequence in kept)


FORMS = {
    "rnn": (rnn_forward, rnn_step, 1, 1),
    "lstm": (lstm_forward, lstm_step, 2, 4),
    "lstm, last cell": (lstm_last, lstm_step, 2, 4),
    "gru": (gru_forward, gru_step, 1, 3),
    "gru, reset after": (
        partial(gru_forward, reset_after=True),
        partial(gru_step, reset_after=True),
        1,
        3,
    ),
}
each_form = pytest.mark.parametrize("form", FORMS)


def problem(form, *, time=TIME, batch=(BATCH,), input_dim=INPUT_DIM, hidden=HIDDEN, **kind):
    """Inputs, initial states and weights for one form, random, each an independent leaf."""
    n_state, n_gate = FORMS[form][2:]
    shapes = [(time, *batch, input_dim)] + [(*batch, hidden)] * n_state
    shapes += [(input_dim, hidden), (hidden, hidden), (hidden,)] * n_gate
    tensors = [torch.randn(shape, **kind) / max(1, shape[0]) ** 0.5 for shape in shapes]
    for tensor in tensors:
        tensor.requires_grad_()
    return tensors[0], tuple(tensors[1 : 1 + n_state]), tuple(tensors[1 + n_state :])


def as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def expected(form, X, states, weights):
    """What the form should return, step by step."""
    sequences = by_steps(FORMS[form][1], X, states, weights)
    return (sequences[0], sequences[1][-1]) if form == "lstm, last cell" else sequences


def close(actual, wanted, dtype=torch.float32):
    torch.testing.assert_close(actual, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_an_rnn_step_by_hand():
    """tanh(1*0.5 + 2*(-0.25) + 3*0.2 + 0.4) is tanh(1), for vectors and for a batch of them."""
    x_t, h_prev = torch.tensor([1.0, 2.0]), torch.tensor([3.0])
    weights = torch.tensor([[0.5], [-0.25]]), torch.tensor([[0.2]]), torch.tensor([0.4])
    close(rnn_step(x_t, h_prev, *weights), torch.tensor([0.7615942]))
    close(rnn_step(x_t[None], h_prev[None], *weights), torch.tensor([[0.7615942]]))


def test_an_lstm_step_by_hand():
    """With gates held at 1/2, 3/4 and 1/5 by their biases, c and h are those parts of what they gate."""
    x_t, h_prev, c_prev = torch.zeros(2), torch.zeros(1), torch.tensor([4.0])
    still = torch.zeros(2, 1), torch.zeros(1, 1)
    logit = [torch.tensor([p]).logit() for p in (0.5, 0.75, 0.2)]
    candidate = torch.zeros(2, 1), torch.zeros(1, 1), torch.tensor([0.5])
    h, c = lstm_step(
        x_t, h_prev, c_prev, *still, logit[0], *still, logit[1], *still, logit[2], *candidate
    )  # forget, input, output
    close(c, torch.tensor([0.5 * 4 + 0.75 * 0.46211716]))
    close(h, torch.tensor([0.2 * 0.98185108]))  # tanh(2.34658787)


def test_a_gru_step_by_hand():
    """z keeps a quarter of the old state, and the reset halves it before U_h mixes it."""
    h_prev = torch.tensor([2.0, 4.0])
    still = torch.zeros(3, 2), torch.zeros(2, 2)
    z, r = torch.full((2,), 0.25).logit(), torch.tensor([0.5, 0.25]).logit()
    swap = torch.tensor([[0.0, 0.1], [0.1, 0.0]])
    step = partial(gru_step, torch.zeros(3), h_prev, *still, z, *still, r, still[0], swap, torch.zeros(2))
    # before: r * h = (1, 1), swapped and a tenth: both tanh(0.1)
    close(step(), 0.25 * h_prev + 0.75 * 0.09966799)
    # after: h swapped and a tenth is (0.4, 0.2), then reset: tanh(0.2), tanh(0.05)
    close(step(reset_after=True), 0.25 * h_prev + 0.75 * torch.tensor([0.19737532, 0.04995838]))


@each_form
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("batch", [(), (BATCH,)], ids=["unbatched", "batched"])
def test_a_sequence_is_its_steps(form, dtype, batch):
    """The whole-sequence form returns what the steps return, in every dtype and in that dtype."""
    X, states, weights = problem(form, batch=batch, dtype=dtype)
    actual = as_tuple(FORMS[form][0](X, *states, *weights))
    assert actual[0].dtype == dtype
    close(actual, expected(form, X, states, weights), dtype)


@each_form
@given(time=st.integers(1, 9), batch=st.integers(0, 5), input_dim=st.integers(1, 7), hidden=st.integers(1, 7))
def test_a_sequence_is_its_steps_whatever_its_sizes(form, time, batch, input_dim, hidden):
    """Any size from one step, one number, and no sequence at all."""
    sizes = {"time": time, "batch": (batch,), "input_dim": input_dim, "hidden": hidden}
    X, states, weights = problem(form, **sizes, dtype=torch.float64)
    actual = as_tuple(FORMS[form][0](X, *states, *weights))
    close(actual, expected(form, X, states, weights), torch.float64)


@each_form
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_numbers_are_the_same(form, mode):
    """Where nothing is kept for a backward pass."""
    X, states, weights = problem(form, dtype=torch.float64)
    with mode():
        actual = as_tuple(FORMS[form][0](X, *states, *weights))
    close(actual, expected(form, X, states, weights), torch.float64)


@each_form
@pytest.mark.parametrize("batch", [(), (BATCH,)], ids=["unbatched", "batched"])
def test_gradients_are_those_of_the_steps(form, batch):
    """Every input, state and weight gets the gradient that autograd finds through the steps."""
    X, states, weights = problem(form, batch=batch, dtype=torch.float64)
    leaves = (X, *states, *weights)
    actual = as_tuple(FORMS[form][0](X, *states, *weights))
    directions = [torch.randn_like(output) for output in actual]
    found = torch.autograd.grad(actual, leaves, directions)
    close(found, torch.autograd.grad(expected(form, X, states, weights), leaves, directions), torch.float64)


@each_form
@pytest.mark.parametrize("lengths", [None, (2, 0)], ids=["full", "lengths"])
def test_gradcheck(form, lengths):
    """Numerical derivatives agree, with and without lengths."""
    X, states, weights = problem(form, time=3, batch=(2,), input_dim=2, hidden=3, dtype=torch.float64)
    lengths = None if lengths is None else torch.tensor(lengths)
    run = partial(FORMS[form][0], lengths=lengths)
    assert torch.autograd.gradcheck(run, (X, *states, *weights))


@pytest.mark.parametrize("form", ["rnn", "lstm", "gru"])
def test_second_derivatives(form):
    """A gradient through a gradient is right, too."""
    X, states, weights = problem(form, time=2, batch=(2,), input_dim=2, hidden=2, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(FORMS[form][0], (X, *states, *weights))


@pytest.mark.parametrize("unused", [0, 1], ids=["hidden states", "cell states"])
def test_an_lstm_of_which_only_one_output_is_used(unused):
    """The output that the loss does not see gets no gradient, and the other its own."""
    X, states, weights = problem("lstm", dtype=torch.float64)
    leaves = (X, *states, *weights)
    found = torch.autograd.grad(lstm_forward(X, *states, *weights)[1 - unused].sum(), leaves)
    wanted = torch.autograd.grad(expected("lstm", X, states, weights)[1 - unused].sum(), leaves)
    close(found, wanted, torch.float64)


@pytest.mark.parametrize("form", FORMS)
def test_inputs_of_any_strides_are_left_as_they_were(form):
    """Transposed inputs give the same numbers, and none is written to."""
    X, states, weights = problem(form)
    wanted = as_tuple(FORMS[form][0](X, *states, *weights))
    turned = [t.detach().mT.contiguous().mT if t.dim() > 1 else t.detach() for t in (X, *states, *weights)]
    copies = [tensor.clone() for tensor in turned]
    close(as_tuple(FORMS[form][0](*turned)), wanted)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(turned, copies, strict=True))


@each_form
def test_the_meta_device_carries_through(form):
    """Outputs are on the inputs' device: nothing is created on another."""
    X, states, weights = problem(form, device="meta")
    for output in as_tuple(FORMS[form][0](X, *states, *weights, lengths=None)):
        assert output.device.type == "meta"
    padded = FORMS[form][0](
        X, *states, *weights, lengths=torch.empty(BATCH, dtype=torch.int64, device="meta")
    )
    assert as_tuple(padded)[0].device.type == "meta"


@each_form
def test_float32_under_autocast_trains(form):
    """Autocast around the call changes nothing on a CPU, few of which have recurrences in half precision."""
    X, states, weights = problem(form)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        H = as_tuple(FORMS[form][0](X, *states, *weights))[0]
    wanted = expected(form, X, states, weights)[0]
    close(H, wanted)
    close(torch.autograd.grad(H.sum(), weights), torch.autograd.grad(wanted.sum(), weights))


PEERS = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru, reset after": torch.nn.GRU}
# the triples of weights, in the order in which torch stacks their gates
TORCH_ORDER = {"rnn": (0,), "lstm": (1, 0, 3, 2), "gru, reset after": (1, 0, 2)}


def peer_of(form, weights):
    """The torch.nn module with the same weights: stacked, transposed, in its order of gates."""
    n_gate = FORMS[form][3]
    module = PEERS[form](INPUT_DIM, HIDDEN).double()
    W, U = (torch.cat([weights[3 * i + k].mT for i in TORCH_ORDER[form]]) for k in range(2))
    b = torch.cat([weights[3 * i + 2] for i in TORCH_ORDER[form]])
    values = {"weight_ih_l0": W, "weight_hh_l0": U, "bias_ih_l0": b, "bias_hh_l0": torch.zeros_like(b)}
    assert W.shape == (n_gate * HIDDEN, INPUT_DIM)
    return partial(torch.func.functional_call, module, values)


@pytest.mark.parametrize("form", PEERS)
def test_a_sequence_equals_torch_nn(form):
    """nn.RNN, nn.LSTM and nn.GRU with the same weights give the same states and gradients."""
    X, states, weights = problem(form, dtype=torch.float64)
    leaves = (X, *states, *weights)
    initial = tuple(state[None] for state in states)
    peer_H, peer_last = peer_of(form, weights)((X, initial if len(initial) > 1 else initial[0]))
    actual = as_tuple(FORMS[form][0](X, *states, *weights))
    close(actual[0], peer_H, torch.float64)
    if form == "lstm":
        close(actual[1][-1], peer_last[1][0], torch.float64)
    direction = torch.randn_like(peer_H)
    found = torch.autograd.grad(actual[0], leaves, direction)
    close(found, torch.autograd.grad(peer_H, leaves, direction), torch.float64)


@pytest.mark.parametrize("bias", [True, False])
def test_weights_from_torch_give_what_the_module_gives(bias):
    """`from_torch` reads nn.RNN, nn.LSTM and nn.GRU, for a sequence and for its steps."""
    X, (h0, c0), _ = problem("lstm", dtype=torch.float64)
    rnn, lstm, gru = (kind(INPUT_DIM, HIDDEN, bias=bias).double() for kind in PEERS.values())
    weights = RNNWeights.from_torch(rnn)
    close(recurrent.rnn_forward(X, h0, weights), rnn(X, h0[None])[0], torch.float64)
    close(by_steps(recurrent.rnn_step, X, (h0,), (weights,))[0], rnn(X, h0[None])[0], torch.float64)
    weights = LSTMWeights.from_torch(lstm)
    wanted = lstm(X, (h0[None], c0[None]))[0]
    close(recurrent.lstm_forward(X, h0, c0, weights)[0], wanted, torch.float64)
    close(by_steps(recurrent.lstm_step, X, (h0, c0), (weights,))[0], wanted, torch.float64)
    weights, wanted = GRUWeights.from_torch(gru), gru(X, h0[None])[0]
    close(recurrent.gru_forward(X, h0, weights, reset_after=True), wanted, torch.float64)
    by_step = by_steps(recurrent.gru_step, X, (h0,), (weights,), reset_after=True)[0]
    close(by_step, wanted, torch.float64)
    assert repr(weights) == f"GRUWeights(input_dim {INPUT_DIM}, hidden {HIDDEN})"


LENGTHS = torch.tensor([4, 0, TIME])


@each_form
def test_states_past_the_end_are_zero_and_those_before_untouched(form):
    """With lengths, each sequence has the states it would have alone, then zeros."""
    X, states, weights = problem(form, dtype=torch.float64)
    run = FORMS[form][0]
    actual = as_tuple(run(X, *states, *weights, lengths=LENGTHS))
    for batch, length in enumerate(LENGTHS.tolist()):
        assert not actual[0][length:, batch].any()
        if length:
            alone = as_tuple(run(X[:length, batch], *(s[batch] for s in states), *weights))
            close(actual[0][:length, batch], alone[0], torch.float64)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_the_last_states_are_those_of_pack_padded_sequence(dtype):
    """`last_state`, and the cells=False form, find what nn.LSTM returns for a packed batch."""
    lengths = torch.tensor([4, 1, TIME], dtype=dtype)  # torch packs no empty sequence
    X, states, weights = problem("lstm", dtype=torch.float64)
    packed = pack_padded_sequence(X, lengths.long(), enforce_sorted=False)
    packed_H, (h_last, c_last) = peer_of("lstm", weights)((packed, tuple(state[None] for state in states)))
    H, C = lstm_forward(X, *states, *weights, lengths=lengths)
    close(H, pad_packed_sequence(packed_H)[0], torch.float64)
    close(last_state(H, states[0], lengths), h_last[0], torch.float64)
    close(last_state(C, states[1], lengths), c_last[0], torch.float64)
    close(lstm_last(X, *states, *weights, lengths=lengths)[1], c_last[0], torch.float64)


def test_a_sequence_without_steps_ends_where_it_began():
    """Length 0 keeps the initial state, and its gradient."""
    X, states, weights = problem("lstm", dtype=torch.float64)
    _, c_last = lstm_last(X, *states, *weights, lengths=LENGTHS)
    assert torch.equal(c_last[1], states[1][1])
    (grad_c0,) = torch.autograd.grad(c_last[1].sum(), states[1])
    wanted = torch.zeros_like(grad_c0)
    wanted[1] = 1
    assert torch.equal(grad_c0, wanted)


def test_the_last_state_of_full_sequences_is_the_last_row():
    """Without lengths, and unbatched with a length of its own."""
    X, (h0,), weights = problem("rnn", batch=())
    H = rnn_forward(X, h0, *weights)
    assert torch.equal(last_state(H, h0), H[-1])
    assert torch.equal(last_state(H, h0, torch.tensor(4)), H[3])


@each_form
@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
def test_garbage_in_the_padding_reaches_neither_states_nor_gradients(form, garbage):
    """What stands past the end changes nothing: outputs and gradients are those of a clean padding."""
    X, states, weights = problem(form, dtype=torch.float64)
    padding = torch.arange(TIME)[:, None] >= LENGTHS
    found = []
    for filler in (0.0, garbage):
        filled = X.detach().masked_fill(padding[..., None], filler).requires_grad_()
        outputs = as_tuple(FORMS[form][0](filled, *states, *weights, lengths=LENGTHS))
        loss = sum(output.square().sum() for output in outputs)
        found.append((*outputs, *torch.autograd.grad(loss, (filled, *states, *weights))))
    for clean, dirty in zip(*found, strict=True):
        assert torch.equal(clean, dirty)
