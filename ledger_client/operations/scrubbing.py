"""Comparing all copies of many closed ledgers: which there are, in groups, and what was found.

A group is what one task looks at: some ledgers, by the bytes of all of their copies. What is
not closed is not looked at, as its copies need not be alike yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

import msgspec
import trio

from ledger_client.client import Client
from ledger_client.errors import LedgerError, NoSuchLedger
from ledger_client.operations.errors import LedgerNotClosed
from ledger_client.operations.verification import Verification, verify
from metadata.records import LedgerState

AT_ONCE = 4
"""Ledgers that one process looks at at a time."""
Part = Callable[[float], None]
"""Is told which part of the bytes is done."""


class Chosen(NamedTuple):
    """A closed ledger to be looked at."""

    ledger_id: int
    topic: str
    size: int
    """payload bytes of all copies"""


class ScrubbedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """How the copies of a ledger are, in numbers of copies of entries; *size* in bytes."""

    ledger_id: int
    topic: str = ""
    entries: int = 0
    size: int = 0
    """payload bytes of all copies"""
    copies: int = 0
    """that there should be"""
    sound: int = 0
    missing: int = 0
    damaged: int = 0
    different: int = 0
    unreachable: int = 0
    lost: int = 0
    """entries of which no copy is known to be right"""
    faulty: list[str] = []
    """bookies with copies that are missing, damaged or different"""
    silent: list[str] = []
    """bookies that did not answer"""
    gone: bool = False
    """it was deleted meanwhile"""

    @property
    def whole(self) -> bool:
        """Whether every copy is there and right, or nobody wants it any more."""
        return self.sound == self.copies and not self.lost


class Scrubbed(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; *faulty* names the ledgers that are not whole."""

    ledgers: int = 0
    entries: int = 0
    copies: int = 0
    size: int = 0
    missing: int = 0
    damaged: int = 0
    different: int = 0
    unreachable: int = 0
    lost: int = 0
    faulty: list[ScrubbedLedger] = []

    @property
    def whole(self) -> bool:
        """Whether all ledgers are whole."""
        return not self.faulty


async def choose_ledgers(
    client: Client, *, topics: Sequence[str] = (), ids: Sequence[int] = ()
) -> list[Chosen]:
    """Return the closed ledgers, all or those that were named or are of these topics.

    Raises:
        NoSuchLedger: one that is named is not there.
        LedgerNotClosed: one that is named is not closed.
    """
    chosen: list[Chosen] = []
    left = set(ids)
    async for info in client.list_ledgers():
        topic = info.custom.get("topic", "")
        if (topics or ids) and info.ledger_id not in left and topic not in topics:
            continue
        if info.state is not LedgerState.CLOSED:
            if info.ledger_id in left:
                raise LedgerNotClosed(info.ledger_id)
            continue
        left.discard(info.ledger_id)
        chosen.append(Chosen(info.ledger_id, topic, info.length * info.write_quorum))
    if left:
        raise NoSuchLedger(min(left))
    return chosen


def group(chosen: Iterable[Chosen], count: int) -> list[list[Chosen]]:
    """Return the ledgers in *count* groups of about the same bytes, or fewer groups."""
    groups: list[tuple[int, int, list[Chosen]]] = [(0, number, []) for number in range(count)]
    heapify(groups)
    for each in sorted(chosen, key=lambda one: one.size, reverse=True):
        size, number, members = groups[0]
        members.append(each)
        heapreplace(groups, (size + max(each.size, 1), number, members))
    return [members for _, _, members in groups if members]


async def scrub(
    client: Client, chosen: Sequence[Chosen], told: Part = lambda _part: None
) -> list[ScrubbedLedger]:
    """Compare the copies of these ledgers, some at a time.

    Raises:
        LedgerError: metadata cannot be asked. Bookies that do not answer are counted.
    """
    found: list[ScrubbedLedger] = []
    failures: list[LedgerError] = []
    limit = trio.CapacityLimiter(AT_ONCE)
    total, done = sum(one.size for one in chosen), 0

    async def look(one: Chosen) -> None:
        nonlocal done
        async with limit:
            try:
                found.append(await _scrub_one(client, one))
            except LedgerError as failure:
                failures.append(failure)
            done += one.size
            told(done / max(total, 1))

    async with trio.open_nursery() as nursery:
        for one in chosen:
            nursery.start_soon(look, one)
    if failures:
        raise failures[0]
    return found


async def _scrub_one(client: Client, one: Chosen) -> ScrubbedLedger:
    try:
        record, _ = await client.catalogue.get(one.ledger_id)
    except NoSuchLedger:
        return ScrubbedLedger(ledger_id=one.ledger_id, topic=one.topic, gone=True)
    return scrubbed_of(await verify(client, record), one)


def scrubbed_of(found: Verification, one: Chosen) -> ScrubbedLedger:
    """Return what was found of a ledger, in numbers."""
    copies = list(found.copies.values())
    return ScrubbedLedger(
        ledger_id=one.ledger_id,
        topic=one.topic,
        entries=found.entries,
        size=one.size,
        copies=sum(copy.expected for copy in copies),
        sound=sum(copy.sound for copy in copies),
        missing=sum(copy.missing for copy in copies),
        damaged=sum(copy.damaged for copy in copies),
        different=sum(copy.different for copy in copies),
        unreachable=sum(copy.unknown for copy in copies),
        lost=found.lost,
        faulty=[c.bookie_id for c in copies if c.missing or c.damaged or c.different],
        silent=[copy.bookie_id for copy in copies if copy.silent],
    )


def summary(found: Iterable[ScrubbedLedger]) -> Scrubbed:
    """Return the sums."""
    ledgers = sorted((each for each in found if not each.gone), key=lambda one: one.ledger_id)
    return Scrubbed(
        ledgers=len(ledgers),
        entries=sum(each.entries for each in ledgers),
        copies=sum(each.copies for each in ledgers),
        size=sum(each.size for each in ledgers),
        missing=sum(each.missing for each in ledgers),
        damaged=sum(each.damaged for each in ledgers),
        different=sum(each.different for each in ledgers),
        unreachable=sum(each.unreachable for each in ledgers),
        lost=sum(each.lost for each in ledgers),
        faulty=[each for each in ledgers if not each.whole],
    )
