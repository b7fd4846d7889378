"""One seed of a topic whose writers end, or pause, right at an acknowledgement.

It is the simulation of a topic (topic_simulation.py), with bounded reads at these moments, of each
kind that there is. Such a read has all that was acknowledged before it, or fails with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import trio
from client_host import ClientHost
from disks import Tail
from ending_plan import READER, EndingPlan, make_ending_plan
from history import Event
from message_events import MessagesAcknowledged, is_nowhere
from message_witness import Audience, lanes_told
from publisher import Publisher
from simulation import Outcome, run_plan, wait_until
from steps import Step
from topic_simulation import TOPIC, TopicFaults, TopicSimulation
from troubles import DEAF, DIED, PAUSED, WHOLE

from ledger_client import Client
from ledger_client.errors import LedgerError
from metadata.records import LedgerRecord

FAILED = "bounded reads that failed"
WAYS = ["messages", "messages", "back", "batches", "ranges"]
READS = 2
"""at a moment"""
PATIENCE_S = 5.0
"""for the next acknowledgement of a writer"""
LOOK_S = 0.001
"""between looks whether a writer has replaced a bookie: it has not written to the new one yet"""
READ_S = 120.0
"""A bounded read takes no longer: as long as a lease, a recovery and an undecided end."""


class EndingSimulation(TopicSimulation):
    """The cluster of one plan with a topic."""

    plan: EndingPlan

    def __init__(self, plan: EndingPlan, folder: Path) -> None:
        super().__init__(plan, folder)
        recorder = _Overhearing(self.history.add, self._note_acknowledged)
        self._publishers = {
            each.name: Publisher(TOPIC, each, plan, recorder) for each in plan.publishings
        }
        self._armed: dict[str, Callable[[ClientHost, int], None]] = {}
        """by producer: what is done at its next acknowledgement, in a ledger"""
        self._runs = count(1)
        self._reading = 0

    def _faults(self) -> EndingFaults:
        return EndingFaults(self, self.trace)

    # --- the moment of an acknowledgement ---------------------------------------------------

    async def at_acknowledgement(
        self, producer: str, act: Callable[[ClientHost], None]
    ) -> tuple[ClientHost, int] | None:
        """Act when a producer is next told of a message, before anything else happens.

        Returns its machine and the message's ledger; None if nothing came.
        """
        came = trio.Event()
        found: list[tuple[ClientHost, int]] = []

        def at_once(host: ClientHost, ledger: int) -> None:
            found.append((host, ledger))
            act(host)
            came.set()

        self._armed[producer] = at_once
        with trio.move_on_after(PATIENCE_S):
            await came.wait()
        if self._armed.get(producer) is at_once:
            del self._armed[producer]
        return found[0] if found else None

    def _note_acknowledged(self, told: MessagesAcknowledged) -> None:
        producer, *_, name = told.session.split()  # "p0 #1 on c1"
        if producer in self._armed and not is_nowhere(told.ids[-1]):
            self._armed.pop(producer)(self.clients[name], told.ids[-1].ledger_id)

    def record(self, ledger: int) -> LedgerRecord:
        """Return the record of a ledger as it is now."""
        return self._record(ledger)

    def recover(self, ledger: int) -> None:
        """Begin to recover a ledger where readers are."""
        host = self.clients[READER]

        async def recover(client: Client) -> None:
            await host.recover(ledger, client)

        host.do(recover)

    # --- bounded reads ----------------------------------------------------------------------

    def read_to_the_end(self, reads: int = READS) -> None:
        """Begin bounded reads, which are to have all that is acknowledged by now."""
        host = self.clients[READER]
        for _ in range(reads):
            way = host.machine.chance.choice(WAYS)
            audience = Audience(self.history, TOPIC, f"{READER} {way} #{next(self._runs)}")
            audience.begun(reverse=way == "back", whole=True)
            self._begin_read(host, audience, way)

    def _begin_read(self, host: ClientHost, audience: Audience, way: str) -> None:
        self._reading += 1

        async def read(client: Client) -> None:
            try:
                with trio.fail_after(READ_S):
                    await _read(client, audience, way)
                self.happened[WHOLE] += 1
            except LedgerError as failure:
                self.note(f"{audience.reader}: {type(failure).__name__}")
                self.happened[FAILED] += 1
            except trio.TooSlowError:
                self._violate(0, 0, f"{audience.reader} does not come to an end")
            self._reading -= 1

        host.do(read)

    # --- the end ----------------------------------------------------------------------------

    async def _settle(self) -> None:
        await wait_until(self._is_read, trio.current_time() + READ_S + 1)
        await super()._settle()

    async def _is_read(self) -> bool:
        return not self._reading


async def _read(client: Client, audience: Audience, way: str) -> None:
    if way == "ranges":
        await audience.read_ranges(client._context)
        return
    async with client.reader(TOPIC, reverse=way == "back") as reader:
        await (audience.read_batches if way == "batches" else audience.read)(reader)


class _Overhearing:
    """A recorder that reports acknowledgements at once."""

    def __init__(
        self, add: Callable[[Event], None], on_told: Callable[[MessagesAcknowledged], None]
    ) -> None:
        self._add = add
        self._on_told = on_told

    def add(self, event: Event) -> None:
        """Record *event*."""
        self._add(event)
        if isinstance(event, MessagesAcknowledged):
            self._on_told(event)


class EndingFaults(TopicFaults):
    """Troubles of writers at an acknowledgement."""

    def __init__(self, simulation: EndingSimulation, trace: list[str]) -> None:
        super().__init__(simulation, trace)
        self._endings = simulation
        self._does |= {"die": self._die, "pause": self._pause, "go deaf": self._go_deaf}

    async def _die(self, step: Step) -> None:
        """Kill a writer between an acknowledgement and its next report to bookies."""
        endings = self._endings

        def act(host: ClientHost) -> None:
            host.kill()
            endings.read_to_the_end()

        if await endings.at_acknowledgement(step.target, act) is not None:
            endings.happened[DIED] += 1

    async def _pause(self, step: Step) -> None:
        """Pause a writer there, maybe for longer than its lease lasts."""
        endings = self._endings

        def act(host: ClientHost) -> None:
            host.machine.freeze()
            endings.read_to_the_end()

        found = await endings.at_acknowledgement(step.target, act)
        if found is None:
            return
        endings.happened[PAUSED] += 1
        await trio.sleep(step.span_s)
        found[0].machine.thaw()
        endings.read_to_the_end()

    async def _go_deaf(self, step: Step) -> None:
        """A writer hears no answer of a bookie, replaces it, and dies before the new one has much.

        Readers have meanwhile what both of the bookies stored. Whoever recovers the ledger then
        hears of the new bookie first.
        """
        endings = self._endings
        found = await endings.at_acknowledgement(step.target, lambda _host: None)
        if found is None:
            return
        host, ledger = found
        first, *_, last = endings.record(ledger).fragments[-1].bookies
        name, network = host.machine.name, endings.network
        network.cut(last, name)
        await trio.sleep(step.span_s)
        endings.read_to_the_end()
        with trio.move_on_after(PATIENCE_S):
            while last in endings.record(ledger).fragments[-1].bookies:  # noqa: ASYNC110
                await trio.sleep(LOOK_S)
            endings.happened[DEAF] += 1
        host.kill()
        endings.bookies[last].kill(Tail.CLEAN, silently=False)
        network.mend(last, name)
        network.slow((first, READER), 1.0)
        endings.recover(ledger)
        endings.read_to_the_end()
        await trio.sleep(2.0)
        network.slow((first, READER), 0.0)
        endings.bookies[last].start()
        endings.read_to_the_end()


def simulate_ending(seed: int, *, only: Sequence[int] | None = None) -> Outcome:
    """Run the simulation of *seed*, with all its steps or with some *only*."""
    with lanes_told():
        return run_plan(make_ending_plan(seed), EndingSimulation, only=only)
