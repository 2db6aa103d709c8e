"""Recurrent steps and sequences: RNN, LSTM, GRU."""
