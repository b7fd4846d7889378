"""The checker finds what topics break in a minimal history, and nothing in a near miss."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from checker import Violation, check
from history import Event, History, HistoryFile
from message_events import (
    NOWHERE,
    GapTold,
    HeldEntry,
    LaneTaken,
    LedgerHeld,
    LossTold,
    Message,
    MessagesAcknowledged,
    MessagesRead,
    MessagesRefused,
    MessagesSent,
    ReadBegun,
    ReadEnded,
    RowListed,
    RowRemoved,
    TopicMade,
)

from ledger_client.message_id import MessageId
from metadata.topics import LaneLedger

T = "shop/orders"
NO_STATE: dict[str, int] = {}
A, B, C, D = (Message(mark, mark - 10) for mark in (10, 11, 12, 13))
"""messages with the sequence numbers 0 to 3"""


def made(*, ordered: bool = False) -> TopicMade:
    return TopicMade(topic=T, ordered=ordered)


def taken(epoch: int, last: int = -1, session: str = "p", producer: str = "") -> LaneTaken:
    return LaneTaken(
        topic=T,
        session=session,
        producer=producer,
        partition=-1,
        lane=0,
        epoch=epoch,
        last_sequence=last,
    )


def sent(*messages: Message, session: str = "p", name: str = "") -> MessagesSent:
    return MessagesSent(
        topic=T, session=session, writer="w", producer=name, messages=list(messages)
    )


def at(ledger: int, entry: int, partition: int = -1) -> MessageId:
    return MessageId(ledger, entry, partition)


def acked(where: MessageId, message: Message, session: str = "p") -> MessagesAcknowledged:
    return MessagesAcknowledged(
        topic=T, session=session, writer="w", marks=[message.mark], ids=[where]
    )


def refused(message: Message, *, unknown: bool, **times: int) -> MessagesRefused:
    return MessagesRefused(
        topic=T, session="p", writer="w", marks=[message.mark], reason="", unknown=unknown, **times
    )


def read(*found: tuple[MessageId, Message], reader: str = "r") -> MessagesRead:
    ids, messages = [each[0] for each in found], [each[1] for each in found]
    return MessagesRead(topic=T, reader=reader, ids=ids, messages=messages)


def begun(
    reader: str = "r",
    first: MessageId | None = None,
    *,
    inclusive: bool = True,
    latest: bool = False,
    reverse: bool = False,
    whole: bool = False,
) -> ReadBegun:
    return ReadBegun(
        topic=T,
        reader=reader,
        first=first,
        inclusive=inclusive,
        latest=latest,
        reverse=reverse,
        whole=whole,
    )


def ended(reader: str = "r") -> ReadEnded:
    return ReadEnded(topic=T, reader=reader)


def gap(position: MessageId, first: MessageId | None) -> GapTold:
    return GapTold(topic=T, reader="r", partition=-1, lane=0, position=position, first=first)


def loss(message_id: MessageId) -> LossTold:
    ledger, entry = message_id.ledger_id, message_id.entry_id
    return LossTold(topic=T, reader="r", ledger_id=ledger, entry=entry)


def removed(number: int) -> RowRemoved:
    return RowRemoved(topic=T, partition=-1, lane=0, number=number)


def listed(number: int, version: int = 1, state: str = "closed", **fields: object) -> RowListed:
    """The row of ledger 100 + *number*: by default of three entries and two messages."""
    values: dict[str, object] = {
        "ledger_id": 100 + number,
        "base_version": 3 * number,
        "epoch": 1,
        "entries": 3,
        "messages": 2,
        "size": 30,
    }
    row = LaneLedger(state=state, **(values | fields))  # type: ignore[arg-type]
    return RowListed(topic=T, partition=-1, lane=0, number=number, version=version, row=row)


def held(
    number: int,
    *messages: Message,
    epoch: int = 1,
    producer: str = "",
    state: dict[str, int] | None = NO_STATE,
) -> LedgerHeld:
    """Ledger 100 + *number*: a control entry and one entry for each message."""
    entries = [
        HeldEntry(
            entry=entry,
            size=10,
            epoch=epoch,
            producer=producer if batch else "",
            messages=batch,
            batched=False,
            state=None if batch else state,
        )
        for entry, batch in enumerate([[], *([each] for each in messages)])
    ]
    return LedgerHeld(topic=T, ledger=100 + number, entries=entries)


def denied() -> list[Event]:
    """A reader got two messages of a ledger, and at the second one's place lies something else."""
    found = held(0, A)
    empty = HeldEntry(
        entry=2, size=10, epoch=1, producer="", messages=[], batched=False, state=NO_STATE
    )
    found.entries.append(empty)
    row = listed(0, messages=1)
    return [made(), row, sent(A), sent(B), begun(), read((A1, A), (B2, B)), found]


def checked(events: Iterable[Event]) -> list[Violation]:
    seconds = iter(range(1000))
    history = History(clock=lambda: float(next(seconds)))
    for event in events:
        history.add(event)
    return check(history)


A1, B2, C1, D2 = at(100, 1), at(100, 2), at(101, 1), at(101, 2)
ROWS: list[Event] = [made(), listed(0), listed(1)]
SENT: list[Event] = [*ROWS, sent(A), sent(B), sent(C), sent(D)]
HELD: list[Event] = [held(0, A, B), held(1, C, D)]
ALL: list[Event] = [
    *[*SENT, acked(A1, A), acked(B2, B), acked(C1, C), acked(D2, D)],
    *[begun(), read((A1, A), (B2, B), (C1, C), (D2, D)), ended(), *HELD],
]
BY_NAME: list[Event] = [*ROWS, sent(A, B, C, D, name="n"), acked(A1, A), acked(B2, B)]
GONE: list[Event] = [*SENT, acked(A1, A), begun(), read((A1, A)), removed(0)]


def timed(*times: int) -> list[Message]:
    return [Message(20 + number, event_time=time) for number, time in enumerate(times)]


def times_of(
    first: tuple[int, int], second: tuple[int, int], *, shares: bool = False
) -> list[Event]:
    return [
        made(ordered=True),
        listed(0, first_event_time=first[0], last_event_time=first[1]),
        listed(1, first_event_time=second[0], last_event_time=second[1], shares_first=shares),
    ]


BROKEN: dict[str, tuple[int, list[Event]]] = {
    "an id is acknowledged twice": (
        15,
        [*ROWS, sent(A), sent(B, session="q"), acked(A1, A), acked(A1, B, "q")],
    ),
    "a reader gets another message at an id": (
        15,
        [*SENT, acked(A1, A), begun(), read((A1, B))],
    ),
    "an acknowledged message is not there": (15, [*SENT, acked(at(100, 3), A), *HELD]),
    "a message that is said to be kept is nowhere": (
        15,
        [
            made(),
            listed(0, messages=1, entries=2, size=20),
            sent(A, name="n"),
            sent(B),
            acked(NOWHERE, A),
            held(0, B),
        ],
    ),
    "a named producer's message is there twice": (
        15,
        [*BY_NAME, begun(), read((A1, A), (B2, B), (C1, A))],
    ),
    "a refused message is there": (
        15,
        [*ROWS, sent(A), refused(A, unknown=False), begun(), read((A1, A))],
    ),
    "a reader does not come to what was acknowledged": (15, [*ALL, begun("s"), ended("s")]),
    "a whole read ends before what was acknowledged in an open ledger": (
        15,
        [made(), listed(0, 1, "open"), sent(A), acked(A1, A), begun(whole=True), ended()],
    ),
    "a reader that begins at an id leaves it out": (
        15,
        [*ALL, begun("s", first=C1), read((D2, D), reader="s"), ended("s")],
    ),
    "a message that nobody sent": (16, [*ROWS, begun(), read((A1, A))]),
    "a message with another key": (
        16,
        [*SENT, begun(), read((A1, Message(10, 0, key=5)))],
    ),
    "a message in the ledger that nobody sent": (16, [made(), listed(0), sent(A), held(0, A, B)]),
    "acknowledged in another order than sent": (16, [*SENT, acked(B2, A), acked(A1, B)]),
    "a reader goes back": (16, [*SENT, begun(), read((A1, A), (B2, B)), read((A1, A))]),
    "a reader gets a message twice": (16, [*SENT, begun(), read((A1, A), (A1, A))]),
    "a reverse reader goes forward": (
        16,
        [*SENT, begun(reverse=True), read((A1, A), (B2, B))],
    ),
    "the former owner is acknowledged in a ledger of the next": (
        17,
        [*[made(), listed(0), listed(1, epoch=2)], taken(1), sent(A), acked(C1, A)],
    ),
    "the former owner is acknowledged what it sent too late": (
        17,
        [*ROWS, taken(1), taken(2, session="q"), sent(A), acked(A1, A)],
    ),
    "an epoch has two owners": (17, [*ROWS, taken(1), taken(1, session="q")]),
    "sequence numbers begin again": (
        17,
        [*BY_NAME, taken(2, 0, session="q", producer="n")],
    ),
    "sequence numbers of what was not sent": (
        17,
        [*BY_NAME, taken(2, 7, session="q", producer="n")],
    ),
    "sequence numbers fall": (
        17,
        [
            *ROWS,
            sent(A, B, C, D, name="n"),
            held(0, B, A, producer="n"),
            held(1, C, D, state={"n": 0}, producer="n"),
        ],
    ),
    "an event time goes back": (
        18,
        [
            *[made(ordered=True), listed(0), sent(*timed(5, 4))],
            *[acked(A1, timed(5)[0]), acked(B2, timed(5, 4)[1])],
        ],
    ),
    "ledgers overlap in event time": (18, times_of((1, 5), (4, 6))),
    "ledgers share an event time in silence": (18, times_of((1, 5), (5, 6))),
    "ledgers are said to share an event time": (18, times_of((1, 5), (6, 6), shares=True)),
    "an event time is refused that is greater": (
        18,
        [
            *[*ROWS, sent(*timed(5, 6))],
            refused(timed(5, 6)[1], unknown=False, event_time=6, last_event_time=5),
        ],
    ),
    "a reader leaves a message out": (
        19,
        [*SENT, acked(B2, B), begun(), read((A1, A), (C1, C))],
    ),
    "what a reader got is denied": (19, denied()),
    "a reader begins too late": (19, [*SENT, acked(A1, A), begun(), read((B2, B))]),
    "a reverse reader leaves a message out": (
        19,
        [*SENT, acked(B2, B), begun(reverse=True), read((C1, C), (A1, A))],
    ),
    "a reader passes a removed ledger in silence": (
        19,
        [*SENT, acked(B2, B), begun(), read((A1, A)), removed(0), read((C1, C))],
    ),
    "a loss of what is there": (19, [*SENT, begun(), loss(A1)]),
    "a loss before the removal": (19, [*SENT, begun(), loss(A1), removed(0)]),
    "a gap where nothing was removed": (19, [*SENT, begun(), gap(A1, C1)]),
    "a gap over what is there": (
        19,
        [*SENT, acked(C1, C), begun(), removed(0), gap(A1, D2)],
    ),
    "a gap before the removal": (19, [*SENT, begun(), gap(A1, C1), removed(0)]),
    "a closed row changes": (20, [made(), listed(0), listed(0, 2, entries=4)]),
    "a row is open again": (20, [made(), listed(0, 1, "open"), listed(0, 2, "prepared")]),
    "an open ledger before a closed one": (20, [made(), listed(0, 1, "open"), listed(1)]),
    "a number is left out": (20, [made(), listed(0), listed(2, base_version=3)]),
    "versions with a hole": (20, [made(), listed(0), listed(1, base_version=4)]),
    "versions twice": (20, [made(), listed(0), listed(1, base_version=2)]),
    "epochs fall": (20, [made(), listed(0, epoch=2), listed(1)]),
    "a ledger in two rows": (20, [made(), listed(0), listed(1, ledger_id=100)]),
    "a message in a ledger of no lane": (20, [*SENT, acked(at(7, 0), A)]),
    "an id of another partition": (20, [*SENT, acked(at(100, 1, 3), A)]),
    "a row counts wrong": (20, [made(), listed(0, messages=3), sent(A, B), held(0, A, B)]),
    "a row weighs wrong": (20, [made(), listed(0, size=3), sent(A, B), held(0, A, B)]),
    "a row names other times": (
        20,
        [made(), listed(0, first_event_time=4), sent(A, B), held(0, A, B)],
    ),
    "a closed ledger is not there": (20, [*SENT, *HELD[:1]]),
    "a ledger begins without the state": (
        20,
        [made(), listed(0), sent(A, B), held(0, A, B, state=None)],
    ),
    "a state is behind": (
        20,
        [
            *[*ROWS, sent(A, B, C, D, name="n"), held(0, A, B, producer="n")],
            held(1, C, D, state={"n": 0}),
        ],
    ),
    "an entry of another epoch": (20, [made(), listed(0), sent(A, B), held(0, A, B, epoch=2)]),
    "a read above the end": (20, [*SENT, begun(), read((at(100, 3), A))]),
}

SOUND: dict[str, list[Event]] = {
    "nothing happened": [],
    "all is there, and read": ALL,
    "a topic without an audit": ALL[: -len(HELD)],
    "a read ends before what is not confirmed yet": [
        *[made(), listed(0, 1, "open"), sent(A), acked(A1, A), begun(), ended()]
    ],
    "a whole read has what is not confirmed yet": [
        *[made(), listed(0, 1, "open"), sent(A), acked(A1, A)],
        *[begun(whole=True), read((A1, A)), ended()],
    ],
    "read twice": [*ALL, begun("s"), read((A1, A), (B2, B), (C1, C), reader="s")],
    "read backward": [
        *[*ALL, begun("s", reverse=True)],
        *[read((D2, D), (C1, C), (B2, B), (A1, A), reader="s"), ended("s")],
    ],
    "read from an id on": [*ALL, begun("s", C1), read((C1, C), (D2, D), reader="s"), ended("s")],
    "read after an id": [
        *[*ALL, begun("s", C1, inclusive=False), read((D2, D), reader="s"), ended("s")]
    ],
    "read from the latest on": [*ALL, begun("s", latest=True), ended("s")],
    "an unknown outcome, sent again and kept twice": [
        *[*ROWS, sent(A), refused(A, unknown=True), sent(A), acked(B2, A)],
        *[begun(), read((A1, A), (B2, A))],
    ],
    "an unknown outcome, not kept": [*ROWS, sent(A), refused(A, unknown=True), begun(), ended()],
    "refused, and sent again": [
        *[*ROWS, sent(A), refused(A, unknown=False), sent(A), acked(A1, A), begun(), read((A1, A))]
    ],
    "a name: sent again by the next session, and kept once": [
        *[*ROWS, taken(1, producer="n"), sent(A, B, name="n"), acked(A1, A)],
        *[taken(2, 1, session="q", producer="n"), sent(B, session="q", name="n")],
        *[acked(B2, B, "q"), begun(), read((A1, A), (B2, B)), ended()],
    ],
    "a name: kept, who knows where": [
        *[*ROWS, sent(A, name="n"), acked(NOWHERE, A), begun(), read((A1, A))]
    ],
    "the former owner hears late of what was in time": [
        *[*ROWS, taken(1), sent(A), taken(2, session="q"), acked(A1, A)]
    ],
    "the next owner has the next ledger": [
        *[made(), listed(0), listed(1, epoch=2), taken(1), sent(A), acked(A1, A)],
        *[taken(2, session="q"), sent(C, session="q"), acked(C1, C, "q")],
    ],
    "states that follow the messages": [
        *[*ROWS, sent(A, B, C, D, name="n")],
        *[held(0, A, B, producer="n"), held(1, C, D, state={"n": 1})],
    ],
    "a state without the beginning of the lane": [
        *[*ROWS, sent(C, D, name="n"), removed(0), held(1, C, D, state={"n": 1})]
    ],
    "event times that stay": [
        *[made(ordered=True), listed(0), sent(*timed(5, 5))],
        *[acked(A1, timed(5)[0]), acked(B2, timed(5, 5)[1])],
    ],
    "event times that nobody ordered": [
        *[made(), listed(0), sent(*timed(5, 4))],
        *[acked(A1, timed(5)[0]), acked(B2, timed(5, 4)[1])],
    ],
    "an event time that is refused": [
        *[*ROWS, sent(*timed(5, 4))],
        refused(timed(5, 4)[1], unknown=False, event_time=4, last_event_time=5),
    ],
    "ledgers that follow in event time": times_of((1, 5), (6, 7)),
    "ledgers that say what they share": times_of((1, 5), (5, 7), shares=True),
    "a loss of what was removed": [*GONE, loss(B2)],
    "a gap that is told": [*GONE, gap(B2, C1), read((C1, C)), ended()],
    "a reader begins after what was removed": [*GONE, begun("s"), read((C1, C), reader="s")],
    "nothing is left": [*GONE, removed(1), gap(B2, None)],
    "nothing is left but a ledger that is made ahead": [
        *[made(), listed(0), sent(A), sent(B), acked(A1, A), begun(), read((A1, A)), removed(0)],
        *[listed(1, 1, "prepared", base_version=-1), gap(B2, None), listed(1, 2, "open")],
        *[sent(C), acked(C1, C), read((C1, C)), listed(1, 3, messages=1), ended()],
    ],
    "a removed ledger is not audited": [*GONE, held(1, C, D)],
    "the last message of a removed ledger was read": [
        *[*SENT, begun(), read((A1, A), (B2, B)), removed(0), read((C1, C))]
    ],
    "rows on their way": [
        *[made(), listed(0, 1, "prepared", base_version=-1), listed(0, 2, "open"), listed(0, 3)],
        *[listed(1, 1, "open"), listed(2, 1, "prepared", base_version=-1)],
    ],
    "a prepared ledger is replaced": [
        *[made(), listed(0, 1, "prepared", base_version=-1), listed(0, 2, "open", ledger_id=109)]
    ],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found(name: str) -> None:
    invariant, events = BROKEN[name]
    assert {violation.invariant for violation in checked(events)} == {invariant}


@pytest.mark.parametrize("name", SOUND)
def test_a_near_miss_is_no_violation(name: str) -> None:
    assert checked(SOUND[name]) == []


def test_topics_do_not_mix() -> None:
    other = MessagesSent(topic="shop/b", session="p", writer="w", producer="", messages=[A])
    found = checked([*ROWS, other, begun(), read((A1, A))])
    assert [violation.message.split(":")[0] for violation in found] == [T]


def test_what_is_told_of_messages_is_read_back_from_a_file(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "history")
    events = [*ALL, gap(A1, None), refused(A, unknown=True, event_time=1), removed(0), taken(1)]
    for event in events:
        file.add(event)
    file.close()
    assert History.merged([tmp_path / "history"]).events == events
