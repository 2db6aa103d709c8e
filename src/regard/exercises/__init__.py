"""Exercises: write attention yourself, and be told exactly which mistake you made."""
