"""The roles of a storm's processes, each repeated: write, read, recover, list.

Each call does one thing to one ledger. A LedgerError that it raises is an answer
that a cluster in trouble may give.
"""

from __future__ import annotations

import random
from itertools import count
from typing import NamedTuple

import trio
from history import Listed, Recorder
from witness import Witness

from ledger_client import Client, LedgerReader, LedgerWriter
from ledger_client.errors import EntryLost, NoSuchEntry
from metadata.records import LEDGERS, LedgerState, decode_ledger
from metadata.store import MetadataStore

APPENDERS = 3
LENGTHS = (3, 30, 300, 3000)
BATCHES = (1, 1, 10, 50)
NEWEST = 5
READ_MAX = 2000
NOISE = random.Random(0).randbytes(70_000)
SIZES = (0, 1, 100, 100, 1000, 1000, 5000, 60_000)


class Role(NamedTuple):
    """The acting process, its random choices, and when to finish."""

    client: Client
    witness: Witness
    chance: random.Random
    stop: trio.Event


# --- writing ----------------------------------------------------------------------------


async def write(role: Role, quorums: str) -> None:
    """Write a ledger with the quorums E/QW/QA, and close it."""
    ensemble_size, write_quorum, ack_quorum = map(int, quorums.split("/"))
    async with role.client.ledgers.create(ensemble_size, write_quorum, ack_quorum) as ledger:
        role.witness.created(ledger.metadata)
        scribe = Scribe(role, ledger)
        async with trio.open_nursery() as nursery:
            for _ in range(APPENDERS):
                nursery.start_soon(scribe.append_all)
    role.witness.closed(ledger.metadata)


class Scribe:
    """Appends to one ledger by several tasks, until it is long enough or lost."""

    def __init__(self, role: Role, ledger: LedgerWriter) -> None:
        self._role = role
        self._ledger = ledger
        self._numbers = count()
        self._left = role.chance.choice(LENGTHS)

    async def append_all(self) -> None:
        witness, chance = self._role.witness, self._role.chance
        while self._left > 0 and not self._role.stop.is_set():
            payloads = [self._payload() for _ in range(chance.choice(BATCHES))]
            self._left -= len(payloads)
            if not await witness.append(self._ledger, payloads):
                return
            await trio.sleep(chance.random() * 0.03)

    def _payload(self) -> bytes:
        """A payload like no other."""
        number = next(self._numbers)
        size = SIZES[(number * 2654435761 >> 7) % len(SIZES)]
        start = (self._ledger.id * 1009 + number) % 10_000
        return b"%d/%d" % (self._ledger.id, number) + NOISE[start : start + size]


# --- reading ----------------------------------------------------------------------------


async def read(role: Role) -> None:
    """Read some entries of one of the newest ledgers, or of any, and follow it for a while."""
    ledgers = [info.ledger_id async for info in role.client.ledgers.list()]
    if not ledgers:
        return
    ledger_id = role.chance.choice([*ledgers[-NEWEST:], role.chance.choice(ledgers)])
    async with role.client.ledgers.open(ledger_id, recover=False) as reader:
        try:
            await _read_some(role, reader)
            await _follow(role, reader)
        except (NoSuchEntry, EntryLost) as gone:
            role.witness.absent(ledger_id, gone.entry_id)


async def _read_some(role: Role, reader: LedgerReader) -> None:
    if reader.last_confirmed < 0:
        return
    first = role.chance.randrange(reader.last_confirmed + 1)
    last = min(reader.last_confirmed, first + READ_MAX)
    with role.witness.reading(reader.id, first, last) as witness:
        async for batch in reader.read_batches(first, last):
            witness.read_batch(batch)


async def _follow(role: Role, reader: LedgerReader) -> None:
    start = max(0, reader.last_confirmed - 5)
    with (
        trio.move_on_after(role.chance.random() * 2),
        role.witness.reading(reader.id, start, None) as witness,
    ):
        async for entry in reader.follow(start):
            witness.read(entry.ledger_id, entry.entry_id, [entry.payload])


# --- recovering -------------------------------------------------------------------------


async def recover(role: Role) -> None:
    """Recover a ledger that is not closed, whether its writer lives or not."""
    await trio.sleep(role.chance.uniform(0.3, 3))
    ledgers = [
        info.ledger_id
        async for info in role.client.ledgers.list()
        if info.state is not LedgerState.CLOSED
    ]
    if ledgers:
        role.witness.recovered(await role.client.ledgers.recover(role.chance.choice(ledgers)))


# --- listing ----------------------------------------------------------------------------


class Lister:
    """Tells every version of every ledger's record that it gets to see."""

    def __init__(self, store: MetadataStore, history: Recorder) -> None:
        self._store = store
        self._history = history
        self._seen: dict[str, int] = {}

    async def look(self) -> None:
        after = ""
        while page := await self._store.list(LEDGERS, after=after):
            for key, found in page:
                if self._seen.get(key) != found.version:
                    self._seen[key] = found.version
                    self._tell(key, found.value, found.version)
            after = page[-1][0]

    def _tell(self, key: str, value: bytes, version: int) -> None:
        record = decode_ledger(key, value)
        self._history.add(
            Listed(
                ledger=record.ledger_id,
                version=version,
                state=record.state,
                last_entry=record.last_entry,
                fragments=record.fragments,
            )
        )
