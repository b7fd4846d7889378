"""One seed of a topic with timestamps: producers, readers in their order, takers of timestamps.

    plan ─► steps ─► heal ─► ticks go on ─► some more messages ─► all closed ─► replays ─► check

It is the simulation of a topic (topic_simulation.py), whose readers in the order of arrival read it
too. Real bookies hand out timestamps and make ticks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import trio
from client_host import ClientHost
from faults import Faults
from message_witness import Draft, Teller, lanes_told
from simulation import HEALED_S, Outcome, run_plan, wait_until
from steps import Step
from time_events import TopicChanged
from time_plan import DURATION_S, TimePlan, make_time_plan
from time_roles import Follower, Taker
from time_witness import TickWitness, TimedAudience, TimeTaker, hold
from topic_simulation import TOPIC, TopicFaults, TopicSimulation

from ledger_client import Client
from ledger_client.errors import LedgerError, MessagesLost
from metadata.listings import leader
from metadata.store import Versioned
from metadata.topics import TOPICS, TopicRecord, decode_topic

ON_S = 10.0
"""After the last fault ticks go on within this time, and so do readers."""
PATIENCE_S = 20.0
LATE_MESSAGES = 3
SIZE = 100_000


class TimeSimulation(TopicSimulation):
    """The cluster of one plan with a topic whose messages have timestamps."""

    plan: TimePlan
    duration_s = DURATION_S

    def __init__(self, plan: TimePlan, folder: Path) -> None:
        super().__init__(plan, folder)
        self._followers = [Follower(TOPIC, each, plan.seed, self.history) for each in plan.readings]
        self._takers = [Taker(TOPIC, each, plan.seed, self.history) for each in plan.takings]
        self._runs = count(1)
        self._changes: set[int] = set()

    def _faults(self) -> Faults:
        return TimeFaults(self, self.trace)

    async def _make(self, client: Client) -> TopicRecord:
        plan = self.plan
        return await client.topics.create(
            TOPIC,
            plan.partitions,
            replication=plan.replication,
            ack_quorum=plan.ack_quorum,
            order="event-time" if plan.ordered else "none",
            timesync=True,
            roll=plan.roll,
            retention=plan.retention,
        )

    async def _begin_work(self) -> None:
        await super()._begin_work()
        for follower in self._followers:
            self.clients[follower.reading.host].serve(follower.run)
        for taker in self._takers:
            host = self.clients[taker.taking.host]
            host.serve(partial(taker.run, host))

    def replay(self, host: ClientHost) -> None:
        """Read what is there by timestamp, from the beginning or from now on, and no more."""

        async def replay(client: Client) -> None:
            with trio.move_on_after(PATIENCE_S):
                try:
                    await self._replay(client, arrow=host.machine.chance.random() < 0.3)
                except LedgerError:
                    return

        host.do(replay)

    async def _replay(self, client: Client, *, arrow: bool) -> None:
        audience = TimedAudience(self.history, TOPIC, f"replay #{next(self._runs)}")
        audience.begun(follows=False)
        await audience.read(client, follow=False, arrow=arrow, size=SIZE)

    def alter(self, host: ClientHost) -> None:
        """Change a setting of the topic."""

        async def alter(client: Client) -> None:
            roll = self.plan.roll
            age_s = roll.age_s + host.machine.chance.random()
            with suppress(LedgerError):
                await client.topics.alter(TOPIC, roll=msgspec.structs.replace(roll, age_s=age_s))

        host.do(alter)

    def make_topic(self, host: ClientHost) -> None:
        """Create another topic, use it and delete it."""
        topic = f"shop/other{next(self._runs)}"

        async def make(client: Client) -> None:
            with trio.move_on_after(PATIENCE_S), suppress(LedgerError):
                await client.topics.create(topic, 1, timesync=True, replication=2, ack_quorum=2)
                async with client.producer(topic) as producer:
                    await producer.send(b"one")
                async with client.reader(topic, order="timestamp") as reader:
                    if len(await reader.next_messages()) != 1:
                        self._violate(27, 0, f"{topic} was read without its message")
                await client.topics.delete(topic, force=True)  # there are no groups here

        host.do(make)

    async def leader(self) -> str:
        """Return the bookie that makes ticks now, "" if none does."""
        found = await leader(self.metadata.observer)
        return "" if found is None else found.bookie_id

    # --- the end --------------------------------------------------------------------------

    async def _settle(self) -> None:
        for follower in self._followers:
            follower.stay()
        await self._go_on()
        if not await wait_until(self._is_sent, trio.current_time() + HEALED_S):
            self._violate(0, 0, "producers do not come to an end")
        for number in range(LATE_MESSAGES):
            await self._audited("nothing can be sent", partial(self._send, number))
            if not await wait_until(self._has_come, trio.current_time() + ON_S):
                behind = [each.reading.name for each in self._followers if each.misses_some()]
                self._violate(28, 0, f"{behind} did not get all messages within {ON_S} s")
        hosts = {each.reading.host for each in self._followers}
        for name in sorted(hosts | {each.taking.host for each in self._takers}):
            self.clients[name].retire()
        await super()._settle()
        await self._audited("the topic cannot be read", self._hold)
        for arrow in (False, True):
            await self._audited("nothing is replayed", partial(self._replay_once, arrow=arrow))

    async def _go_on(self) -> None:
        """See that ticks go on, whoever produces."""
        begun_at = trio.current_time()
        await self._audited("ticks do not go on", self._see_a_tick)
        took_s = trio.current_time() - begun_at
        if took_s > ON_S:
            self._violate(28, 0, f"ticks went on {took_s:.1f} s after the last fault")

    async def _see_a_tick(self, client: Client) -> None:
        number = next(self._runs)
        record, _ = await client._context.catalogue.get(TOPIC)
        after = await TimeTaker(self.history, f"auditor #{number}").take(client)
        witness = TickWitness(self.history, client, record, f"auditor #{number}")
        await witness.see_newest(after)

    async def _is_sent(self) -> bool:
        hosts = {name for each in self.plan.publishings for name in each.hosts}
        return not any(self.clients[name].serves for name in hosts)

    async def _has_come(self) -> bool:
        return not any(follower.misses_some() for follower in self._followers)

    async def _send(self, number: int, client: Client) -> None:
        """Send a message to each partition."""
        teller = Teller(self.history, TOPIC, f"late #{number}", "")
        record, _ = await client._context.catalogue.get(TOPIC)
        for partition in record.partition_indexes:
            async with client.producer(TOPIC, partition=partition) as producer:
                moment = trio.current_time()
                draft = Draft(
                    b"late/%d/%d/%f" % (number, partition, moment),
                    event_time=1 << 60 if self.plan.ordered else None,
                )
                for failure in await teller.send(producer, [draft], "w"):
                    if failure is not None:
                        raise failure

    async def _hold(self, client: Client) -> None:
        await hold(self.history, client, TOPIC)

    async def _replay_once(self, client: Client, *, arrow: bool) -> None:
        with suppress(MessagesLost):  # the history knows
            await self._replay(client, arrow=arrow)

    # --- what metadata hold ---------------------------------------------------------------

    def _note_record(self, key: str, found: Versioned | None) -> None:
        super()._note_record(key, found)
        if key.startswith(TOPICS) and found is not None:
            self._note_topic(decode_topic(key, found.value))

    def _note_topic(self, record: TopicRecord) -> None:
        """Take note of a change of a topic, once."""
        for kind, timestamp in (
            ("created", record.created_timestamp),
            ("altered", record.altered_timestamp),
            ("deleted", record.deleted_timestamp),
        ):
            if timestamp and timestamp not in self._changes:
                self._changes.add(timestamp)
                changed = TopicChanged(topic=record.name, kind=kind, timestamp=timestamp)
                self.history.add(changed)


class TimeFaults(TopicFaults):
    """Troubles of a topic with timestamps."""

    def __init__(self, simulation: TimeSimulation, trace: list[str]) -> None:
        super().__init__(simulation, trace)
        self._times = simulation
        self._does |= {
            "leader away": self._leader_away,
            "replay": self._replay,
            "alter": self._alter,
            "make topic": self._make_topic,
        }

    async def _replay(self, step: Step) -> None:
        self._times.replay(self._times.clients[step.target])

    async def _alter(self, step: Step) -> None:
        self._times.alter(self._times.clients[step.target])

    async def _make_topic(self, step: Step) -> None:
        self._times.make_topic(self._times.clients[step.target])

    async def _leader_away(self, step: Step) -> None:
        """The bookie that makes ticks is away, in one of several ways."""
        name = await self._times.leader()
        if not name:
            return
        detail = "clean" if step.detail == "crash" else ""
        self._times.note(f"the leader is {name}: {step.detail}")
        await self._does[step.detail](
            Step(step.number, step.at_s, step.detail, name, step.span_s, detail)
        )


def simulate_time(seed: int, *, only: Sequence[int] | None = None) -> Outcome:
    """Run the simulation of *seed*, with all its steps or with some *only*."""
    with lanes_told():
        return run_plan(make_time_plan(seed), TimeSimulation, only=only)
