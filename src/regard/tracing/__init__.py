"""Traces: every attention weight of a forward pass, in memory that grows with length alone."""
