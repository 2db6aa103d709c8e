"""What formulas of attention are worked with, where an exercise has no convention for it."""

empty_row = "zeros"
