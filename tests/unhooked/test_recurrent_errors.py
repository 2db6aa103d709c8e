"""Messages of recurrent.py, as a user meets them, and torch.compile."""

import pytest
import torch

from regard.errors import ArgumentError, RegardError, ShapeError
from regard.recurrent import (
    GRUWeights,
    LSTMWeights,
    RNNWeights,
    gru_forward,
    gru_step,
    last_state,
    lstm_forward,
    lstm_step,
    rnn_forward,
    rnn_step,
)

TIME, BATCH, INPUT_DIM, HIDDEN = 7, 3, 5, 11

X, X_T = torch.zeros(TIME, BATCH, INPUT_DIM), torch.zeros(BATCH, INPUT_DIM)
STATE = torch.zeros(BATCH, HIDDEN)
GATE = (torch.zeros(INPUT_DIM, HIDDEN), torch.zeros(HIDDEN, HIDDEN), torch.zeros(HIDDEN))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {0: torch.zeros(INPUT_DIM + 1, HIDDEN)},
            r"W_x is \(input_dim 6, hidden 11\): it must be \(input_dim 5, hidden 11\)\. "
            r"Got x_t \(batch 3, input_dim 5\), h_prev \(batch 3, hidden 11\)\.",
        ),
        ({0: GATE[0].mT}, r"W_x is \(input_dim 11, hidden 5\): it must be \(input_dim 5, hidden 11\)"),
        ({1: torch.zeros(HIDDEN, 2)}, r"W_h is \(hidden 11, hidden 2\): it must be \(hidden 11, hidden 11\)"),
        ({2: torch.zeros(1, HIDDEN)}, r"b is \(1, 11\): it must be \(hidden 11\)"),
        ({2: torch.zeros(())}, r"b is \(\): it must be \(hidden 11\)"),
        ({2: torch.zeros(HIDDEN).double()}, r"b has dtype torch.float64 and x_t has torch.float32"),
        ({1: torch.zeros(HIDDEN, HIDDEN, device="meta")}, r"W_h is on meta and x_t on cpu"),
    ],
)
def test_a_weight_that_does_not_fit_is_named_with_its_dimensions(change, message):
    """The message says which weight, what it is, what it must be, and what decides that."""
    weights = [change.get(i, weight) for i, weight in enumerate(GATE)]
    with pytest.raises(ShapeError, match=message):
        rnn_step(X_T, STATE, RNNWeights(*weights))


@pytest.mark.parametrize(
    "name", ["W_f", "U_f", "b_f", "W_i", "U_i", "b_i", "W_o", "U_o", "b_o", "W_c", "U_c", "b_c"]
)
def test_each_of_twelve_weights_is_told_apart(name):
    """The wrong one among the LSTM's twelve is the one named, in a step and in a sequence."""
    weights = {f"{kind}_{gate}": GATE[k] for gate in "fioc" for k, kind in enumerate("WUb")}
    weights[name] = torch.zeros(2, 2)
    with pytest.raises(ShapeError, match=rf"^{name} is "):
        lstm_step(X_T, STATE, STATE, LSTMWeights(**weights))
    with pytest.raises(ShapeError, match=rf"^{name} is "):
        lstm_forward(X, STATE, STATE, LSTMWeights(**weights))


@pytest.mark.parametrize("name", ["W_z", "U_z", "b_z", "W_r", "U_r", "b_r", "W_h", "U_h", "b_h"])
def test_each_of_nine_weights_is_told_apart(name):
    """The same for the GRU."""
    weights = {f"{kind}_{gate}": GATE[k] for gate in "zrh" for k, kind in enumerate("WUb")}
    weights[name] = torch.zeros(2, 2)
    with pytest.raises(ShapeError, match=rf"^{name} is "):
        gru_step(X_T, STATE, GRUWeights(**weights))
    with pytest.raises(ShapeError, match=rf"^{name} is "):
        gru_forward(X, STATE, GRUWeights(**weights))


def test_an_input_of_the_wrong_rank_is_told_both_right_ones():
    """Inputs have one form without and one with a batch."""
    with pytest.raises(
        ShapeError, match=r"x_t has 3 dimensions: it must be \(input_dim,\) or \(batch, input_dim\)"
    ):
        rnn_step(X, STATE, RNNWeights(*GATE))
    with pytest.raises(
        ShapeError, match=r"X has 1 dimensions: it must be \(time, input_dim\) or \(time, batch, inp"
    ):
        rnn_forward(X[0, 0], STATE, RNNWeights(*GATE))


def test_a_state_that_does_not_fit_is_named():
    """A batch or a width that differs, in either state."""
    with pytest.raises(ShapeError, match=r"h0 is \(batch 2, hidden 11\): it must be \(batch 3, hidden 11\)"):
        rnn_forward(X, STATE[:2], RNNWeights(*GATE))
    with pytest.raises(ShapeError, match=r"h0 is \(11,\): it must be \(batch 3, hidden 11\)"):
        rnn_forward(X, STATE[0], RNNWeights(*GATE))
    with pytest.raises(ShapeError, match=r"c0 is \(batch 3, hidden 10\): it must be \(batch 3, hidden 11\)"):
        lstm_forward(X, STATE, STATE[:, 1:], LSTMWeights(*GATE * 4))


def test_no_steps_and_no_numbers_are_refused():
    """An empty time, input_dim or hidden has no result to give."""
    with pytest.raises(ShapeError, match=r"X has no steps: .* Got X \(time 0, batch 3, input_dim 5\)"):
        rnn_forward(X[:0], STATE, RNNWeights(*GATE))
    with pytest.raises(ShapeError, match=r"input_dim and hidden must be at least 1\. Got X .*input_dim 0\)"):
        gru_forward(X[..., :0], STATE, GRUWeights(*GATE * 3))
    with pytest.raises(ShapeError, match=r"input_dim and hidden must be at least 1\. Got x_t"):
        rnn_step(X_T, STATE[:, :0], RNNWeights(*GATE))


def test_whole_numbers_as_inputs_are_refused():
    """Inputs must have a floating dtype."""
    with pytest.raises(ShapeError, match=r"X has dtype torch.int64"):
        rnn_forward(X.long(), STATE, RNNWeights(*GATE))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.tensor([1, 8, 2]), r"lengths reach from 1 to 8: each must be between 0 and time 7"),
        (torch.tensor([-1, 7, 2]), r"lengths reach from -1 to 7: each must be between 0 and time 7"),
        (torch.tensor([1, 2]), r"lengths has shape \(2,\): it must be \(3,\), one for each sequence"),
        (torch.tensor([1.0, 2.0, 3.0]), r"whole numbers, such as torch.int64\. Got torch.float32"),
        (torch.tensor([True, False, True]), r"whole numbers, such as torch.int64\. Got torch.bool"),
        ([1, 2, 3], r"whole numbers, such as torch.int64\. Got list"),
        (torch.zeros(3, dtype=torch.int64, device="meta"), r"lengths is on meta and \w+ on cpu"),
    ],
)
def test_lengths_that_cannot_be_are_refused(lengths, message):
    """By every function that takes them."""
    with pytest.raises(RegardError, match=message):
        rnn_forward(X, STATE, RNNWeights(*GATE), lengths=lengths)
    with pytest.raises(RegardError, match=message):
        lstm_forward(X, STATE, STATE, LSTMWeights(*GATE * 4), lengths=lengths)
    with pytest.raises(RegardError, match=message):
        gru_forward(X, STATE, GRUWeights(*GATE * 3), lengths=lengths)
    with pytest.raises(RegardError, match=message):
        last_state(torch.zeros(TIME, BATCH, HIDDEN), STATE, lengths)


def test_the_inner_bias_needs_the_reset_after():
    """It would be ignored otherwise, or mean something else."""
    with pytest.raises(ArgumentError, match="b_u is the bias inside the reset"):
        gru_step(X_T, STATE, GRUWeights(*GATE * 3, b_u=GATE[2]))
    with pytest.raises(ShapeError, match=r"b_u is \(hidden 2\): it must be \(hidden 11\)"):
        gru_forward(X, STATE, GRUWeights(*GATE * 3, b_u=torch.zeros(2)), reset_after=True)


@pytest.mark.parametrize("states", [torch.zeros(2, 3), torch.zeros(0, 3, 11), torch.zeros(())], ids=str)
def test_last_state_of_states_that_do_not_fit(states):
    """The message gives both shapes."""
    with pytest.raises(
        ShapeError, match=r"states and initial do not fit: .* Got states \(.*\), initial \(3, 11\)"
    ):
        last_state(states, STATE)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (torch.nn.LSTM(5, 11, num_layers=2), "one layer, one direction and no projection"),
        (torch.nn.LSTM(5, 11, bidirectional=True), "one layer, one direction and no projection"),
        (torch.nn.LSTM(5, 11, proj_size=3), "one layer, one direction and no projection"),
        (torch.nn.RNN(5, 11, nonlinearity="relu"), "must be tanh. Got relu"),
    ],
)
def test_modules_of_another_form_are_refused(module, message):
    """Their numbers would be others."""
    weights = LSTMWeights if isinstance(module, torch.nn.LSTM) else RNNWeights
    with pytest.raises(ArgumentError, match=message):
        weights.from_torch(module)


@pytest.mark.parametrize(
    ("run", "kind", "n_state", "n_gate"),
    [(rnn_forward, RNNWeights, 1, 1), (lstm_forward, LSTMWeights, 2, 4), (gru_forward, GRUWeights, 1, 3)],
)
def test_a_compiled_sequence_is_the_same(run, kind, n_state, n_gate):
    """torch.compile traces a sequence and its gradients whole, without a break in the graph."""
    shapes = [(3, 2, 5)] + [(2, 7)] * n_state + [(5, 7), (7, 7), (7,)] * n_gate
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    def called(*tensors):
        return run(*tensors[: 1 + n_state], kind(*tensors[1 + n_state :]))

    compiled = torch.compile(called, backend="aot_eager", fullgraph=True)
    results = []
    for form in (called, compiled):
        output = form(*inputs)
        output = output if isinstance(output, tuple) else (output,)
        results.append((*output, *torch.autograd.grad(sum(o.sum() for o in output), inputs)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)
