"""A server a test, ended with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.server import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.end()
