"""What tests of several parts share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nvml import library


@pytest.fixture(scope="session")
def nvml_library() -> Any:
    return library.load()


@pytest.fixture
def fake_nvml(nvml_library: Any, tmp_path: Path) -> Iterator[library.FakeNvml]:
    """A machine with an A100 and an H100, its state the test's own; nvidia-ml-py finds it as it finds a driver."""
    with pytest.MonkeyPatch.context() as patch:
        state = tmp_path / "nvml.state"
        patch.setenv("FAKE_NVML_STATE", str(state))
        fake = library.FakeNvml(nvml_library, state)
        fake.machine("a100", "h100")
        yield fake
