"""The cluster that most tests begin with."""

import pytest

from tests.controller.cluster import Cluster, of_nodes


@pytest.fixture
def cluster() -> Cluster:
    """Two nodes with a GPU each: one serves, one is left to measure and to tune on."""
    return of_nodes(2)
