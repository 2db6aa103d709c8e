"""Claims as experiments: a prediction, a measurement with its interval, a figure and a computed verdict."""
