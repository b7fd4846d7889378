"""One ZooKeeper, four bookies and BookKeeper's client, for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bookkeeper import BookKeeper, Client
from ensemble import Ensemble
from fleet import SETTINGS, Fleet
from kazoo.client import KazooClient

from ledger_client import blocking
from ledger_client.blocking import BlockingClient


@pytest.fixture(scope="package")
def bookkeeper(tmp_path_factory: pytest.TempPathFactory) -> BookKeeper:
    return BookKeeper(tmp_path_factory.mktemp("bookkeeper"))


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    zookeeper = Ensemble(tmp_path_factory.mktemp("zookeeper"), 1)
    zookeeper.start()
    try:
        zookeeper.wait()
        yield zookeeper
    finally:
        zookeeper.kill()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, ensemble: Ensemble) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    # Repair would close ledgers that a test leaves open with a bookie down.
    settings = [each for each in SETTINGS if not each.startswith("open_grace_s")]
    with Fleet(folder, 4, settings, metadata=ensemble.url("/ledgers")) as bookies:
        yield bookies


@pytest.fixture(scope="module")
def java(bookkeeper: BookKeeper, fleet: Fleet) -> Iterator[Client]:
    with bookkeeper.client(fleet.metadata) as client:
        yield client


@pytest.fixture
def ours(fleet: Fleet) -> Iterator[BlockingClient]:
    with blocking.connect(fleet.cluster) as client:
        yield client


@pytest.fixture
def nodes(ensemble: Ensemble) -> Iterator[KazooClient]:
    """ZooKeeper's nodes themselves."""
    client = KazooClient(ensemble.hosts)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()
