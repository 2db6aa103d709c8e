"""What each head does: measures, labels, importance, pruning."""
