from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from memory_zookeeper import MemoryConnection, MemoryEnsemble
from zookeeper_rig import opened

from metadata.store import Changes, Put
from metadata.zookeeper import changelog, paths
from metadata.zookeeper.changelog import ChangeLog
from metadata.zookeeper.founding import find_cluster

Clock = trio.testing.MockClock


async def test_hints_of_one_store_reach_another(autojump_clock: Clock) -> None:
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one, opened(ensemble) as two, two.store.watch("w/") as hints:
        await one.store.transact([Put("w/a", b""), Put("x", b""), Put("w/b", b"")])
        with trio.fail_after(1):
            assert {await hints.receive(), await hints.receive()} == {"w/a", "w/b"}


async def test_a_store_that_lost_its_connection_catches_up(autojump_clock: Clock) -> None:
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one, opened(ensemble) as two:
        start = await two.store.changes("")
        two.connection.drop()
        await one.store.put("a", b"")
        await trio.sleep(5)
        two.connection.connect()
        found = await two.store.changes("", since=start.revision, wait_s=5)
        assert (found.keys, found.everything) == (["a"], False)


async def test_a_client_that_comes_from_another_bookie_misses_nothing(
    autojump_clock: Clock,
) -> None:
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one, opened(ensemble) as two:
        await two.store.changes("")
        await one.store.put("a", b"")
        seen = await one.store.changes("")
        found = await two.store.changes("", since=seen.revision)
        assert (found.keys, found.everything) == ([], False)


async def test_the_log_is_trimmed_and_who_is_far_behind_is_told_that_anything_changed(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "ENTRIES_MAX", 300)
    monkeypatch.setattr(changelog, "BEHIND_MAX", 100)
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one, opened(ensemble) as two:
        start = await two.store.changes("")
        two.connection.drop()
        for number in range(1100):
            await one.store.put("a", b"%d" % number)
        await trio.sleep(1)
        entries = [path for path in ensemble.nodes if path.startswith(f"{paths.LOG}/0/")]
        assert len(entries) <= 300 + 2 * changelog.TRIM_EVERY
        two.connection.connect()
        assert (await two.store.changes("", since=start.revision)).everything
        now = await two.store.changes("")
        await one.store.put("b", b"")
        found = await two.store.changes("", since=now.revision, wait_s=5)
        assert (found.keys, found.everything) == (["b"], False)


async def test_the_log_goes_on_in_a_new_part_before_its_numbers_run_out(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "PART_ENTRIES_MAX", 20)
    monkeypatch.setattr(ChangeLog.__init__, "__kwdefaults__", {"part_entries_max": 20})
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one, opened(ensemble) as two:
        revision = (await two.store.changes("")).revision
        told: list[str] = []
        for number in range(100):
            await (one if number % 2 else two).store.put(f"k{number}", b"")
            await trio.sleep(0.1)
            found = await two.store.changes("", since=revision)
            assert not found.everything
            assert found.revision > revision
            told += found.keys
            revision = found.revision
        assert told == [f"k{number}" for number in range(100)]
        head = ensemble.stat(paths.LOG)
        assert head is not None and head.version >= 4
        parts = ensemble.nodes[paths.LOG].children
        assert len(parts) <= 4 < head.version + 1


async def test_an_idle_store_asks_nothing(autojump_clock: Clock) -> None:
    ensemble = MemoryEnsemble()
    connection = MemoryConnection(ensemble)
    await find_cluster(connection, create=True)
    log = ChangeLog(connection)
    reads: list[int] = []
    connection.after_read = lambda read: reads.append(len(read))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        await trio.sleep(10)
        before = len(reads)
        await trio.sleep(1000)
        assert len(reads) == before
        nursery.cancel_scope.cancel()


async def test_an_entry_wakes_the_questions_that_it_concerns_and_no_other(
    autojump_clock: Clock,
) -> None:
    ensemble = MemoryEnsemble()
    async with opened(ensemble) as one, trio.open_nursery() as nursery:
        start = await one.store.changes("")
        found: list[Changes] = []

        async def ask(number: int) -> None:
            found.append(await one.store.changes(f"w/{number}/", since=start.revision, wait_s=60))

        for number in range(300):
            nursery.start_soon(ask, number)
        await trio.sleep(1)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        for _ in range(10):
            await one.store.put("elsewhere", b"")
            await trio.sleep(1)
        trio.lowlevel.remove_instrument(steps)
        assert found == []
        assert steps.count < 1500  # 300 tasks that wake make more than twice as many
        await one.store.put("w/7/a", b"")
        await trio.sleep(1)
        assert [each.keys for each in found] == [["w/7/a"]]
        await trio.sleep(60)
        assert len(found) == 300
        newest = await one.store.changes("")
        assert {each.revision for each in found[1:]} == {newest.revision}


class Steps(trio.abc.Instrument):
    """Counts how often tasks run."""

    count = 0

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self.count += 1


async def test_a_store_says_that_it_is_cut_off_until_it_has_caught_up(
    autojump_clock: Clock,
) -> None:
    ensemble = MemoryEnsemble()
    connection = MemoryConnection(ensemble)
    await find_cluster(connection, create=True)
    log = ChangeLog(connection)
    said = [log.is_cut_off]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        steps: list[Callable[[], None]] = [lambda: None, connection.drop, connection.connect]
        for step in steps:
            step()
            said.append(log.is_cut_off)
            await trio.sleep(5)
            said.append(log.is_cut_off)
        nursery.cancel_scope.cancel()
    assert said == [True, True, False, True, True, True, False]
