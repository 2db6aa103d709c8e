"""Writing text: one loop for every model."""
