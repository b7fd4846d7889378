"""One seed of a topic: producers, readers and rivals under faults, then healed, then looked at.

    plan ─► steps ─► heal ─► lanes closed ─► repair ─► all read, there and back ─► check

It is the simulation of ledgers (simulation.py), which sees every ledger of the topic too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import trio
from client_host import ClientHost
from faults import Faults
from history import Created
from listener import Listener, acknowledged
from message_events import TopicCut, TopicMade
from message_witness import lanes_told
from publisher import Publisher
from simulation import HEALED_S, Outcome, Simulation, run_plan, wait_until
from steps import Step
from topic_audit import tell_ledgers, tell_row
from topic_plan import TopicPlan, make_topic_plan
from troubles import READ_ERRORS

from ledger_client import Client
from ledger_client.errors import LedgerError
from ledger_client.topics.lanes.lane_end import close_lane
from metadata.records import LEDGERS, LedgerRecord, decode_ledger, ledger_key
from metadata.store import Versioned
from metadata.topics import (
    LANE_LEDGERS,
    LANES,
    TopicRecord,
    lane_of,
    last_number,
    topic_prefix,
)

TOPIC = "shop/orders"
PAUSE_S = 0.5


class TopicSimulation(Simulation):
    """The cluster of one plan with a topic."""

    plan: TopicPlan

    def __init__(self, plan: TopicPlan, folder: Path) -> None:
        super().__init__(plan, folder)
        self._known: set[int] = set()
        self._topic: TopicRecord | None = None
        self._publishers = {
            each.name: Publisher(TOPIC, each, plan, self.history) for each in plan.publishings
        }
        may_lose = READ_ERRORS in plan.troubles.kinds
        self._listener = Listener(TOPIC, self.history, may_lose=may_lose)

    def _faults(self) -> Faults:
        return TopicFaults(self, self.trace)

    async def _begin_work(self) -> None:
        made = trio.Event()

        async def make(client: Client) -> None:
            while self._topic is None:
                try:
                    self._topic = await self._make(client)
                except LedgerError:
                    await trio.sleep(PAUSE_S)
            made.set()

        self.auditor.do(make)
        with trio.fail_after(HEALED_S):  # the auditor's process may have ended
            await made.wait()
        self.history.add(TopicMade(topic=TOPIC, ordered=self.plan.ordered))
        for publisher in self._publishers.values():
            self._start(publisher, publisher.publishing.hosts[0], publisher.publishing.start_s)

    async def _make(self, client: Client) -> TopicRecord:
        plan = self.plan
        return await client.topics.create(
            TOPIC,
            plan.partitions,
            replication=plan.replication,
            ack_quorum=plan.ack_quorum,
            order="event-time" if plan.ordered else "none",
            compression=plan.compression,
            roll=plan.roll,
            retention=plan.retention,
        )

    def _start(
        self, publisher: Publisher, name: str, after_s: float = 0.0, *, takes: bool = False
    ) -> None:
        host = self.clients[name]

        async def run(client: Client) -> None:
            await trio.sleep(after_s)
            await publisher.run(host, client, takes=takes)

        host.serve(run)

    # --- what befalls it ------------------------------------------------------------------

    def move(self, name: str) -> None:
        """Start a producer on another machine, wherever it may still run."""
        publisher = self._publishers.get(name)
        if publisher is not None:
            self._start(publisher, publisher.next_host, takes=True)

    def purge(self, host: ClientHost) -> None:
        """Remove what is closed by now."""

        async def purge(client: Client) -> None:
            try:
                await client.topics.purge(TOPIC)
            except LedgerError:
                return

        host.do(purge)

    def grow(self, host: ClientHost) -> None:
        """Add a partition, if the topic has any."""

        async def grow(client: Client) -> None:
            try:
                topic = await client.topics.info(TOPIC)
                if topic.partitions:
                    await client.topics.alter(TOPIC, partitions=topic.partitions + 1)
                    self.happened["growth"] += 1
            except LedgerError:
                return

        host.do(grow)

    def truncate(self, host: ClientHost) -> None:
        """Delete what lies in a lane from some acknowledged message on."""

        async def truncate(client: Client) -> None:
            chance = host.machine.chance
            ids = acknowledged(self.history)
            if not ids:
                return
            at, force = chance.choice(ids), chance.random() < 0.7
            self.history.add(TopicCut(topic=TOPIC, start=at))
            try:
                went = await client.topics.truncate(TOPIC, at, force=force)
            except LedgerError as failure:
                self.note(f"truncation at {at}: {type(failure).__name__}")
                return
            self.history.add(TopicCut(topic=TOPIC, start=at, done=True))
            self.happened["truncation"] += went.messages

        host.do(truncate)

    def read(self, host: ClientHost) -> None:
        """Read the topic on a machine."""

        async def read(client: Client) -> None:
            await self._listener.read(host, client)

        host.do(read)

    # --- the end --------------------------------------------------------------------------

    async def _settle(self) -> None:
        if not await wait_until(self._is_sent, trio.current_time() + HEALED_S):
            self._violate(0, 0, "producers do not come to an end")
        await self._audited("lanes are not closed", self._close_lanes)
        await super()._settle()
        await self._audited("the topic cannot be read", self._read_all)

    async def _is_sent(self) -> bool:
        return not any(client.serves for client in self.clients.values())

    async def _audited(self, what: str, work: Callable[[Client], Awaitable[None]]) -> None:
        """Run *work* as the auditor, repeatedly until it succeeds, at most for HEALED_S."""
        done, last = trio.Event(), ""

        async def insist(client: Client) -> None:
            nonlocal last
            while True:
                try:
                    await work(client)
                except LedgerError as failure:
                    last = f"{type(failure).__name__}: {failure}"
                    await trio.sleep(PAUSE_S)
                else:
                    done.set()
                    return

        self.auditor.do(insist)
        with trio.move_on_after(HEALED_S):
            await done.wait()
        if not done.is_set():
            self._violate(0, 0, f"{what}: {last}")

    async def _close_lanes(self, client: Client) -> None:
        assert self._topic is not None
        for key in sorted(self.metadata.values):
            if key.startswith(topic_prefix(LANES, self._topic.uid)):
                await close_lane(client._context.ledgers, self._topic, *lane_of(key))

    def _readable(self) -> list[LedgerRecord]:
        return []  # readers of the topic read them, and know what was sent

    async def _read_all(self, client: Client) -> None:
        assert self._topic is not None
        await tell_ledgers(self.history, TOPIC, self._topic.uid, client)
        await self._listener.read_all(client)

    # --- what metadata hold ---------------------------------------------------------------

    def _note_record(self, key: str, found: Versioned | None) -> None:
        if key.startswith(LEDGERS):
            self._note_ledger(key, found)
        super()._note_record(key, found)
        uid = -1 if self._topic is None else self._topic.uid
        if key.startswith(topic_prefix(LANE_LEDGERS, max(uid, 0))):
            tell_row(self.history, TOPIC, key, found)

    def _note_ledger(self, key: str, found: Versioned | None) -> None:
        """Take note of a ledger that a lane made, or that is gone."""
        ledger = last_number(key)
        if found is None:
            self.ledgers.remove(ledger)
        elif ledger not in self._known:
            self._known.add(ledger)
            self.ledgers.append(ledger)
            record = decode_ledger(key, found.value)
            self.history.add(
                Created(
                    ledger=ledger,
                    ensemble_size=record.ensemble_size,
                    write_quorum=record.write_quorum,
                    ack_quorum=record.ack_quorum,
                )
            )

    def _is_open(self, ledger: int) -> bool:
        return ledger_key(ledger) in self.metadata.values and super()._is_open(ledger)


class TopicFaults(Faults):
    """Troubles of a topic."""

    def __init__(self, simulation: TopicSimulation, trace: list[str]) -> None:
        super().__init__(simulation, trace)
        self._topics = simulation
        self._does |= {
            "kill client": self._kill_client,
            "move": self._move,
            "purge": self._purge,
            "grow": self._grow,
            "truncate": self._truncate,
            "read": self._read_topic,
        }

    async def _kill_client(self, step: Step) -> None:
        self._topics.clients[step.target].kill()

    async def _move(self, step: Step) -> None:
        self._topics.move(step.target)

    async def _purge(self, step: Step) -> None:
        self._topics.purge(self._topics.clients[step.target])

    async def _grow(self, step: Step) -> None:
        self._topics.grow(self._topics.clients[step.target])

    async def _truncate(self, step: Step) -> None:
        self._topics.truncate(self._topics.clients[step.target])

    async def _read_topic(self, step: Step) -> None:
        self._topics.read(self._topics.clients[step.target])


def simulate_topic(seed: int, *, only: Sequence[int] | None = None) -> Outcome:
    """Run the simulation of *seed*, with all its steps or with some *only*."""
    with lanes_told():
        return run_plan(make_topic_plan(seed), TopicSimulation, only=only)
