"""What a lost member had, and what was removed before anybody was done with it."""

from __future__ import annotations

import trio
from group_shares import share_of
from trio.testing import MockClock

from ledger_client import Gap, MessageId
from ledger_client.groups.losses import GATHER_S, Losses
from ledger_client.groups.share import Share
from ledger_client.topics.positions import Place
from metadata.groups.shares import ShareRecord
from metadata.topics import RemovedLedgers

TOPIC = "shop/orders"


def gap(first: int | None = None, *, topic: str = TOPIC, partition: int = 0, lane: int = 0) -> Gap:
    """The gap that a reader met, which goes on in ledger *first*."""
    left = None if first is None else MessageId(first, 0, partition, 0)
    position = MessageId(1, 0, partition, 0)
    return Gap(topic, partition=partition, lane=lane, position=position, first=left, missing=99)


def entry(number: int, *, ledger: int = 0) -> Place:
    return Place(ledger, number, 0, 10 + ledger, 100 * ledger + number)


async def gathered(losses: Losses) -> list[Gap]:
    """Return what there is to take, after a while."""
    await trio.sleep(GATHER_S)
    found: list[Gap] = []
    while (told := losses.take()) is not None:
        found.append(told)
    assert not losses.holds
    return found


async def test_an_entry_of_which_several_shares_had_messages_is_counted_once(
    autojump_clock: MockClock,
) -> None:
    losses = Losses(lambda: None)
    losses.note(gap(), [entry(3), entry(1)])
    losses.note(gap(), [entry(1), entry(2)])
    (told,) = await gathered(losses)
    assert told.missing == 3
    assert told.position == MessageId(10, 1, 0, 0)


async def test_a_gap_ends_where_that_of_its_last_entry_does(autojump_clock: MockClock) -> None:
    """Shares are taken over in any order."""
    losses = Losses(lambda: None)
    losses.note(gap(5), [entry(1)])
    losses.note(gap(20), [entry(0, ledger=2)])
    losses.note(gap(12), [entry(0, ledger=1)])
    (told,) = await gathered(losses)
    assert told.first == MessageId(20, 0, 0, 0)
    assert told.position == MessageId(10, 1, 0, 0)
    assert told.missing == 3


async def test_each_lane_has_a_gap_of_its_own(autojump_clock: MockClock) -> None:
    losses = Losses(lambda: None)
    places = [
        (topic, partition, lane)
        for topic in (TOPIC, "shop/other")
        for partition in (0, 1)
        for lane in (0, 1)
    ]
    for topic, partition, lane in places:
        losses.note(gap(topic=topic, partition=partition, lane=lane), [entry(1)])
    told = await gathered(losses)
    assert [(each.topic, each.partition, each.lane) for each in told] == places
    assert {each.missing for each in told} == {1}
    assert [each.position.partition for each in told] == [each[1] for each in places]


async def test_losses_are_told_once_and_a_while_after_the_first_one(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    ready: list[float] = []
    losses = Losses(lambda: ready.append(trio.current_time()))
    nursery.start_soon(losses.run)
    losses.note(gap(), [])
    assert losses.take(is_over=True) is None
    for turn in range(3):
        await trio.sleep(1)
        losses.note(gap(), [entry(turn)])
        await trio.sleep(GATHER_S / 2)
        losses.note(gap(), [entry(turn + 10)])
        assert losses.holds
        assert losses.take() is None
        await trio.sleep(GATHER_S / 2)
        (told,) = await gathered(losses)
        assert told.missing == 2
    assert len(ready) == 3
    assert ready[0] == 1 + GATHER_S


async def test_messages_do_not_wait_all_the_time_while_more_and_more_is_lost(
    autojump_clock: MockClock,
) -> None:
    losses, held = Losses(lambda: None), list[bool]()
    for number in range(100):
        losses.note(gap(), [entry(number)])
        held.append(losses.holds)
        await trio.sleep(GATHER_S / 10)
        losses.take()
    assert held.count(False) >= 40
    assert held.count(True) >= 10


async def test_what_was_not_gathered_for_long_is_told_at_the_end(autojump_clock: MockClock) -> None:
    losses = Losses(lambda: None)
    losses.note(gap(), [entry(1)])
    assert losses.take() is None
    assert losses.take(is_over=True) is not None
    assert losses.take(is_over=True) is None


def share(counts: list[int], done: int = 0) -> Share:
    """A share of entries that are all gone."""
    record = ShareRecord(
        topic=1,
        partition=0,
        lane=0,
        number=4,
        ledger_id=9,
        entry=2,
        version=50,
        counts=counts,
        done=done.to_bytes(1, "little"),
    )
    found = Share(record, "s", is_blind=False)
    found.messages = [None] * sum(counts)
    return found


def test_only_entries_with_messages_that_are_not_done_are_lost() -> None:
    """Of five entries, one has no message, one is done, and one was read."""
    mine = share([2, 0, 1, 2, 3], done=0b100)
    mine.messages[5:] = share_of("aaa").messages
    assert mine.lost([]) == [Place(4, 2, 0, 9, 50), Place(4, 5, 0, 9, 53)]


def test_what_was_deleted_on_purpose_is_not_lost() -> None:
    removed = RemovedLedgers(0, 1, 51, 53, 1, 1)
    assert [each.version for each in share([1] * 5).lost([removed])] == [50, 53, 54]
