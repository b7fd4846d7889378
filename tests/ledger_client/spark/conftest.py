from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes import cluster

from ledger_client import blocking


@pytest.fixture(scope="package")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster for all tests of Spark."""
    with cluster(tmp_path_factory.mktemp("cluster"), 2) as running:
        yield running


@pytest.fixture(autouse=True)
def _topics_go(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delete what a test made that failed: it makes it again when it is tried a second time."""
    if "url" not in request.fixturenames:
        yield
        return
    with blocking.connect(request.getfixturevalue("url")) as client:
        before = {info.name for info in client.topics.list()}
        cuts = {info.name for info in client.cuts.list()}
        yield
        for cut in client.cuts.list():
            if cut.name not in cuts:
                client.cuts.delete(cut.name)
        for info in list(client.topics.list()):
            if info.name not in before:
                client.topics.delete(info.name)
