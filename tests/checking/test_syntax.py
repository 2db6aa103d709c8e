"""The parser, asked by several threads at once."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from regard.checking.syntax import parsed

SOURCE = "\n".join(f"def f{n}(x):\n    return [((x + {n}) * [y for y in x][0]) ** 2, -x]" for n in range(60))


def n_failed(parse):
    """How many of 100 parses fail where a collection of garbage lets another thread go on amid each."""
    gc.callbacks.append(let := lambda *_: time.sleep(0))
    before = gc.get_threshold()
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(parse, SOURCE) for _ in range(100)]
            return sum(isinstance(future.exception(), SystemError) for future in futures)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(let)


def test_threads_may_parse_at_once():
    """None fails; of Python's own some do in 3.11, which is why there is a lock."""
    assert not n_failed(parsed)
    with pytest.raises(SyntaxError):
        parsed("def f(")
