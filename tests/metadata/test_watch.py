from __future__ import annotations

from collections import deque

import pytest
import trio
import trio.testing

from metadata.errors import MetadataBroken, MetadataError, MetadataUnavailable
from metadata.store import Changes
from metadata.watch import watching


class Script:
    """A store that answers questions for changes from a list."""

    def __init__(self, *answers: Changes | MetadataError) -> None:
        self.answers = deque(answers)
        self.asked: list[int | None] = []

    async def changes(
        self, _prefix: str, *, since: int | None = None, wait_s: float = 0.0
    ) -> Changes:
        await trio.sleep(wait_s if len(self.answers) == 0 else 0)
        self.asked.append(since)
        answer = self.answers.popleft() if self.answers else Changes(since or 0, [])
        if isinstance(answer, MetadataError):
            raise answer
        return answer


async def test_hints_come_in_order_and_each_question_goes_on_where_the_last_ended() -> None:
    store = Script(Changes(3, []), Changes(5, ["a", "b"]), Changes(6, []), Changes(7, ["c"]))
    async with watching(store, "") as hints:  # type: ignore[arg-type]
        assert [await hints.receive() for _ in range(3)] == ["a", "b", "c"]
    assert store.asked == [None, 3, 5, 6]


async def test_after_an_outage_the_prefix_itself_is_the_hint(
    autojump_clock: trio.testing.MockClock,
) -> None:
    outage = [MetadataUnavailable("down")] * 20
    store = Script(Changes(3, []), *outage, Changes(9, []), Changes(10, ["w/a"]))
    async with watching(store, "w/") as hints:  # type: ignore[arg-type]
        started = trio.current_time()
        assert await hints.receive() == "w/"
        assert 10 < trio.current_time() - started < 25
        assert await hints.receive() == "w/a"
    assert store.asked[-1] == 9


async def test_an_outage_on_entering_is_the_callers_to_bear() -> None:
    with pytest.raises(MetadataUnavailable):
        async with watching(Script(MetadataUnavailable("down")), ""):  # type: ignore[arg-type]
            pass


async def test_damage_ends_the_watch() -> None:
    store = Script(Changes(3, []), MetadataBroken("damaged"))
    async with watching(store, "") as hints:  # type: ignore[arg-type]
        with pytest.raises(MetadataBroken):
            await hints.receive()


async def test_a_watch_that_was_left_is_closed() -> None:
    store = Script(Changes(3, []), Changes(5, ["a", "b"]))
    async with watching(store, "") as hints:  # type: ignore[arg-type]
        assert await hints.receive() == "a"
    with pytest.raises(trio.ClosedResourceError):
        await hints.receive()
