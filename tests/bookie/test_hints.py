"""What a bookie keeps for connections that watch metadata."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from memory_store import MemoryStore
from rig import Peer, settings
from running import ask, connected, running

import bookie.hints
from bookie.errors import CallRefused
from bookie.hints import HintBox, Hints
from metadata import calls
from metadata.calls import AwaitHints, WatchPrefixes
from metadata.errors import MetadataBroken, MetadataUnavailable
from metadata.store import Changes
from metadata.urls import open_store


class Counting(MemoryStore):
    """Counts questions for changes."""

    asked = 0

    async def changes(
        self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> Changes:
        self.asked += 1
        return await super().changes(prefix, since=since, wait_s=wait_s)


async def test_one_follower_of_the_store_serves_all_connections(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    store = Counting()
    hints = Hints(store)
    nursery.start_soon(hints.run)
    boxes = [HintBox(hints) for _ in range(50)]
    await trio.sleep(100)
    assert store.asked == 0
    for number, box in enumerate(boxes):
        await box.change([f"a/{number}", "b/"], [], None)
    await store.put("a/7", b"")
    await store.put("b/x", b"")
    await trio.sleep(1)
    assert store.asked < 10
    for number, box in enumerate(boxes):
        assert await box.wait(0)
        assert box.take().keys == (["b/x", "a/7"] if number == 7 else ["b/x"])
    for box in boxes:
        box.close()
    asked = store.asked
    await trio.sleep(100)
    assert store.asked == asked
    assert hints.count == 0


async def test_hints_that_are_not_taken_cost_bounded_memory(nursery: trio.Nursery) -> None:
    """Beyond so many keys, the prefixes stand for them, and an answer has so many items."""
    store = MemoryStore()
    hints = Hints(store)
    nursery.start_soon(hints.run)
    box = HintBox(hints)
    prefixes = [f"{number:04}/" for number in range(3000)]
    await box.change([*prefixes, "rest/"], [], None)
    for prefix in prefixes:
        for number in range(2):
            box.notify(prefix, f"{prefix}{number}")
    told: set[str] = set()
    sizes = []
    while keys := box.take().keys:
        sizes.append(len(keys))
        told.update(keys)
    assert max(sizes) == 1000
    assert sum(sizes) <= 4000
    assert all(prefix in told or {f"{prefix}0", f"{prefix}1"} <= told for prefix in prefixes)


async def test_the_revision_stays_back_while_hints_are_left(nursery: trio.Nursery) -> None:
    """A client that goes on at another bookie from there misses none of them."""
    store = MemoryStore()
    hints = Hints(store)
    nursery.start_soon(hints.run)
    box = HintBox(hints)
    start = await box.change(["a/"], [], None)
    for number in range(5):
        await store.put(f"a/{number}", b"")
    await trio.testing.wait_all_tasks_blocked()
    assert box.take(3) == Changes(start.revision, ["a/0", "a/1", "a/2"], cut_off=False)
    assert box.take(3) == Changes(start.revision + 5, ["a/3", "a/4"], cut_off=False)


async def test_a_connection_that_comes_with_a_revision_gets_what_it_missed() -> None:
    store = MemoryStore()
    await store.put("a/before", b"")
    revision = (await store.changes("")).revision
    for number in range(2500):
        await store.put(f"{'a' if number % 100 == 0 else 'elsewhere'}/{number}", b"")
    box = HintBox(Hints(store))
    await box.change(["b/", "a/"], [], revision)
    assert box.take().keys == [f"a/{number}" for number in range(0, 2500, 100)]


@pytest.mark.parametrize("revision", [1, 10**9])
async def test_one_whose_revision_is_unknown_here_is_told_to_look_everywhere(
    revision: int,
) -> None:
    store = MemoryStore()
    for number in range(12_000):
        await store.put(f"elsewhere/{number}", b"")
    box = HintBox(Hints(store))
    await box.change(["a/", "b/"], [], revision)
    assert box.take().everything


async def test_prefixes_have_a_bound_in_number_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookie.hints, "PREFIXES_MAX", 10)
    monkeypatch.setattr(bookie.hints, "PREFIXES_SIZE_MAX", 100)
    monkeypatch.setattr(bookie.hints, "ALL_PREFIXES_MAX", 15)
    hints = Hints(MemoryStore())
    box, other = HintBox(hints), HintBox(hints)
    await box.change([f"{number}" for number in range(10)], [], None)
    with pytest.raises(MetadataBroken, match="at most 10 prefixes"):
        await box.change(["one more"], [], None)
    await box.change(["one more"], ["0", "0", "unknown"], None)
    with pytest.raises(MetadataBroken, match="100 bytes"):
        await other.change(["x" * 101], [], None)
    with pytest.raises(CallRefused, match="limit"):
        await other.change([f"{number}" for number in range(6)], [], None)
    await other.change([f"{number}" for number in range(5)], [], None)
    box.close()
    assert hints.count == 5
    with pytest.raises(MetadataBroken):
        await other.change(["bad\0"], [], None)


async def test_a_second_wait_ends_the_first(nursery: trio.Nursery) -> None:
    box = HintBox(Hints(MemoryStore()))
    ended: list[bool] = []

    async def wait() -> None:
        ended.append(await box.wait(60))

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    assert ended == [False]
    box.notify("a/", "a/1")
    await trio.testing.wait_all_tasks_blocked()
    assert ended == [False, True]


async def test_a_bookie_answers_a_watch_over_the_wire(tmp_path: Path) -> None:
    config = settings(tmp_path)
    async with (
        open_store(config.metadata) as store,
        running(config, store) as ready,
        connected(ready.address) as peer,
    ):
        assert (await ask_changes(peer, WatchPrefixes(["a/"]))).keys == []
        await store.put("a/1", b"")
        with trio.fail_after(20):
            assert (await ask_changes(peer, AwaitHints(60_000))).keys == ["a/1"]
        assert (await ask_changes(peer, AwaitHints(1))).keys == []
        refused = await ask(peer, WatchPrefixes(["bad\0"]))
        assert isinstance(refused, calls.Failure)
        assert refused.kind == "MetadataBroken"


async def ask_changes(peer: Peer, request: calls.HintRequest) -> Changes:
    reply = await ask(peer, request)
    assert isinstance(reply, Changes)
    return reply


async def test_each_answer_says_whether_the_bookie_is_cut_off_from_its_store() -> None:
    store = MemoryStore()
    box = HintBox(Hints(store))
    assert not (await box.change(["a/"], [], None)).cut_off
    assert not box.take().cut_off
    store.is_cut_off = True
    assert (await box.change(["b/"], [], None)).cut_off
    assert box.take().cut_off
    for prefix in ("a/", "b/"):
        box.notify(prefix, prefix)
    assert box.take().everything and box.take().cut_off
    store.is_cut_off = False
    assert not box.take().cut_off


async def test_a_connection_that_missed_much_may_go_on_elsewhere_before_it_took_all() -> None:
    store = MemoryStore()
    revision = await store.put("elsewhere", b"")
    for number in range(5):
        await store.put(f"a/{number}", b"")
    box = HintBox(Hints(store))
    await box.change(["a/"], [], revision)
    assert box.take(3) == Changes(revision, ["a/0", "a/1", "a/2"], cut_off=False)
    assert box.take(3) == Changes(revision + 5, ["a/3", "a/4"], cut_off=False)


async def test_a_change_waits_for_the_one_before_it_which_may_fail(nursery: trio.Nursery) -> None:
    """A client that gave up the first one sends the second one about the same prefix."""

    class Once(MemoryStore):
        gate: trio.Event | None = trio.Event()

        async def changes(
            self, prefix: str, *, since: int | None = None, wait_s: float = 0.0
        ) -> Changes:
            gate, self.gate = self.gate, None
            if gate is not None:
                await gate.wait()
                raise MetadataUnavailable("away")
            return await super().changes(prefix, since=since, wait_s=wait_s)

    store = Once()
    hints = Hints(store)
    box = HintBox(hints)
    gate = store.gate
    assert gate is not None

    async def first() -> None:
        with pytest.raises(MetadataUnavailable):
            await box.change(["a/"], [], None)

    async with trio.open_nursery() as changing:
        changing.start_soon(first)
        await trio.testing.wait_all_tasks_blocked()
        changing.start_soon(box.change, ["a/"], [], None)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
    nursery.start_soon(hints.run)
    await store.put("a/1", b"")
    assert await box.wait(1)
    assert box.take().keys == ["a/1"]
    box.close()
    assert hints.count == 0
