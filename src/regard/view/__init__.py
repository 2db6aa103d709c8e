"""The page where attention is looked at: one module in the browser, in an exported file and in a notebook."""
