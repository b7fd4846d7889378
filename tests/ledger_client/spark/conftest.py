from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes import cluster


@pytest.fixture(scope="package")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster for all tests of Spark."""
    with cluster(tmp_path_factory.mktemp("cluster"), 2) as running:
        yield running
