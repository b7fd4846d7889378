"""Changes that a client sends to a bookie that is cut off from ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from fake_bookie import FakeBookie, Network
from memory_zookeeper import MemoryConnection, MemoryEnsemble
from trio.testing import MockClock

from bookie.calls import SEND_S
from ledger_client import errors
from ledger_client.ledgers.catalogue import translated
from ledger_client.wire.stores import TIMEOUT_S, BookieStore
from metadata.errors import MetadataUnavailable
from metadata.store import Put
from metadata.zookeeper.floors import RaisedConnection
from metadata.zookeeper.founding import find_cluster
from metadata.zookeeper.store import ZooKeeperStore, serving


class _Member:
    """A bookie, and its connection to ZooKeeper."""

    def __init__(self, bookie: FakeBookie, connection: MemoryConnection) -> None:
        self.bookie = bookie
        self.connection = connection


@asynccontextmanager
async def _member(ensemble: MemoryEnsemble) -> AsyncIterator[_Member]:
    connection = MemoryConnection(ensemble)
    raised = RaisedConnection(connection)
    store = ZooKeeperStore(raised, await find_cluster(raised, create=True))
    async with serving(store):
        yield _Member(FakeBookie(store), connection)


@asynccontextmanager
async def _cluster() -> AsyncIterator[tuple[list[_Member], BookieStore]]:
    """Two bookies, of which the first has the client's connection."""
    ensemble = MemoryEnsemble()
    async with (
        _member(ensemble) as one,
        _member(ensemble) as other,
        trio.open_nursery() as nursery,
    ):
        network = Network(nursery, one.bookie, other.bookie)
        opening = BookieStore.open(network.addresses, open_stream=network.open_stream)
        async with opening as store:
            await store.put("first", b"")
            yield sorted([one, other], key=lambda member: not member.bookie.requests), store
        nursery.cancel_scope.cancel()


async def test_a_change_goes_on_to_a_bookie_that_has_zookeeper(
    autojump_clock: MockClock,
) -> None:
    """The first one says soon enough that it did not send it."""
    async with _cluster() as ((asked, other), store):
        asked.connection.drop()
        await store.put("second", b"")
        assert trio.current_time() < SEND_S + 1
        assert other.bookie.requests
        assert await store.get("second") is not None


async def test_while_no_bookie_has_zookeeper_no_change_is_in_doubt(
    autojump_clock: MockClock,
) -> None:
    """It is not sent a last time where it would be cut off before the bookie gives it up."""
    async with _cluster() as (members, store):
        for member in members:
            member.connection.drop()
        with pytest.raises(MetadataUnavailable) as failed:
            await store.put("second", b"")
        assert not failed.value.outcome_unknown
        assert trio.current_time() <= TIMEOUT_S


async def test_a_change_that_waits_for_zookeeper_is_made_when_it_comes_back(
    autojump_clock: MockClock,
) -> None:
    async with _cluster() as (members, store):
        async with trio.open_nursery() as nursery:
            for member in members:
                member.connection.drop()
            nursery.start_soon(store.put, "second", b"")
            await trio.sleep(SEND_S * 1.5)
            for member in members:
                member.connection.connect()
        assert await store.get("second") is not None
        assert trio.current_time() < TIMEOUT_S


async def test_a_change_waits_for_a_zookeeper_that_is_only_slow(
    autojump_clock: MockClock,
) -> None:
    """It would be no quicker elsewhere."""
    async with _cluster() as ((asked, other), store):
        other.bookie.reachable = False
        stat = asked.connection.stat

        async def slowly(*arguments: object, **options: object) -> object:
            await trio.sleep(SEND_S + 1)
            return await stat(*arguments, **options)  # type: ignore[arg-type]

        asked.connection.stat = slowly  # type: ignore[assignment]
        await store.put("second", b"")
        assert len([each for each in asked.bookie.requests if isinstance(each, Put)]) == 2


async def test_a_failure_names_what_bookies_lack_though_the_last_one_had_no_time_to_answer(
    autojump_clock: MockClock,
) -> None:
    """Within a limit of its own, too."""
    async with _cluster() as (members, store):
        for member in members:
            member.connection.drop()
        with pytest.raises(MetadataUnavailable, match=r"a bookie said: .*ZooKeeper"):
            await store.get("first")
        late = pytest.raises(
            errors.MetadataUnavailable, match=r"in 9 s; a bookie said: .*ZooKeeper"
        )
        with late, translated(9):
            await store.get("first")


async def test_what_a_bookie_said_of_a_call_that_was_answered_later_is_not_named(
    autojump_clock: MockClock,
) -> None:
    async with _cluster() as ((asked, other), store):
        asked.connection.drop()
        with pytest.raises(errors.MetadataUnavailable) as caught, translated(9):
            await store.put("second", b"")
            asked.bookie.mute = other.bookie.mute = True
            await store.get("first")
        assert "a bookie said" not in str(caught.value)
