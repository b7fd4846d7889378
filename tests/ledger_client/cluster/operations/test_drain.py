from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import trio
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.cluster.operations.drain import (
    RECOUNT_S,
    DrainProgress,
    Remaining,
    begin,
    cancel,
    check_room,
    drain,
    remaining,
)
from ledger_client.errors import DrainRefused
from metadata.errors import MetadataUnavailable
from metadata.records import (
    DRAINING,
    LEDGERS,
    CookieRecord,
    DamagedRun,
    Fragment,
    UnderReplicated,
    cookie_key,
    draining_key,
    encode_record,
    ledger_key,
    underreplicated_key,
)
from metadata.store import Page, Versioned


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """Four bookies with cookies, which hear at once that they drain."""
    async with memory_cluster(4) as running:
        for name in running.bookies:
            cookie = CookieRecord(name, "i", "/journal", "/ledgers", "c")
            await running.store.put(cookie_key(name), encode_record(cookie))

        def hear(key: str, value: Versioned | None) -> None:
            if key.startswith(DRAINING) and key.removeprefix(DRAINING) in running.store.bookies:
                say_draining(running, key.removeprefix(DRAINING), value is not None)

        running.store.on_change = hear
        yield running


def say_draining(cluster: MemoryCluster, name: str, is_on: bool) -> None:
    """Let a bookie's registration say whether it drains."""
    known = cluster.store.bookies[name]
    cluster.store.bookies[name] = msgspec.structs.replace(known, draining=is_on)


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[Client]:
    async with cluster.client() as connected:
        yield connected


async def write(client: Client, cluster: MemoryCluster, *bookies: str) -> int:
    """Write a ledger of three entries to just these bookies."""
    away = {
        name: cluster.store.bookies.pop(name) for name in cluster.bookies if name not in bookies
    }
    async with client.ledgers.create(len(bookies), len(bookies), len(bookies)) as ledger:
        await ledger.append_many([b"one", b"two", b"three"])
    cluster.store.bookies.update(away)
    return ledger.id


def move(cluster: MemoryCluster, ledger_id: int, source: str, target: str) -> None:
    """Do what a worker does: copy, then change the list."""
    held = cluster.bookies[source].ledgers[ledger_id]
    cluster.bookies[target].ledgers[ledger_id] = held
    rename(cluster, ledger_id, source, target)


def rename(cluster: MemoryCluster, ledger_id: int, source: str, target: str) -> None:
    record = cluster.record(ledger_id)
    bookies = [target if name == source else name for name in record.fragments[0].bookies]
    moved = msgspec.structs.replace(record, fragments=[Fragment(0, bookies)])
    cluster.store.change(ledger_key(ledger_id), encode_record(moved))


def is_known(cluster: MemoryCluster, name: str) -> bool:
    return cookie_key(name) in cluster.store.values


async def test_a_bookie_is_forgotten_once_its_copies_are_elsewhere(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ledger_ids = [await write(client, cluster, "b1", "b2", "b3") for _ in range(2)]
    told: list[DrainProgress] = []
    async with trio.open_nursery() as nursery:

        async def work() -> None:
            for ledger_id in ledger_ids:
                await trio.sleep(3)
                assert is_known(cluster, "b1")
                assert draining_key("b1") in cluster.store.values
                move(cluster, ledger_id, "b1", "b4")

        nursery.start_soon(work)
        await drain(client._context.ledgers, cluster.store, "b1", on_progress=told.append)
    assert not is_known(cluster, "b1")
    assert draining_key("b1") not in cluster.store.values
    assert list(dict.fromkeys((each.step, each.ledgers, each.size) for each in told)) == [
        ("moving", 2, 22),
        ("moving", 1, 11),
        ("moving", 0, 0),
        ("checking", 0, 0),
    ]


async def test_a_dead_bookie_is_decommissioned_too(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client, cluster, "b1", "b2", "b3")
    move(cluster, ledger_id, "b1", "b4")
    cluster.kill("b1")
    del cluster.store.bookies["b1"]
    await drain(client._context.ledgers, cluster.store, "b1")
    assert not is_known(cluster, "b1")


async def test_it_is_refused_while_an_entry_has_too_few_copies_elsewhere(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client, cluster, "b1", "b2", "b3")
    move(cluster, ledger_id, "b1", "b4")
    del cluster.bookies["b4"].ledgers[ledger_id].entries[1]
    with pytest.raises(DrainRefused, match=f"ledger {ledger_id} lacks entries 1 to 1 on b4"):
        await drain(client._context.ledgers, cluster.store, "b1")
    assert is_known(cluster, "b1")
    assert draining_key("b1") in cluster.store.values


async def test_what_is_known_to_be_damaged_is_no_copy(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client, cluster, "b1", "b3", "b4")
    move(cluster, ledger_id, "b1", "b2")
    mark = UnderReplicated(ledger_id, "damaged", 1, damaged=[DamagedRun("b3", 0, 1)])
    await cluster.store.put(underreplicated_key(ledger_id), encode_record(mark))
    with pytest.raises(DrainRefused, match="entries 0 to 1 on b3, and b1 has a copy"):
        await drain(client._context.ledgers, cluster.store, "b1")


async def test_a_bookie_that_does_not_answer_proves_nothing(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await write(client, cluster, "b1", "b3", "b4")
    move(cluster, ledger_id, "b1", "b2")
    cluster.kill("b3")
    with pytest.raises(DrainRefused, match=r"an answer from b3 \(.*b3 is down\), and b1 has"):
        await drain(client._context.ledgers, cluster.store, "b1")
    cluster.kill("b1")
    with pytest.raises(DrainRefused, match=r"b1 does not say what it has of it \(.*b1 is down"):
        await drain(client._context.ledgers, cluster.store, "b1")
    assert is_known(cluster, "b1")


async def test_a_bookie_that_has_nothing_goes_whatever_others_lack(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await write(client, cluster, "b2", "b3", "b4")
    cluster.kill("b3")
    await drain(client._context.ledgers, cluster.store, "b1")
    assert not is_known(cluster, "b1")


async def test_a_bookie_that_has_nothing_stays_until_it_takes_nothing_more(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """Clients choose it until its registration says that it drains, a few seconds later."""
    cluster.store.on_change = lambda _key, _value: None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain, client._context.ledgers, cluster.store, "b1")
        await trio.sleep(3)
        ledger_id = await write(client, cluster, "b1", "b2", "b3")
        say_draining(cluster, "b1", True)
        await trio.sleep(10)
        assert is_known(cluster, "b1")
        move(cluster, ledger_id, "b1", "b4")
    assert not is_known(cluster, "b1")


async def test_it_is_refused_at_once_when_an_ensemble_fits_nowhere(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    wide = await write(client, cluster, "b1", "b2", "b3", "b4")
    await write(client, cluster, "b2", "b3", "b4")
    with pytest.raises(DrainRefused, match=rf"3 take copies, and ledger {wide} needs 4") as refused:
        await drain(client._context.ledgers, cluster.store, "b1")
    assert refused.value.ledgers == [wide]
    assert draining_key("b1") not in cluster.store.values


async def test_it_waits_for_new_bookies_when_asked(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    wide = await write(client, cluster, "b1", "b2", "b3", "b4")
    async with trio.open_nursery() as nursery:

        async def arrive() -> None:
            await trio.sleep(100)
            cluster.add_bookie(5)
            move(cluster, wide, "b1", "b5")

        nursery.start_soon(arrive)
        await drain(client._context.ledgers, cluster.store, "b1", wait=True)
    assert trio.current_time() >= 100
    assert not is_known(cluster, "b1")


async def test_a_full_bookie_that_holds_the_ledger_counts(
    cluster: MemoryCluster, client: Client
) -> None:
    await write(client, cluster, "b1", "b2", "b3")
    full = cluster.store.bookies["b3"]
    cluster.store.bookies["b3"] = msgspec.structs.replace(full, read_only=True)
    await check_room(cluster.store, "b1")
    taken = cluster.store.bookies["b4"]
    cluster.store.bookies["b4"] = msgspec.structs.replace(taken, read_only=True)
    with pytest.raises(DrainRefused, match="take copies, and"):
        await check_room(cluster.store, "b1")


async def test_the_mark_is_taken_back(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    await write(client, cluster, "b1", "b2", "b3")
    with trio.move_on_after(5) as interrupted:
        await drain(client._context.ledgers, cluster.store, "b1")
    assert interrupted.cancelled_caught
    assert (await remaining(cluster.store, "b1")).ledgers == 1
    await cancel(cluster.store, "b1")
    assert draining_key("b1") not in cluster.store.values
    with pytest.raises(DrainRefused, match="is not being decommissioned"):
        await cancel(cluster.store, "b1")


async def test_an_unknown_bookie_is_no_bookie(cluster: MemoryCluster, client: Client) -> None:
    with pytest.raises(DrainRefused, match="no bookie b9 is known"):
        await drain(client._context.ledgers, cluster.store, "b9")
    with pytest.raises(DrainRefused, match="no bookie b9 is known"):
        await begin(cluster.store, "b9")


async def test_an_open_ledger_and_what_is_in_the_way_are_told(
    cluster: MemoryCluster, client: Client
) -> None:
    async with client.ledgers.create(4, 4, 4) as ledger:
        mark = UnderReplicated(ledger.id, "draining", 1, last_failure="no room")
        await cluster.store.put(underreplicated_key(ledger.id), encode_record(mark))
        left = await remaining(cluster.store, "b1")
    assert left == DrainProgress("moving", 1, 0, 1, f"ledger {ledger.id}: no room")


async def test_what_is_left_is_counted_from_what_changes(
    autojump_clock: MockClock,
    cluster: MemoryCluster,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All ledgers are listed once, however often it is asked."""
    ids = [await write(client, cluster, "b1", "b2") for _ in range(3)]
    left = Remaining(cluster.store, "b1")
    assert await left.count() == await remaining(cluster.store, "b1")
    listed: list[str] = []
    real = cluster.store.list

    async def noted(prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        listed.append(prefix)
        return await real(prefix, after=after, limit=limit)

    with monkeypatch.context() as patch:
        patch.setattr(cluster.store, "list", noted)
        move(cluster, ids[0], "b1", "b3")
        await client.ledgers.delete(ids[1])
        found = await left.count()
        assert LEDGERS not in listed
    assert found == await remaining(cluster.store, "b1")
    assert found.ledgers == 1
    cluster.store.available = False
    with pytest.raises(MetadataUnavailable):
        await left.count()
    cluster.store.available = True
    move(cluster, ids[2], "b1", "b3")
    assert (await left.count()).ledgers == 0


async def test_what_the_change_log_does_not_show_is_counted_a_minute_later(
    autojump_clock: MockClock, cluster: MemoryCluster, client: Client
) -> None:
    """BookKeeper's clients delete ledgers in ZooKeeper beside the store."""
    gone, _ = [await write(client, cluster, "b1", "b2") for _ in range(2)]
    left = Remaining(cluster.store, "b1")
    assert (await left.count()).ledgers == 2
    del cluster.store.values[ledger_key(gone)]
    await trio.sleep(RECOUNT_S - 1)
    assert (await left.count()).ledgers == 2
    await trio.sleep(2)
    assert (await left.count()).ledgers == 1
