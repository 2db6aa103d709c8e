"""Whole models: one Transformer that is four families, and the recurrent seq2seq."""
