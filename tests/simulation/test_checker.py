"""The checker finds each broken promise in a minimal history, and nothing in a near miss."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from checker import Violation, check
from history import (
    Absent,
    Acknowledged,
    Closed,
    Created,
    Event,
    History,
    HistoryFile,
    Listed,
    ReadAsked,
    ReadBack,
    ReadDone,
    Recovered,
    Refused,
    Replica,
    Sent,
    digest_of,
    fingerprint,
)

from metadata.records import Fragment, LedgerState

A, B, C, D = (digest_of(payload) for payload in (b"a", b"bb", b"ccc", b"dddd"))
OPEN, IN_RECOVERY, CLOSED = LedgerState


def created(ensemble: int = 2, write: int = 2, ack: int = 1) -> Created:
    return Created(ledger=1, ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)


def sent(*digests: int, first: int | None = None) -> Sent:
    return Sent(ledger=1, writer="w", first=first, digests=list(digests))


def acked(first: int, *digests: int) -> Acknowledged:
    return Acknowledged(ledger=1, writer="w", first=first, digests=list(digests))


def refused(count: int, *, unknown: bool) -> Refused:
    return Refused(ledger=1, writer="w", count=count, reason="", unknown=unknown)


def read(first: int, *digests: int, reader: str = "r") -> ReadBack:
    return ReadBack(ledger=1, reader=reader, first=first, digests=list(digests))


def asks(first: int, last: int | None) -> ReadAsked:
    return ReadAsked(ledger=1, reader="r", first=first, last=last)


DONE = ReadDone(ledger=1, reader="r")


def absent(entry: int) -> Absent:
    return Absent(ledger=1, reader="r", entry=entry)


def closed(last_entry: int, length: int) -> Closed:
    return Closed(ledger=1, who="w", last_entry=last_entry, length=length)


def recovered(last_entry: int, length: int) -> Recovered:
    return Recovered(ledger=1, who="x", last_entry=last_entry, length=length)


def listed(
    version: int, state: LedgerState, *fragments: tuple[int, str], last_entry: int = -1
) -> Listed:
    places = [Fragment(first, list(bookies)) for first, bookies in fragments or [(0, "xy")]]
    return Listed(ledger=1, version=version, state=state, last_entry=last_entry, fragments=places)


def replica(bookie: str, *digests: int, ledger: int = 1) -> Replica:
    return Replica(ledger=ledger, bookie=bookie, entries=dict(enumerate(digests)))


def checked(events: Iterable[Event]) -> list[Violation]:
    """Check the events, one a second apart."""
    seconds = iter(range(1000))
    history = History(clock=lambda: float(next(seconds)))
    for event in events:
        history.add(event)
    return check(history)


WRITTEN: list[Event] = [created(), sent(A, B, C), acked(0, A, B, C)]
LIST = listed(2, CLOSED, last_entry=1)
ALL_OF_TWO: list[Event] = [created(ack=2), sent(A, B), acked(0, A, B), closed(1, 3), LIST]
ONE_OF_TWO: list[Event] = [created(ack=1), *ALL_OF_TWO[1:]]
STRIPED: list[Event] = [
    created(ensemble=3),
    *ALL_OF_TWO[1:-1],
    listed(2, CLOSED, (0, "xyz"), last_entry=1),
]
ELSEWHERE = replica("x", ledger=2)
"""An audit, which finds nothing of ledger 1."""

BROKEN: dict[str, tuple[int, list[Event]]] = {
    "a reader sees an entry change": (1, [sent(A), sent(B), read(0, A), read(0, B)]),
    "a reader sees what was not acknowledged": (1, [sent(A), sent(B), acked(0, A), read(0, B)]),
    "an id is acknowledged twice": (1, [sent(A), sent(B), acked(0, A), acked(0, B)]),
    "an entry that nobody sent": (1, [sent(A), read(0, B)]),
    "an entry at the id of another": (1, [sent(A, B, first=0), read(0, B)]),
    "an entry that is there twice": (1, [sent(A), sent(B), read(0, A, A)]),
    "an id that nothing has": (1, [sent(A), sent(B), acked(0, A), acked(2, B)]),
    "an id of what was never sent": (
        1,
        [sent(A), sent(B), sent(C), refused(1, unknown=False), acked(0, A), acked(2, C)],
    ),
    "what was read is cut off": (1, [sent(A, B), read(0, A, B), recovered(0, 1)]),
    "a read that is too short": (1, [*WRITTEN, asks(0, 2), read(0, A, B), DONE]),
    "a read of nothing": (1, [*WRITTEN, asks(0, 2), DONE]),
    "a read that skips an entry": (1, [*WRITTEN, asks(0, 2), read(0, A), read(2, C), DONE]),
    "a read that begins late": (1, [*WRITTEN, asks(0, 2), read(1, B, C), DONE]),
    "a read of an entry twice": (1, [*WRITTEN, asks(0, 2), read(0, A, B), read(1, B, C), DONE]),
    "a read of more than was asked": (1, [*WRITTEN, asks(0, 0), read(0, A, B), DONE]),
    "a follower that goes backwards": (1, [*WRITTEN, asks(0, None), read(0, A, B), read(0, A)]),
    "a follower that leaves entries out": (1, [*WRITTEN, asks(0, None), read(0, A), read(2, C)]),
    "a follower that ends early": (
        1,
        [*WRITTEN, closed(2, 6), asks(0, None), read(0, A, B), DONE],
    ),
    "what was acknowledged is cut off": (3, [*WRITTEN, recovered(1, 3)]),
    "a fenced writer is acknowledged": (3, [sent(A, B), recovered(0, 1), acked(1, B)]),
    "two ends": (3, [sent(A, B), recovered(0, 1), recovered(1, 3)]),
    "two lengths": (3, [sent(A, B), recovered(1, 3), closed(1, 2)]),
    "an end that is not in metadata": (3, [closed(1, 3), LIST, listed(3, CLOSED, last_entry=0)]),
    "a wrong length": (3, [*WRITTEN, closed(2, 5)]),
    "closed and open again": (3, [listed(1, CLOSED, last_entry=1), listed(2, IN_RECOVERY)]),
    "recovered by nobody": (3, [listed(2, OPEN), listed(1, IN_RECOVERY)]),
    "a confirmed entry is called absent": (4, [*WRITTEN, absent(2)]),
    "an entry up to the end is called absent": (4, [*WRITTEN, closed(2, 6), absent(2)]),
    "a bookie twice in a list": (5, [listed(1, OPEN, (0, "xx"))]),
    "too few bookies": (5, [created(ensemble=3), listed(1, OPEN, (0, "xy"))]),
    "fragments that do not rise": (5, [listed(1, OPEN, (0, "xy"), (4, "xz"), (4, "yz"))]),
    "no fragment at the start": (5, [listed(1, OPEN, (1, "xy"))]),
    "a version that is two records": (5, [listed(1, OPEN), listed(1, OPEN, (0, "xz"))]),
    "a listed bookie lacks an entry": (5, [*ONE_OF_TWO, replica("x", A, B), replica("y", A)]),
    "a listed bookie has another": (5, [*ONE_OF_TWO, replica("x", A, B), replica("y", A, C)]),
    "copies that moved before the look": (
        5,
        [
            *[*ONE_OF_TWO, listed(3, CLOSED, (0, "xz"), last_entry=1)],
            *[replica("x", A, B), replica("y", A, B)],
        ],
    ),
    "a listed bookie was not found": (5, [*ONE_OF_TWO, replica("x", A, B)]),
    "copies where no reader looks": (
        5,
        [*STRIPED, replica("x", A), replica("y", A, B), replica("z")],
    ),
    "one bookie cannot serve what was read": (
        2,
        [
            *ALL_OF_TWO,
            read(0, A),
            replica("x", A, B),
            Replica(ledger=1, bookie="y", entries={1: B}),
        ],
    ),
    "an acknowledged entry is nowhere": (6, [*ONE_OF_TWO, replica("x", A), replica("y", A)]),
    "an acknowledged entry of a ledger without an end": (6, [*WRITTEN, listed(1, OPEN), ELSEWHERE]),
    "an acknowledged entry of a ledger without a record": (
        6,
        [*ALL_OF_TWO[:-1], replica("x", A, B), replica("y", A, B)],
    ),
    "an acknowledged entry of a ledger that is nowhere": (6, [*ALL_OF_TWO, ELSEWHERE]),
    "a read above the end": (7, [sent(A, B, C), closed(0, 1), read(0, A, B)]),
}

SOUND: dict[str, list[Event]] = {
    "nothing happened": [],
    "read twice": [sent(A), read(0, A), read(0, A, reader="s")],
    "a read in pieces": [*WRITTEN, asks(0, 2), read(0, A), read(1, B, C), DONE],
    "a read that fails on the way": [*WRITTEN, asks(0, 2), read(0, A)],
    "a read from the middle": [*WRITTEN, asks(1, 1), read(1, B), DONE],
    "a follower that is stopped": [*WRITTEN, closed(2, 6), asks(0, None), read(0, A)],
    "a follower up to the end": [
        *[*WRITTEN, asks(0, None), read(0, A, B), closed(2, 6), read(2, C), DONE]
    ],
    "two reads at a time": [
        *[*WRITTEN, asks(0, 2), ReadAsked(ledger=1, reader="s", first=0, last=0), read(0, A)],
        *[read(0, A, reader="s"), ReadDone(ledger=1, reader="s"), read(1, B, C), DONE],
    ],
    "acknowledged after it was read": [sent(A, B, first=0), read(0, A), acked(0, A, B)],
    "one payload sent twice": [sent(A), sent(A), read(0, A, A)],
    "an unknown outcome fills the gap": [
        *[sent(A), sent(B), sent(C), refused(1, unknown=True), acked(0, A), acked(2, C)]
    ],
    "refused, then sent as the same entry": [
        *[sent(A, first=0), refused(1, unknown=False), sent(B, first=0), acked(0, B), read(0, B)]
    ],
    "what nobody was told of is cut off": [sent(A, B), acked(0, A), recovered(0, 1)],
    "what nobody was told of is kept": [sent(A, B), acked(0, A), recovered(1, 3), read(0, A, B)],
    "acknowledged late, and kept": [sent(A, B), recovered(1, 3), acked(0, A, B), read(0, A, B)],
    "recoverers agree": [sent(A), recovered(0, 1), recovered(0, 1), closed(0, 1)],
    "an empty ledger": [created(), recovered(-1, 0), listed(2, CLOSED), replica("x")],
    "a length that cannot be told": [created(), sent(A, B), acked(1, B), closed(1, 7)],
    "records seen out of order": [listed(3, CLOSED), listed(1, OPEN), listed(2, IN_RECOVERY)],
    "a record seen twice": [listed(1, OPEN), listed(1, OPEN)],
    "a fragment replaced": [listed(1, OPEN, (0, "xy")), listed(2, OPEN, (0, "xz"), (4, "wz"))],
    "no entry above the end": [*WRITTEN, closed(2, 6), absent(3)],
    "a read up to the end": [sent(A, B), closed(1, 3), read(0, A, B)],
    "whole copies": [*ALL_OF_TWO, read(0, A, B), replica("x", A, B), replica("y", A, B)],
    "copies that move after the look": [
        *[*ALL_OF_TWO, replica("x", A, B), replica("y", A, B)],
        listed(3, CLOSED, (0, "xz"), last_entry=1),
    ],
    "more on a bookie than is listed": [
        *[*ALL_OF_TWO, replica("x", A, B, D), replica("y", A, B), replica("z", C)]
    ],
    "whole stripes": [
        *[*STRIPED, replica("x", A), replica("y", A, B)],
        Replica(ledger=1, bookie="z", entries={1: B}),
    ],
    "two fragments": [
        *[*ONE_OF_TWO[:-1], listed(2, CLOSED, (0, "xy"), (1, "xz"), last_entry=1)],
        *[replica("x", A, B), replica("y", A), Replica(ledger=1, bookie="z", entries={1: B})],
    ],
    "no audit": [*WRITTEN, listed(1, OPEN)],
    "nothing acknowledged, and gone": [created(), sent(A), ELSEWHERE],
    "an audit of an open ledger": [created(), sent(A), listed(1, OPEN), replica("x", A)],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found(name: str) -> None:
    invariant, events = BROKEN[name]
    assert {violation.invariant for violation in checked(events)} == {invariant}


@pytest.mark.parametrize("name", SOUND)
def test_a_near_miss_is_no_violation(name: str) -> None:
    assert checked(SOUND[name]) == []


def test_ledgers_do_not_mix() -> None:
    other = Sent(ledger=2, writer="w", first=0, digests=[B])
    assert [v.ledger for v in checked([other, read(0, B)])] == [1]


def test_files_are_merged_by_time_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    times = iter([1.0, 2.0, 3.0, 4.0])
    files = [HistoryFile(tmp_path / name, clock=lambda: next(times)) for name in ("w", "r")]
    events = [created(), sent(A), read(0, A), Replica(ledger=1, bookie="x", entries={0: A})]
    for number, event in enumerate(events):
        files[number % 2].add(event)
    for file in files:
        file.close()
    with (tmp_path / "w").open("ab") as torn:
        torn.write(b'{"type":"Sent"')
    merged = History.merged([tmp_path / "w", tmp_path / "r"])
    assert merged.events == events
    merged.write(tmp_path / "all")
    assert fingerprint(History.merged([tmp_path / "all"])) == fingerprint(merged)


def test_a_fingerprint_tells_order_and_time() -> None:
    first, second = Sent(ledger=1, writer="w", first=0, digests=[A]), created()
    later = created()
    later.at = 1.0
    prints = {
        fingerprint(History(each)) for each in ([first, second], [second, first], [first, later])
    }
    assert len(prints) == 3
