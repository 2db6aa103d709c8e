"""A result as a person or a grader reads it."""
