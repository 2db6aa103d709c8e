"""One worker with torch loaded for all tests of this folder."""

import pytest

from regard.checking.runner import Runner


@pytest.fixture(scope="session")
def runner():
    with Runner(1) as started:
        yield started
