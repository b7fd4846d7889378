"""The checker of timestamps sees each broken promise, and none where all is sound."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from event import Event
from history import History
from message_events import Message, MessagesAcknowledged, MessagesSent
from time_checker import check_time
from time_events import (
    HeldMessage,
    TickSeen,
    TimeAsked,
    TimedBegun,
    TimedEnded,
    TimedLost,
    TimedRead,
    TimeHeld,
    TimeTaken,
    TopicChanged,
)
from time_plan import Reading
from time_roles import Follower

from ledger_client.message_id import MessageId

TOPIC = "shop/orders"
IDS = [MessageId(1, 1, 0, 0), MessageId(2, 1, 1, 0), MessageId(1, 2, 0, 0)]
STAMPS = [10, 20, 30]
"""The first and the last are in one lane, the second in another."""


def held(stamps: Sequence[int] = STAMPS, ticks: Sequence[int] = (25, 35)) -> TimeHeld:
    messages = [
        HeldMessage(each, 0, each.entry_id, stamp, number)
        for number, (each, stamp) in enumerate(zip(IDS, stamps, strict=True))
    ]
    return TimeHeld(topic=TOPIC, messages=messages, ticks=list(ticks))


def tick(timestamp: int, *covers: tuple[int, int, int], stored: int | None = None) -> TickSeen:
    stored = timestamp if stored is None else stored
    return TickSeen(topic=TOPIC, who="t", timestamp=timestamp, stored=stored, covers=list(covers))


def begun(start: int = 0) -> TimedBegun:
    return TimedBegun(topic=TOPIC, reader="r", start=start, follows=False)


def read(*numbers: int, tick: int = 0) -> TimedRead:
    ids, stamps = [IDS[n] for n in numbers], [STAMPS[n] for n in numbers]
    return TimedRead(topic=TOPIC, reader="r", ids=ids, timestamps=stamps, tick=tick)


def sent(number: int) -> MessagesSent:
    return MessagesSent(
        topic=TOPIC, session="s", writer="w", producer="", messages=[Message(number)]
    )


def acknowledged(*numbers: int) -> MessagesAcknowledged:
    ids = [IDS[n] for n in numbers]
    return MessagesAcknowledged(topic=TOPIC, session="s", writer="w", marks=list(numbers), ids=ids)


def asked(who: str = "a") -> TimeAsked:
    return TimeAsked(who=who)


def taken(first: int, count: int = 1, who: str = "a") -> TimeTaken:
    return TimeTaken(who=who, first=first, count=count)


def ended() -> TimedEnded:
    return TimedEnded(topic=TOPIC, reader="r")


def changed(timestamp: int) -> TopicChanged:
    return TopicChanged(topic=TOPIC, kind="altered", timestamp=timestamp)


COVERED = (0, 0, 2), (1, 0, 2)
ALL = (0, 0, 3), (1, 0, 2)
SOUND: list[list[Event]] = [
    [held()],
    [tick(25, *COVERED), tick(35, *ALL), tick(99, *ALL, stored=35), held()],
    [begun(), read(0, 1, tick=25), read(2, tick=35), ended(), held()],
    [begun(20), read(1, tick=25), read(2, tick=30), held()],
    [asked(), taken(1, 9), acknowledged(0), asked(), taken(11, 5), sent(1), held()],
    [asked(), asked("b"), taken(5, who="b"), taken(3), held()],
    [begun(), read(0, 1), acknowledged(2), ended(), held()],
    [tick(25, *COVERED), changed(26), tick(35, *ALL), held()],
]
BROKEN: list[tuple[int, list[Event]]] = [
    (8, [tick(25, (0, 0, 2)), held()]),
    (8, [tick(35, *COVERED), held()]),
    (8, [tick(28, *COVERED), held()]),
    (8, [tick(30, *ALL, stored=25), held()]),
    (8, [held(ticks=[25, 24])]),
    (8, [begun(), read(0, tick=25), held()]),
    (8, [begun(), TimedLost(topic=TOPIC, reader="r", reason="too late"), held()]),
    (8, [tick(25, *COVERED), changed(24), held()]),
    (8, [begun(), read(0, 1, tick=25), changed(24), held()]),
    (9, [held(stamps=[30, 20, 10])]),
    (10, [asked(), taken(20), held()]),
    (10, [acknowledged(2), asked(), taken(15), held()]),
    (10, [tick(35, *ALL), asked(), taken(31), held()]),
    (10, [acknowledged(2), sent(1), held()]),
    (10, [asked(), asked("b"), taken(5, 3, who="b"), taken(7), held()]),
    (10, [changed(26), asked(), taken(24), held()]),
    (10, [changed(20), held()]),
    (27, [begun(), read(1, 0), held()]),
    (27, [begun(), read(0, 2), held()]),
    (27, [begun(), read(0), read(0), held()]),
    (27, [begun(), read(0, 1, 2), held()]),
    (27, [acknowledged(0, 1, 2), begun(), read(0, 1), ended(), held()]),
    (27, [acknowledged(2), TimeHeld(topic=TOPIC, messages=[], ticks=[])]),
]


@pytest.mark.parametrize("events", SOUND, ids=range(len(SOUND)))
def test_a_sound_history_breaks_no_promise(events: list[Event]) -> None:
    assert not list(check_time(History(events)))


@pytest.mark.parametrize(("invariant", "events"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_promise_is_seen(invariant: int, events: list[Event]) -> None:
    assert {number for number, _ in check_time(History(events))} == {invariant}


@pytest.mark.parametrize("from_now", [False, True])
def test_a_follower_must_get_what_is_sent_once_it_has_begun(*, from_now: bool) -> None:
    """Of what was sent before it reads from now on, nothing need come."""
    history = History([sent(0), sent(1), acknowledged(0)])
    reading = Reading("r", "c1", 0.0, from_now, arrow=False, session_s=1.0, size=1)
    follower = Follower(TOPIC, reading, 0, history)
    assert follower.misses_some()
    follower.begin(15 if from_now else 0)
    history.add(acknowledged(1))
    assert follower.misses_some() is not from_now
    history.add(sent(2))
    history.add(acknowledged(2))
    follower.audience.got |= {IDS[0], IDS[1]}
    assert follower.misses_some()
    follower.audience.got.add(IDS[2])
    assert not follower.misses_some()
