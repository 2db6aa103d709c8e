"""RNN, LSTM, GRU: their weights, one step, and a whole sequence.

weights = LSTMWeights.from_torch(nn.LSTM(5, 11))
h, c = lstm_step(x_t, h, c, weights)                     one input
H, C = lstm_forward(X, h0, c0, weights, lengths=lengths)  all of them; last_state(H, h0, lengths)
"""

from regard.recurrent.cells import GRUWeights, LSTMWeights, RNNWeights, gru_step, lstm_step, rnn_step
from regard.recurrent.loops import gru_forward, last_state, lstm_forward, rnn_forward

__all__ = [
    "GRUWeights",
    "LSTMWeights",
    "RNNWeights",
    "gru_forward",
    "gru_step",
    "last_state",
    "lstm_forward",
    "lstm_step",
    "rnn_forward",
    "rnn_step",
]
