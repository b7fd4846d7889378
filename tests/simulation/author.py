"""Whoever writes ledgers in a simulation, and what its writers were told.

A writer's ledger may be recovered under its hands, its bookies may vanish, its machine
may freeze. It goes on with a new ledger, a few times; what it asked and what was
answered goes into the history.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import trio
from history import Acknowledged, Closed, Created, Refused, Sent, digest_of
from plan import Work
from stubborn_writer import StubbornWriter

from ledger_client import Client
from ledger_client.errors import LedgerError, OutcomeUnknown
from ledger_client.ledgers.write_state import PAYLOAD_SIZE_MAX
from ledger_client.ledgers.writer import LedgerWriter
from metadata.errors import MetadataError
from metadata.records import (
    LEDGER_COUNTER,
    Fragment,
    LedgerRecord,
    LedgerState,
    encode_record,
    ledger_key,
)
from metadata.store import ABSENT

if TYPE_CHECKING:
    from client_host import ClientHost

LEDGERS_MAX = 6
IDLE_S_MAX = 8.0
"""Between two entries of a writer that has written all that it has to, and stays."""
Append = Callable[[Sequence[bytes]], Awaitable[range]]


class Author:
    """Does one piece of work on a client's machine."""

    def __init__(self, host: ClientHost, work: Work) -> None:
        self._host = host
        self._work = work
        self._chance = host.machine.chance
        self._name = host.machine.name
        self._left = work.appends

    async def write(self, client: Client) -> None:
        """Write a ledger, and the next one when a writer failed."""
        work = self._work
        await trio.sleep(work.start_s)
        for _ in range(LEDGERS_MAX):
            if self._host.retired:
                return
            try:
                async with AsyncExitStack() as stack:
                    with self._host.creates():
                        ledger = await stack.enter_async_context(
                            client.ledgers.create(
                                work.ensemble_size, work.write_quorum, work.ack_quorum
                            )
                        )
                    await self._write_ledger(ledger)
            except LedgerError:
                await trio.sleep(self._chance.uniform(0.1, 1.0))
                continue
            self._note_closed(ledger)
            return

    async def write_stubbornly(self, client: Client) -> None:
        """Write a ledger whose writer connects again and again, and asks no metadata."""
        await trio.sleep(self._work.start_s)
        try:
            with self._host.creates():
                record = await self._create(client)
        except (LedgerError, MetadataError):
            return
        self._begin(record.ledger_id)
        writer = StubbornWriter(record, self._host.network)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._append_for_ever, writer, record.ledger_id)
                await writer.run()
                scope.cancel()

    async def _create(self, client: Client) -> LedgerRecord:
        work, view = self._work, self._host.view
        names = sorted(record.bookie_id for record in await client.cluster.bookies())
        if len(names) < work.ensemble_size:
            raise MetadataError("too few bookies")
        record = LedgerRecord(
            ledger_id=await view.next_id(LEDGER_COUNTER),
            ensemble_size=work.ensemble_size,
            write_quorum=work.write_quorum,
            ack_quorum=work.ack_quorum,
            state=LedgerState.OPEN,
            fragments=[Fragment(0, self._chance.sample(names, work.ensemble_size))],
        )
        await view.put(ledger_key(record.ledger_id), encode_record(record), expected=ABSENT)
        return record

    def _begin(self, ledger_id: int) -> None:
        work = self._work
        self._host.history.add(
            Created(
                ledger=ledger_id,
                ensemble_size=work.ensemble_size,
                write_quorum=work.write_quorum,
                ack_quorum=work.ack_quorum,
            )
        )
        self._host.ledgers.append(ledger_id)

    async def _write_ledger(self, ledger: LedgerWriter) -> None:
        self._begin(ledger.id)
        async with trio.open_nursery() as nursery:
            for number in range(self._work.tasks):
                nursery.start_soon(self._append_in_turn, ledger, f"{self._name}.{number}")
        if self._work.ending == "die" and self._left <= 0:
            self._host.kill()
            await trio.sleep_forever()

    async def _append_in_turn(self, ledger: LedgerWriter, writer: str) -> None:
        """Append until nothing is left or the writer fails; one that stays goes on for ever."""
        while self._left > 0 or self._work.ending == "leave":
            await self._rest()
            first = ledger._driver.next_entry if self._work.tasks == 1 else None
            if not await self._append(ledger.append_many, ledger.id, writer, first):
                return

    async def _append_for_ever(self, writer: StubbornWriter, ledger_id: int) -> None:
        while True:
            await self._rest()
            await self._append(writer.append, ledger_id, self._name, writer.next_entry)

    async def _rest(self) -> None:
        think_s = self._work.think_s_max if self._left > 0 else IDLE_S_MAX
        self._left -= 1
        await trio.sleep(think_s * self._chance.random())

    async def _append(self, append: Append, ledger_id: int, writer: str, first: int | None) -> bool:
        history = self._host.history
        payloads = self._payloads()
        digests = [digest_of(payload) for payload in payloads]
        history.add(Sent(ledger=ledger_id, writer=writer, first=first, digests=digests))
        try:
            ids = await append(payloads)
        except LedgerError as failure:
            history.add(
                Refused(
                    ledger=ledger_id,
                    writer=writer,
                    count=len(payloads),
                    reason=type(failure).__name__,
                    unknown=isinstance(failure, OutcomeUnknown),
                )
            )
            return False
        told = Acknowledged(ledger=ledger_id, writer=writer, first=ids.start, digests=digests)
        history.add(told)
        self._host.on_acknowledged(ledger_id, ids)
        self._host.happened["large entries"] += len(ids) if self._work.large else 0
        return True

    def _payloads(self) -> list[bytes]:
        work, chance = self._work, self._chance
        if work.large:
            return [self._large() for _ in range(chance.randint(1, work.batch_max))]
        return [
            chance.randbytes(chance.randint(0, work.payload_max))
            for _ in range(chance.randint(1, work.batch_max))
        ]

    def _large(self) -> bytes:
        """Return as much as an entry may hold, or a little less."""
        chance = self._chance
        size = PAYLOAD_SIZE_MAX - chance.choice([0, 0, chance.randint(1, 300), 2 << 20])
        return chance.randbytes(64) + bytes(size - 64)

    def _note_closed(self, ledger: LedgerWriter) -> None:
        record = ledger.metadata
        self._host.history.add(
            Closed(
                ledger=ledger.id,
                who=self._name,
                last_entry=record.last_entry,
                length=record.length,
            )
        )
