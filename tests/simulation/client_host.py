"""A machine with a client on it, and what applications do there: write, read, recover.

Everything that is asked and answered goes into the history.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count

import trio
from author import Author
from cluster_metadata import ClusterMetadata
from history import (
    Absent,
    History,
    ReadAsked,
    ReadBack,
    ReadDone,
    Recovered,
    digest_of,
)
from machines import MACHINE, Machine
from metadata_view import MetadataView, Outages
from network import Network
from plan import Work

from ledger_client import Client, Options
from ledger_client.background import Background
from ledger_client.cluster.operations.rebalance import Rebalancer
from ledger_client.errors import EntryLost, LedgerError, NoSuchEntry
from ledger_client.ledgers.entries import Entry
from ledger_client.ledgers.reader import LedgerReader
from ledger_client.topics.context import TopicContext
from metadata.calls import ScrubNow
from metadata.errors import MetadataError

RESTART_S = 0.3
PATIENCE_S = 20.0
WHOLE_S = 60.0
"""For a whole ledger, which may have many large entries."""
OPTIONS = Options(
    append_timeout_s=15.0,
    close_timeout_s=10.0,
    read_timeout_s=4.0,
    request_timeout_s=3.0,
    replace_timeout_s=4.0,
    poll_s=1.0,
)


class ClientHost:
    """A machine and its client. Its process may be killed, and comes back without memory.

    Attributes:
        ledgers: what was created, by anybody; shared by all clients.
        is_open: tells whether a ledger is still open.
        happened: counts what had an effect; shared by all.
        retired: True once nobody here is to begin another ledger.
        creating: how many ledgers are being created here.
        on_acknowledged: called with a ledger and entries when its writer was told of them.

    *on_read* is called so when a reader got them. With *may_lose* disks fail to read what they
    have, so readers may be told that entries are lost.
    """

    def __init__(
        self,
        name: str,
        *,
        network: Network,
        metadata: ClusterMetadata,
        outages: Outages,
        history: History,
        ledgers: list[int],
        chance: random.Random,
        on_acknowledged: Callable[[int, range], None],
        on_read: Callable[[int, range], None],
        may_lose: bool,
        is_open: Callable[[int], bool],
        happened: Counter[str],
        options: Options = OPTIONS,
    ) -> None:
        self.machine = Machine(name, chance)
        self.machine.owner = self
        self.history = history
        self.ledgers = ledgers
        self.failures: list[BaseException] = []
        self.retired = False
        self.creating = 0
        self.on_acknowledged = on_acknowledged
        self._on_read = on_read
        self._may_lose = may_lose
        self.is_open = is_open
        self.happened = happened
        self.network = network
        self._options = options
        self._metadata = metadata
        self.view = MetadataView(metadata.observer, self.machine, outages)
        self._numbers = count()
        self._reads = count(1)
        self._scope = trio.CancelScope()
        self._client: Client | None = None
        self._nursery: trio.Nursery | None = None
        self._services: dict[int, Callable[[Client], Awaitable[None]]] = {}
        self._work: list[Callable[[Client], Awaitable[None]]] = []

    async def run(self) -> None:
        """Keep the process running."""
        while True:
            self.network.forget(self.machine)
            await self._live()
            await trio.sleep(RESTART_S)

    async def _live(self) -> None:
        self.machine.alive = True
        self._scope = trio.CancelScope()
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._process)
        except BaseExceptionGroup as group:
            failures, others = group.split(Exception)
            if failures is not None and self.machine.alive:
                self.failures.append(failures)
            if others is not None:
                raise others from None
        finally:
            self._client = self._nursery = None

    async def _process(self) -> None:
        MACHINE.set(self.machine)
        async with (
            self._metadata.at_client() as self.view.store,
            Background() as background,
            trio.open_nursery() as nursery,
        ):
            self._client = Client(
                TopicContext(
                    self.view,
                    background,
                    options=self._options,
                    open_stream=self.network.open_stream,
                    chance=self.machine.chance,
                )
            )
            self._nursery = nursery
            for number in list(self._services):
                self._start(partial(self._serve, number))
            for work in self._work:
                self._start(work)
            self._work.clear()
            await trio.sleep_forever()

    def kill(self) -> None:
        """End the process at once."""
        self.machine.alive = False
        self._client = self._nursery = None
        self.machine.thaw()
        self.network.leave(self.machine, silently=False)
        self._scope.cancel()

    def retire(self) -> None:
        """End the process, and what it serves: the next one has nothing to do."""
        self._services.clear()
        self.kill()

    def do(self, work: Callable[[Client], Awaitable[None]]) -> None:
        """Start *work* in the process, now or when it runs."""
        if self._nursery is None:
            self._work.append(work)
        else:
            self._start(work)

    def serve(self, work: Callable[[Client], Awaitable[None]]) -> None:
        """As do(); when the process is killed meanwhile, the next one does it from the start."""
        number = next(self._numbers)
        self._services[number] = work
        if self._nursery is not None:
            self._start(partial(self._serve, number))

    @property
    def serves(self) -> bool:
        """True while a task of serve() runs."""
        return bool(self._services)

    async def _serve(self, number: int, client: Client) -> None:
        await self._services[number](client)
        self._services.pop(number, None)

    def _start(self, work: Callable[[Client], Awaitable[None]]) -> None:
        assert self._nursery is not None
        assert self._client is not None
        # The task must belong to this machine, whoever starts it.
        self._nursery.start_soon(self._enter, work, self._client)

    async def _enter(self, work: Callable[[Client], Awaitable[None]], client: Client) -> None:
        MACHINE.set(self.machine)
        await work(client)

    @contextmanager
    def creates(self) -> Iterator[None]:
        """Count a ledger as being created here while the block runs."""
        self.creating += 1
        try:
            yield
        finally:
            self.creating -= 1

    # --- reading and recovering --------------------------------------------------------

    async def read(self, client: Client) -> None:
        """Read a ledger: all that is confirmed, or follow it for a while."""
        if not self.ledgers:
            return
        ledger_id = self.machine.chance.choice(self.ledgers)
        follows = self.machine.chance.random() < 0.4
        with trio.move_on_after(PATIENCE_S):
            try:
                async with client.ledgers.open(ledger_id, recover=False) as reader:
                    await (self._follow if follows else self._read_all)(reader)
            except LedgerError:
                return

    async def read_whole(
        self, ledger_id: int, client: Client, *, last: int | None = None, attempts: int = 1
    ) -> bool:
        """Read a ledger up to *last*, None: all that is confirmed; False if no attempt worked."""
        for _ in range(attempts):
            with trio.move_on_after(WHOLE_S), suppress(LedgerError):
                async with client.ledgers.open(ledger_id, recover=False) as reader:
                    end = reader.last_confirmed if last is None else last
                    if end >= 0:
                        await self._read_to(reader, 0, end)
                    return True
            if attempts > 1:
                await trio.sleep(RESTART_S)
        return False

    async def _read_all(self, reader: LedgerReader) -> None:
        last = reader.last_confirmed
        first = self.machine.chance.choice([0, self.machine.chance.randint(0, max(last, 0))])
        if first <= last:
            await self._read_to(reader, first, last)

    async def _read_to(self, reader: LedgerReader, first: int, last: int) -> None:
        with self._asks(reader, first, last) as name:
            self._note(reader, name, await reader.read(first, last))

    async def _follow(self, reader: LedgerReader) -> None:
        with self._asks(reader, 0, None) as name:
            async for entry in reader.follow(0):
                self._note(reader, name, [entry])

    @contextmanager
    def _asks(self, reader: LedgerReader, first: int, last: int | None) -> Iterator[str]:
        """Record a read, whose name this yields, and its end, or what it was told is not there."""
        ledger, name = reader.id, f"{self.machine.name} #{next(self._reads)}"
        self.history.add(ReadAsked(ledger=ledger, reader=name, first=first, last=last))
        try:
            yield name
        except (NoSuchEntry, EntryLost) as gone:
            until = reader.last_confirmed if last is None else last
            is_due = isinstance(gone, NoSuchEntry) or not self._may_lose
            if is_due and gone.entry_id <= until:
                self.history.add(Absent(ledger=ledger, reader=name, entry=gone.entry_id))
            raise
        self.history.add(ReadDone(ledger=ledger, reader=name))

    def _note(self, reader: LedgerReader, name: str, entries: Iterable[Entry]) -> None:
        """Record entries that were read, as one event for each run of consecutive ids."""
        runs: list[ReadBack] = []
        for entry in entries:
            if not runs or entry.entry_id != runs[-1].first + len(runs[-1].digests):
                first = entry.entry_id
                runs.append(ReadBack(ledger=reader.id, reader=name, first=first, digests=[]))
            runs[-1].digests.append(digest_of(entry.payload))
        for run in runs:
            self.history.add(run)
            self._on_read(run.ledger, range(run.first, run.first + len(run.digests)))

    async def recover_any(self, client: Client) -> None:
        """Recover some ledger, an open one as a rule, at most a few times."""
        chance = self.machine.chance
        ledgers = [each for each in self.ledgers if self.is_open(each)]
        if not ledgers or chance.random() < 0.2:
            ledgers = self.ledgers
        if ledgers:
            await self.recover(chance.choice(ledgers), client)

    async def recover(self, ledger_id: int, client: Client, *, attempts: int = 3) -> bool:
        """Recover a ledger; False when that did not work in any attempt."""
        for _ in range(attempts):
            with trio.move_on_after(PATIENCE_S):
                try:
                    found = await client.ledgers.recover(ledger_id)
                except LedgerError:
                    pass
                else:
                    self.history.add(
                        Recovered(
                            ledger=ledger_id,
                            who=self.machine.name,
                            last_entry=found.last_entry,
                            length=found.length,
                        )
                    )
                    return True
            await trio.sleep(self.machine.chance.uniform(0.1, 0.5))
        return False

    async def level(self, client: Client) -> None:
        """Move closed ledgers until bookies hold about the same, as `quire cluster rebalance`."""
        rebalancer = Rebalancer(client._context.ledgers, self.view, rate=math.inf, tolerance=0.01)
        with trio.move_on_after(PATIENCE_S):
            try:
                for move in (await rebalancer.look()).moves:
                    made = await rebalancer.make(move, on_copied=lambda _size: None)
                    self.happened["levelling"] += made
            except (LedgerError, MetadataError):
                return

    async def scrub(self, bookie_id: str, client: Client) -> bool:
        """Scrub a bookie; False when that did not work in any attempt."""
        for _ in range(10):
            try:
                await client._context.ledgers.call(bookie_id, ScrubNow())
            except LedgerError:
                await trio.sleep(0.5)
            else:
                return True
        return False

    def start_writing(self, work: Work) -> None:
        """Begin a piece of work in the process."""
        author = Author(self, work)
        self.do(author.write_stubbornly if work.stubborn else author.write)
