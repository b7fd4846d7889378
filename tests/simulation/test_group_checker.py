"""The checker finds each broken promise to a group in a minimal history, and no other."""

from __future__ import annotations

import msgspec
import pytest
from checker import check
from event import Event
from group_events import (
    Acked,
    Assigned,
    BeatAnswered,
    Buried,
    Burying,
    Calm,
    DeadLetter,
    Delivered,
    Done,
    GroupSettled,
    LagSeen,
    LetGo,
    LetterRead,
    LettersRead,
    MemberLeft,
    MemberRemoved,
    MemberStored,
    Opened,
    ProgressStored,
    PutOff,
    Revoked,
    Spot,
    WentBack,
)
from group_facts import unit
from history import History
from message_events import Message, MessagesAcknowledged, MessagesSent, RowListed, TopicMade
from shared_group_checker import NO_KEY

from ledger_client.groups.options import TopicPartition
from ledger_client.message_id import MessageId
from metadata.topics import LaneLedger

ORDERS = "shop/orders"
GROUP = "billing"
LEDGER = 7
P0, P1, P2 = (TopicPartition(ORDERS, partition) for partition in range(3))


def message(entry: int, partition: int = 0) -> MessageId:
    return MessageId(LEDGER + partition, entry, partition)


def published(partition: int = 0, *, entries: int = 3) -> list[Event]:
    """A lane of one ledger, with an acknowledged message in each entry."""
    marks = [100 * partition + entry for entry in range(entries)]
    session = f"s{partition}"
    return [
        RowListed(
            topic=ORDERS,
            partition=partition,
            lane=0,
            number=0,
            version=1,
            row=LaneLedger(ledger_id=LEDGER + partition, state="open"),
        ),
        MessagesSent(
            topic=ORDERS,
            session=session,
            writer="w",
            producer="",
            messages=[Message(mark) for mark in marks],
        ),
        MessagesAcknowledged(
            topic=ORDERS,
            session=session,
            writer="w",
            marks=marks,
            ids=[message(entry, partition) for entry in range(entries)],
        ),
    ]


def row(
    member: str,
    *parts: TopicPartition,
    epoch: int = 1,
    version: int = 1,
    at: float = 0.0,
    revoked: tuple[TopicPartition, ...] = (),
) -> MemberStored:
    return MemberStored(
        group=GROUP,
        member=member,
        run="run",
        epoch=epoch,
        version=version,
        parts=list(parts),
        revoked=list(revoked),
        session_s=6.0,
        seen_at=at,
        at=at,
    )


def removed(member: str, *, version: int = 0, at: float = 0.0) -> MemberRemoved:
    return MemberRemoved(group=GROUP, member=member, version=version, seen_at=at, at=at)


def committed(
    member: str, entry: int, *, epoch: int = 1, version: int = 10, part: TopicPartition = P0
) -> ProgressStored:
    places: dict[int, Spot] = {0: (0, entry, 0)}
    return ProgressStored(
        group=GROUP, part=part, member=member, epoch=epoch, version=version, places=places
    )


def assigned(*parts: TopicPartition) -> Assigned:
    return Assigned(group=GROUP, session="a #1", parts=list(parts))


def revoked(*parts: TopicPartition) -> Revoked:
    return Revoked(group=GROUP, session="a #1", parts=list(parts))


def delivered(*entries: int, partition: int = 0, epoch: int = 1, at: float = 0.0) -> Delivered:
    return Delivered(
        group=GROUP,
        session="a #1",
        member="a",
        epoch=epoch,
        topic=ORDERS,
        lanes=[0] * len(entries),
        ids=[message(entry, partition) for entry in entries],
        at=at,
    )


def done(*entries: int) -> Done:
    return Done(group=GROUP, session="a #1", topic=ORDERS, ids=[message(each) for each in entries])


def beat(asked_at: float, at: float | None = None) -> BeatAnswered:
    answered_at = asked_at if at is None else at
    return BeatAnswered(group=GROUP, member="a", run="run", asked_at=asked_at, at=answered_at)


def lag(at: float, count: int = 1, *, member: str = "a") -> LagSeen:
    return LagSeen(group=GROUP, part=P0, member=member, count=count, at=at)


def calm(at: float, *, is_calm: bool) -> Calm:
    return Calm(group=GROUP, is_calm=is_calm, at=at)


def settled(*parts: TopicPartition) -> GroupSettled:
    return GroupSettled(group=GROUP, parts=list(parts))


def broken(*events: Event) -> list[int]:
    history = History([TopicMade(topic=ORDERS), *events])
    return [violation.invariant for violation in check(history)]


ALL_CAME = [*published(), row("a", P0), assigned(P0), delivered(0, 1, 2), done(0, 1, 2)]


def test_a_group_that_gets_everything_breaks_no_promise() -> None:
    assert not broken(
        *ALL_CAME, committed("a", 2), committed("a", 3, version=11), beat(1.0), settled(P0)
    )


@pytest.mark.parametrize(
    ("events", "number"),
    [
        ([row("a", P0), row("b", P0)], 11),
        ([row("a", P0), row("a", epoch=2), row("b", P0, epoch=2)], None),
        ([row("a", P0), row("b", P0, at=1.0), removed("a", at=1.0)], None),
        ([row("a", P0), row("b", P0, at=1.0), removed("a", at=2.0)], 11),
    ],
)
def test_a_partition_is_in_one_row(events: list[Event], number: int | None) -> None:
    assert broken(*events) == ([] if number is None else [number])


@pytest.mark.parametrize(
    ("events", "number"),
    [
        ([committed("a", 1), committed("b", 2, version=11, epoch=2)], None),
        ([committed("a", 1), committed("b", 2, version=11)], 11),
        ([row("a", P1), committed("a", 1)], 11),
        ([row("a", P0), row("a", P0, epoch=3, version=5), committed("a", 1)], 11),
        ([row("a", P0), row("a", P0, epoch=3, version=15), committed("a", 1)], None),
        ([row("a", P0), removed("a", version=5), committed("a", 1)], 11),
        ([row("a", P0), removed("a"), committed("a", 1)], None),
        ([row("a", P0), removed("a", version=10), committed("a", 1)], None),
    ],
)
def test_the_owner_alone_commits_in_the_epoch_of_its_row(
    events: list[Event], number: int | None
) -> None:
    """Versions order commits and rows, whoever saw them first."""
    assert broken(*events) == ([] if number is None else [number])


@pytest.mark.parametrize(
    ("rows", "number"),
    [
        ([row("a", P0, P2), row("b", P1)], None),
        ([row("a", P0, P1, P2), row("b")], 12),
        ([row("a", P0), row("b", P1)], 12),
        ([row("a", P0, P1, P2), row("b", at=1.0), removed("b", at=2.0)], None),
        ([], None),
    ],
)
def test_partitions_are_split_evenly_in_the_end(rows: list[Event], number: int | None) -> None:
    found = broken(*rows, settled(P0, P1, P2))
    assert found == ([] if number is None else [number])


def test_progress_goes_back_only_when_asked() -> None:
    back = WentBack(group=GROUP, member="a", part=P0, places={0: (0, 1, 0)})
    first, second = committed("a", 2), committed("a", 1, version=11)
    assert broken(*ALL_CAME, first, second) == [13]
    assert broken(*ALL_CAME, second, first) == [13]  # the versions count
    assert broken(*ALL_CAME, first, back, second) == []
    assert broken(*ALL_CAME, first, back, committed("a", 0, version=11)) == [13]
    assert broken(*ALL_CAME, first, committed("", 1, version=11)) == []
    again, third = committed("a", 2, version=12), committed("a", 1, version=13)
    assert broken(*ALL_CAME, first, back, second, again, third) == [13]  # it asked once
    assert broken(*ALL_CAME, first, back, second, again, back, third) == []
    others = msgspec.structs.replace(back, member="b")
    assert broken(*ALL_CAME, first, others, second) == [13]
    without_lane = ProgressStored(group=GROUP, part=P0, member="a", epoch=1, version=11, places={})
    assert broken(*ALL_CAME, first, without_lane) == [13]


@pytest.mark.parametrize(
    ("events", "number"),
    [
        ([lag(0), lag(5), lag(11)], 14),
        ([lag(0), lag(5), lag(9.9)], None),
        ([lag(0), delivered(0, at=6), lag(7), lag(11)], None),
        ([lag(0), lag(5, 0), lag(6), lag(11)], None),
        ([lag(0), lag(5), lag(11, member="b")], None),
        ([lag(0), row("a", P0, epoch=2, version=2, at=6), lag(7), lag(11)], None),
        ([lag(0), delivered(0, partition=1, at=6), lag(11)], 14),
        ([lag(0), calm(5, is_calm=False), calm(8, is_calm=True), lag(11), lag(17)], None),
        ([calm(0, is_calm=False), lag(0), lag(11)], None),
        ([calm(0, is_calm=True), lag(0), lag(11)], 14),
    ],
)
def test_a_ready_member_that_lags_gets_something(events: list[Event], number: int | None) -> None:
    found = broken(row("a", P0, P1), assigned(P0, P1), *events)
    assert found == ([] if number is None else [number])


def test_progress_does_not_pass_messages_that_are_not_done() -> None:
    begin = [*published(), row("a", P0), assigned(P0), delivered(0, 1, 2)]
    assert broken(*begin, done(0, 1), committed("a", 2)) == []
    assert broken(*begin, done(0), committed("a", 2)) == [21]
    assert broken(*begin, done(0), committed("a", 2), done(1)) == [21]
    assert broken(*begin, done(0), committed("", 2)) == []  # a reset may pass them


def test_every_message_is_done_in_the_end() -> None:
    begin = [*published(), row("a", P0), assigned(P0), delivered(0, 1, 2), done(0, 1)]
    assert broken(*begin) == []
    assert broken(*begin, settled(P0)) == [21]
    assert broken(*begin, done(2), settled(P0)) == []


def test_an_application_gets_messages_of_what_it_was_assigned() -> None:
    begin = [*published(), row("a", P0)]
    assert broken(*begin, delivered(0)) == [22]
    assert broken(*begin, assigned(P1), delivered(0)) == [22]
    assert broken(*begin, assigned(P0), delivered(0), revoked(P0), delivered(1)) == [22]


def test_a_member_that_gave_up_a_partition_reads_it_no_more() -> None:
    begin = [*published(), row("a", P0), assigned(P0), delivered(0)]
    asked = row("a", P0, epoch=2, version=2, at=1.0, revoked=(P0,))
    assert broken(*begin, asked, delivered(1, epoch=1)) == []
    assert broken(*begin, asked, delivered(1, epoch=2)) == [22]
    assert broken(*begin, asked, delivered(1, epoch=0)) == []  # it is about to notice


def test_messages_of_a_lane_come_in_order_and_once_in_an_assignment() -> None:
    begin = [*published(), row("a", P0), assigned(P0)]
    assert broken(*begin, delivered(1), delivered(0)) == [22]
    assert broken(*begin, delivered(0), delivered(0)) == [22]
    assert broken(*begin, delivered(0), revoked(P0), assigned(P0), delivered(0, 1)) == []


@pytest.mark.parametrize(
    ("events", "number"),
    [
        ([beat(5.0), beat(10.0), removed("a", at=15.0)], 23),
        ([beat(10.0), removed("a", at=16.0)], None),
        ([beat(10.0), MemberLeft(group=GROUP, member="a", run="run"), removed("a", at=12.0)], None),
        ([beat(10.0), MemberLeft(group=GROUP, member="a", run="x"), removed("a", at=12.0)], 23),
        # It was silent when that was decided, and came back before it was done.
        ([beat(10.0), beat(17.0), removed("a", at=18.0)], None),
        ([beat(10.0), beat(17.0), beat(22.0), beat(27.0), removed("a", at=39.0)], None),
        ([beat(1.0), beat(9.0), beat(14.0), beat(19.0), beat(24.0), removed("a", at=30.0)], None),
        ([beat(1.0), *map(beat, range(2, 40)), removed("a", at=40.0)], 23),
        ([removed("a", at=1.0)], None),
    ],
)
def test_a_member_that_reports_in_stays(events: list[Event], number: int | None) -> None:
    assert broken(row("a"), *events) == ([] if number is None else [number])


def opened(session: str, *, deliveries_max: int = 0, by_key: bool = False) -> Opened:
    return Opened(
        group=GROUP,
        session=session,
        shared=True,
        deliveries_max=deliveries_max,
        by_key=by_key,
        ack_s=5.0,
        revoke_s=4.0,
    )


def got(session: str, entry: int, count: int, *, at: float = 0.0) -> Delivered:
    return Delivered(
        group=GROUP,
        session=session,
        member=session,
        epoch=1,
        topic=ORDERS,
        lanes=[0],
        ids=[message(entry)],
        counts=[count],
        at=at,
    )


def acked(session: str, entry: int) -> Acked:
    return Acked(group=GROUP, session=session, topic=ORDERS, ids=[message(entry)])


def test_what_was_acknowledged_comes_to_no_later_session() -> None:
    begin = [*published(), opened("a"), got("a", 0, 1), acked("a", 0)]
    assert broken(*begin, opened("b"), got("b", 1, 1)) == []
    assert broken(*begin, opened("b"), got("b", 0, 2)) == [24]
    assert broken(opened("b"), *begin, got("b", 0, 2)) == []  # it may have had it before


def test_what_was_acknowledged_is_in_no_hand_for_long() -> None:
    begin = [*published(), opened("b"), opened("a"), got("a", 0, 1), acked("a", 0)]
    assert broken(*begin, got("b", 0, 2, at=8.9)) == []
    assert broken(*begin, got("b", 0, 2, at=9.1)) == [24]
    again = [got("b", 0, number + 1, at=100.0 * number) for number in (1, 2, 3)]
    assert broken(*begin, *again) == [24, 24, 24]
    for given_up in (removed("c", at=4.0), slot_row("c", epoch=2, at=4.0, has=True, revoked=True)):
        assert broken(*begin, given_up, got("b", 0, 2, at=12.9)) == []
        assert broken(*begin, given_up, got("b", 0, 2, at=13.1)) == [24]
    unordered = [
        msgspec.structs.replace(each, revoke_s=0.0) if isinstance(each, Opened) else each
        for each in begin
    ]
    assert broken(*unordered, got("b", 0, 2, at=100.0)) == []


def test_deliveries_are_counted() -> None:
    begin = [*published(), opened("a"), got("a", 0, 1)]
    assert broken(*begin, got("a", 0, 2), got("a", 0, 3)) == []
    assert broken(*begin, got("a", 0, 4)) == [24]
    lost = [row("b"), removed("b"), row("b", epoch=2), removed("b")]
    assert broken(*begin, *lost, got("a", 0, 4)) == []  # each may have had it
    assert broken(*begin, *lost, got("a", 0, 5)) == [24]
    assert broken(*begin, got("a", 0, 1)) == [24]


def test_members_of_a_shared_group_pass_messages_on() -> None:
    """Progress says what was taken, and messages go to others."""
    shared = [*published(), opened("a #1"), row("a", P0), assigned(P1), delivered(1, 0)]
    assert broken(*shared, committed("a", 3)) == []


KEY = 77
SLOT = 3


def slot_row(member: str, *, epoch: int, at: float, has: bool, revoked: bool = False) -> Event:
    """A row of a key-shared group with one slot of the first partition, or without."""
    parts = [unit(P0, SLOT)] if has else []
    given = (unit(P0, SLOT),) if revoked else ()
    return row(member, *parts, epoch=epoch, version=epoch, at=at, revoked=given)


def keyed(member: str, *entries: int, epoch: int = 1, key: int = KEY) -> Delivered:
    return Delivered(
        group=GROUP,
        session=member,
        member=member,
        epoch=epoch,
        topic=ORDERS,
        lanes=[0] * len(entries),
        ids=[message(entry) for entry in entries],
        keys=[key] * len(entries),
        slots=[SLOT] * len(entries),
    )


def let_go(member: str, entry: int) -> LetGo:
    return LetGo(group=GROUP, session=member, topic=ORDERS, ids=[message(entry)])


def put_off(member: str, entry: int) -> PutOff:
    return PutOff(group=GROUP, session=member, topic=ORDERS, ids=[message(entry)])


BY_KEY = [
    *published(),
    opened("a", by_key=True),
    slot_row("a", epoch=1, at=0.0, has=True),
    slot_row("b", epoch=1, at=0.0, has=False),
]
ASKED = slot_row("a", epoch=2, at=1.0, has=True, revoked=True)


def moves(at: float) -> list[Event]:
    return [
        slot_row("a", epoch=3, at=at, has=False),
        slot_row("b", epoch=3, at=at, has=True),
    ]


def test_a_slot_is_given_up_once_nothing_of_it_is_in_hand() -> None:
    begin = [*BY_KEY, keyed("a", 0), ASKED]
    assert broken(*begin, *moves(2.0)) == [26]
    assert broken(*begin, let_go("a", 0), *moves(2.0)) == []
    assert broken(*begin, put_off("a", 0), *moves(2.0)) == []
    assert broken(*begin, *moves(4.0)) == [], "its time was over"
    assert broken(*begin, removed("a", at=2.0), slot_row("b", epoch=3, at=2.0, has=True)) == []


def test_a_member_gets_nothing_of_a_slot_that_it_gave_up() -> None:
    begin = [*BY_KEY, ASKED, *moves(2.0)]
    assert broken(*begin, keyed("a", 0, epoch=2)) == [26]
    assert broken(*begin, keyed("a", 0, epoch=3)) == [26]
    assert broken(*begin, keyed("a", 0, epoch=1)) == [], "it is about to notice"
    assert broken(*begin, keyed("b", 0, epoch=1)) == [], "it was given the slot just now"


def test_later_messages_of_a_key_come_after_those_that_are_to_come_again() -> None:
    begin = [*BY_KEY, keyed("a", 0)]
    assert broken(*begin, keyed("a", 1)) == [], "both are in the same hand"
    assert broken(*begin, put_off("a", 0), keyed("a", 1)) == [26]
    assert broken(*begin, put_off("a", 0), keyed("a", 1, key=78)) == []
    assert broken(*begin, put_off("a", 0), keyed("a", 0), keyed("a", 1)) == []
    assert broken(*begin, keyed("a", 1), put_off("a", 0), keyed("a", 1)) == [], "it came before"
    assert broken(*begin, let_go("a", 0), keyed("a", 1)) == []


def test_the_next_owner_of_a_slot_begins_with_what_is_to_come_again() -> None:
    lost = [*BY_KEY, keyed("a", 0), removed("a", at=2.0), slot_row("b", epoch=3, at=2.0, has=True)]
    assert broken(*lost, keyed("b", 1, epoch=3), keyed("b", 0, epoch=3)) == [26]
    assert broken(*lost, keyed("b", 0, epoch=3), keyed("b", 1, epoch=3)) == []
    taken = [*BY_KEY, keyed("a", 0), ASKED, *moves(5.0)]
    assert broken(*taken, keyed("b", 1, epoch=3)) == [], "its last owner may still have them"


def burying(entry: int, deliveries: int = 2) -> Burying:
    return Burying(group=GROUP, member="a", topic=ORDERS, id=message(entry), deliveries=deliveries)


def buried(entry: int) -> Buried:
    return Buried(group=GROUP, member="a", topic=ORDERS, id=message(entry))


def letter(entry: int, *, deliveries: int = 2, mark: int | None = None, member: str = "a") -> Event:
    return LetterRead(
        group=GROUP,
        member=member,
        topic=ORDERS,
        id=str(message(entry)),
        partition=0,
        of_group=GROUP,
        deliveries=deliveries,
        reason="refused",
        mark=entry if mark is None else mark,
        key=None,
    )


POISONED = [*published(), opened("a", deliveries_max=2), row("a", P0), got("a", 0, 1)]
READ = LettersRead(group=GROUP)


def test_a_message_is_buried_after_all_of_its_deliveries() -> None:
    assert broken(*POISONED, got("a", 0, 2), burying(0)) == []
    assert broken(*POISONED, burying(0)) == [25]
    assert broken(*POISONED, burying(0, 1)) == [25, 25]
    assert broken(*POISONED, row("b"), removed("b"), burying(0)) == [], "it may have had it"
    assert broken(*POISONED, got("a", 0, 2), acked("a", 0), burying(0)) == [25]
    assert broken(*POISONED, got("a", 0, 2), got("a", 0, 3)) == [24]


def test_dead_letters_are_what_was_buried() -> None:
    begin = [*POISONED, got("a", 0, 2), burying(0)]
    assert broken(*begin, buried(0), letter(0), letter(0), READ) == []
    assert broken(*begin, READ) == [], "it may not have been sent"
    assert broken(*begin, buried(0), READ) == [25]
    assert broken(*begin, letter(0), letter(1), READ) == [25]
    assert broken(*begin, letter(0, deliveries=1), READ) == [25]
    assert broken(*begin, letter(0, mark=9), READ) == [25]
    assert broken(*begin, letter(0, member="x"), READ) == [25]


def test_every_message_is_done_or_a_dead_letter_in_the_end() -> None:
    begin = [*POISONED, got("a", 0, 2), burying(0), buried(0), done(1, 2), settled(P0)]
    assert broken(*begin, letter(0), READ) == []
    assert broken(*begin) == [21]


def test_members_that_share_a_partition_by_keys_are_stuck_if_none_gets_anything() -> None:
    begin = [*BY_KEY, lag(0, member="")]
    assert broken(*begin, lag(11, member="")) == [14]
    other = msgspec.structs.replace(keyed("a", 0, key=NO_KEY), ids=[message(0, 1)], at=6.0)
    assert broken(*begin, other, lag(11, member="")) == []
    assert broken(*begin, ASKED, lag(11, member="")) == []


def test_a_loss_that_the_first_delivery_tells_of_may_be_long_ago() -> None:
    """Of processes; the message waited with members that were lost."""
    opening = Opened(group=GROUP, session="a", shared=True, deliveries_max=2)
    dead = DeadLetter(group=GROUP, topic=ORDERS, id=message(0), deliveries=2, at=101.0)
    lost = [row("b"), removed("b", at=1.0)]

    def violations(*events: Event, told: int) -> list[int]:
        came = msgspec.structs.replace(got("a", 0, told), at=100.0)
        return broken(*published(), opening, *events, came, dead)

    assert violations(*lost, told=2) == []
    assert violations(told=2) == [25], "nobody was lost"
    assert violations(*lost, told=1) == [25], "the loss is not counted"
