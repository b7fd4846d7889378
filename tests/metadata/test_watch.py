from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import pytest
import trio
import trio.testing

from metadata import watch
from metadata.errors import MetadataBroken, MetadataError, MetadataUnavailable
from metadata.store import Changes
from metadata.watch import PollSource, StoreWatch, Watches


class Script:
    """A store that answers questions for changes from a list."""

    def __init__(self, *answers: Changes | MetadataError) -> None:
        self.answers = deque(answers)
        self.asked: list[int | None] = []
        self.is_cut_off = False

    async def changes(
        self, _prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> Changes:
        await trio.sleep(wait_s if len(self.answers) == 0 else 0)
        self.asked.append(since)
        answer = self.answers.popleft() if self.answers else Changes(since or 0, [])
        if isinstance(answer, MetadataError):
            raise answer
        return answer


def watching(store: Script, prefix: str) -> AbstractAsyncContextManager[StoreWatch]:
    """A watch of the store alone."""
    return Watches(PollSource(store, prefix)).watch(prefix)


async def test_hints_come_in_order_and_each_question_goes_on_where_the_last_ended() -> None:
    store = Script(Changes(3, []), Changes(5, ["a", "b"]), Changes(6, []), Changes(7, ["c"]))
    async with watching(store, "") as hints:
        assert [await hints.receive() for _ in range(3)] == ["a", "b", "c"]
    assert store.asked == [None, 3, 5, 6]


async def test_after_an_outage_the_prefix_itself_is_the_hint(
    autojump_clock: trio.testing.MockClock,
) -> None:
    outage = [MetadataUnavailable("down")] * 20
    store = Script(Changes(3, []), *outage, Changes(9, []), Changes(10, ["w/a"]))
    async with watching(store, "w/") as hints:
        started = trio.current_time()
        assert await hints.receive() == "w/"
        assert 10 < trio.current_time() - started < 25
        assert await hints.receive() == "w/a"
    assert store.asked[-1] == 9


async def test_an_outage_on_entering_is_the_callers_to_bear() -> None:
    with pytest.raises(MetadataUnavailable):
        async with watching(Script(MetadataUnavailable("down")), ""):
            pass


async def test_damage_ends_the_watch() -> None:
    store = Script(Changes(3, []), MetadataBroken("damaged"))
    async with watching(store, "") as hints:
        with pytest.raises(MetadataBroken):
            await hints.receive()


async def test_a_watch_that_was_left_is_closed() -> None:
    store = Script(Changes(3, []), Changes(5, ["a", "b"]))
    async with watching(store, "") as hints:
        assert await hints.receive() == "a"
    with pytest.raises(trio.ClosedResourceError):
        await hints.receive()


# --- many watches of one store ---------------------------------------------------------------


class Noted:
    """A listener that keeps its hints."""

    def __init__(self) -> None:
        self.hints: list[str] = []

    def notify(self, _prefix: str, hint: str) -> None:
        self.hints.append(hint)


class Source:
    """Hints that a test sends."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.send, self._receive = trio.open_memory_channel[Changes](100)
        self.failure: MetadataError | None = None
        self.gate: trio.Event | None = None
        self.questions = 0
        self.waiting = 0
        self.is_cut_off = False

    async def begin(self, prefixes: Sequence[str]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        self.begun += prefixes

    def end(self, prefix: str) -> None:
        self.ended.append(prefix)

    def rest(self) -> None:
        pass

    async def next(self) -> Changes:
        self.questions += 1
        self.waiting += 1
        try:
            return await self._receive.receive()
        finally:
            self.waiting -= 1


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
async def watches(source: Source, nursery: trio.Nursery) -> Watches:
    """Watches of the source, and the task that asks for them."""
    watches = Watches(source)
    nursery.start_soon(watches.run)
    return watches


async def test_listeners_get_a_first_hint_and_then_those_of_their_prefix(
    source: Source, watches: Watches
) -> None:
    one, other = Noted(), Noted()
    watches.subscribe("a/", one)
    watches.subscribe("a/1", other)
    await trio.testing.wait_all_tasks_blocked()
    assert (one.hints, other.hints) == (["a/"], ["a/1"])
    await source.send.send(Changes(1, ["a/1", "a/2", "b/1"]))
    await trio.testing.wait_all_tasks_blocked()
    assert (one.hints[1:], other.hints[1:]) == (["a/1", "a/2"], ["a/1"])
    await source.send.send(Changes(2, [], everything=True))
    await trio.testing.wait_all_tasks_blocked()
    assert (one.hints[3:], other.hints[2:]) == (["a/"], ["a/1"])
    watches.unsubscribe("a/", one)
    watches.unsubscribe("a/", one)
    assert source.ended == ["a/"]
    await source.send.send(Changes(3, ["a/1"]))
    await trio.testing.wait_all_tasks_blocked()
    assert (one.hints[4:], other.hints[3:]) == ([], ["a/1"])


async def test_a_thousand_subscriptions_are_no_task_and_one_question(
    source: Source, watches: Watches, nursery: trio.Nursery
) -> None:
    await trio.testing.wait_all_tasks_blocked()
    before = len(nursery.child_tasks)
    for number in range(1000):
        watches.subscribe(f"a/{number}", Noted())
    await trio.testing.wait_all_tasks_blocked()
    assert len(nursery.child_tasks) == before
    assert len(source.begun) == 1000
    assert source.waiting == 1
    assert source.questions < 5


async def test_of_all_that_receive_one_asks_and_another_goes_on_when_it_leaves(
    nursery: trio.Nursery,
) -> None:
    source = Source()
    watches = Watches(source)
    heard: list[str] = []

    async def listen(prefix: str, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            async with watches.watch(prefix) as hints:
                task_status.started(scope)
                heard.append(await hints.receive())

    scopes = [await nursery.start(listen, f"{number}") for number in range(5)]
    for leaver in (0, 1):
        scopes[leaver].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert source.waiting == 1
    for number in (2, 3, 4):
        await source.send.send(Changes(number, [f"{number}"]))
        await trio.testing.wait_all_tasks_blocked()
    assert heard == ["2", "3", "4"]
    assert len(watches) == 0


async def test_a_prefix_begun_by_another_gives_its_listener_the_first_hint_too(
    nursery: trio.Nursery,
) -> None:
    source = Source()
    source.gate = trio.Event()
    watches = Watches(source)
    asker, other = Noted(), Noted()
    nursery.start_soon(watches.begin, ["a/"], asker)
    await trio.testing.wait_all_tasks_blocked()
    watches.subscribe("a/", other)
    source.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert (asker.hints, other.hints) == ([], ["a/"])


async def test_a_prefix_that_the_source_refuses_stops_no_other_hint(
    source: Source, watches: Watches, autojump_clock: trio.testing.MockClock
) -> None:
    one, other = Noted(), Noted()
    watches.subscribe("a/", one)
    await trio.sleep(1)
    source.failure = MetadataUnavailable("too many")
    watches.subscribe("b/", other)
    await source.send.send(Changes(1, ["a/1"]))
    await trio.sleep(1)
    assert one.hints == ["a/", "a/1"]
    assert other.hints == []
    source.failure = None
    await trio.sleep(2)
    assert other.hints == ["b/"]


async def test_a_watch_that_cannot_begin_leaves_nothing_behind() -> None:
    source = Source()
    source.failure = MetadataUnavailable("down")
    watches = Watches(source)
    with pytest.raises(MetadataUnavailable):
        await watches.begin(["a/", "b/"], Noted())
    assert len(watches) == 0


async def test_too_many_prefixes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "WATCHED_MAX", 2)
    watches = Watches(Source())
    await watches.begin(["a", "b"], Noted())
    watches.subscribe("a", Noted())
    with pytest.raises(MetadataBroken, match="2 prefixes"):
        watches.subscribe("c", Noted())
    assert len(watches) == 2


async def test_hints_that_are_not_received_become_one_for_everything(
    source: Source, watches: Watches
) -> None:
    async with watches.watch("a/") as hints:
        await source.send.send(Changes(1, [f"a/{number}" for number in range(1500)]))
        await trio.testing.wait_all_tasks_blocked()
        assert await hints.receive() == "a/"
        with trio.move_on_after(0.01) as waited:
            await hints.receive()
        assert waited.cancelled_caught


async def test_a_listener_that_comes_while_nothing_is_asked_wakes_the_task_that_leads(
    source: Source, watches: Watches
) -> None:
    await trio.testing.wait_all_tasks_blocked()
    assert source.waiting == 0
    listener = Noted()
    await watches.begin(["a"], listener)
    await trio.testing.wait_all_tasks_blocked()
    assert source.waiting == 1
    watches.unsubscribe("a", listener)
    await trio.testing.wait_all_tasks_blocked()
    assert source.waiting == 0


async def test_a_watch_says_whether_it_tells_of_changes_at_present(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """Not before the source has the prefix, while the store is away or cut off, or afterwards."""
    store = Script(Changes(3, []), Changes(4, []), MetadataUnavailable("down"), Changes(5, []))
    watches, listener = Watches(PollSource(store)), Noted()
    assert not watches.tells("a/")
    watches.subscribe("a/", listener)
    assert not watches.tells("a/")
    nursery.start_soon(watches.run)
    while store.answers:
        await trio.sleep(0.01)
        is_down = len(store.asked) == 3
        assert watches.tells("a/") is not is_down
        assert watches.is_cut_off is is_down
        assert not watches.tells("b/")
    store.is_cut_off = True
    assert not watches.tells("a/")
    store.is_cut_off = False
    assert watches.tells("a/")
    watches.unsubscribe("a/", listener)
    assert not watches.tells("a/")


async def test_a_prefix_that_was_refused_is_not_told_of(
    source: Source, watches: Watches, autojump_clock: trio.testing.MockClock
) -> None:
    source.failure = MetadataUnavailable("too many")
    watches.subscribe("a/", Noted())
    await trio.sleep(1)
    assert not watches.tells("a/")
    source.failure = None
    await trio.sleep(2)
    assert watches.tells("a/")


async def test_a_watch_of_a_damaged_store_tells_nothing_until_it_answers_again(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    store = Script(Changes(3, []), MetadataBroken("damaged"), Changes(5, []))
    watches = Watches(PollSource(store))
    await watches.begin(["a/"], Noted())
    nursery.start_soon(watches.run)
    await trio.sleep(0.1)
    assert not watches.tells("a/")
    await trio.sleep(2)
    assert watches.tells("a/")
