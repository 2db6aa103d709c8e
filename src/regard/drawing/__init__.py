"""Pictures: matplotlib figures, and escaped, self-contained HTML."""
