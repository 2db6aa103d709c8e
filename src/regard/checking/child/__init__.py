"""What runs beside an answer: torch and the standard library alone.

`start.py` loads this folder as the package `_answer` in a process where regard cannot be imported, so its
files import one another relatively. The checker imports some of them too, by their full names.
"""
