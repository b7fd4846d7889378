"""One seed of a group: members under faults, then healed, then looked at.

    plan ─► steps ─► heal ─► all comes ─► some more, one by one ─► the topic's end ─► check

It is the simulation of a topic (topic_simulation.py), with consumers on machines of their own. Real
bookies coordinate the group; members report by the simulated network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import trio
from consumption import Consumption
from dead_letter_audit import close_letters, read_letters
from faults import Faults
from group_events import Buried, Done, GroupSettled, LagSeen
from group_facts import unit
from group_plan import DURATION_S, GroupPlan, make_group_plan
from group_witness import dead_letters_told, members_told, tell_member, tell_progress
from message_events import MessagesAcknowledged, is_nowhere
from message_witness import Draft, Teller, lanes_told
from replaced import replaced
from simulation import Outcome, run_plan
from steps import Step
from topic_simulation import TOPIC, TopicFaults, TopicSimulation

from ledger_client import Client
from ledger_client.groups import heartbeats
from ledger_client.groups.options import TopicPartition
from ledger_client.message_id import MessageId
from metadata.groups.rows import (
    GROUP_MEMBERS,
    PROGRESS,
    SLOTS,
    decode_member,
    members_prefix,
    parts_of,
)
from metadata.listings import leader
from metadata.store import Versioned
from metadata.topics import decode_topic, topic_key

GROUP = "billing"
DEAD = f"shop/{GROUP}.dead"
WHOLE_S = 60.0
"""After all faults are over, a group has got everything within so long."""
SHARED_GRACE_S = 20.0
"""Until what members had that are gone is the others'; then nobody may lag any more."""
LOOK_S = 1.0
LATE_MESSAGES = 4
LATE_PAUSE_S = 3.0


class GroupSimulation(TopicSimulation):
    """The cluster of one plan with a topic, and a group that consumes it."""

    plan: GroupPlan
    duration_s = DURATION_S

    def __init__(self, plan: GroupPlan, folder: Path) -> None:
        super().__init__(plan, folder)
        self.consumptions = {
            each.name: Consumption(TOPIC, GROUP, each, plan, self.history)
            for each in plan.consumings
        }
        self._newest = 0
        self._acknowledged: set[MessageId] = set()
        self._done: set[MessageId] = set()
        self._looked_at = 0
        self._grace_s = SHARED_GRACE_S if plan.shared else 0.0

    def _faults(self) -> Faults:
        return GroupFaults(self, self.trace)

    async def run(self) -> Outcome:
        with members_told(self.history, trio.current_time), dead_letters_told(self.history):
            return await super().run()

    async def _begin_work(self) -> None:
        await super()._begin_work()
        for consumption in self.consumptions.values():
            self._begin_consuming(consumption)

    def _begin_consuming(self, consumption: Consumption) -> None:
        host = self.clients[consumption.consuming.host]

        async def run(client: Client) -> None:
            await trio.sleep_until(consumption.consuming.start_s)
            await consumption.run(host, client)

        host.serve(run)

    async def leader(self) -> str:
        """Return the bookie that coordinates groups now, "" if none does."""
        found = await leader(self.metadata.observer)
        return "" if found is None else found.bookie_id

    # --- the end --------------------------------------------------------------------------

    async def _settle(self) -> None:
        for consumption in self.consumptions.values():
            consumption.come_back()
            consumption.hurry()
        is_whole = await self._all_comes()
        for number in range(LATE_MESSAGES if is_whole else 0):
            await self._audited("nothing can be sent", partial(self._send, number))
            await self._all_comes(LATE_PAUSE_S)
        if not await self._is_calm():
            self._violate(0, 0, "the group does not come to rest")
        parts = [TopicPartition(TOPIC, each) for each in self._partitions()]
        self.history.add(GroupSettled(group=GROUP, parts=parts))
        for name in {each.consuming.host for each in self.consumptions.values()}:
            self.clients[name].retire()
        await super()._settle()

    async def _close_lanes(self, client: Client) -> None:
        await super()._close_lanes(client)
        await close_letters(client, DEAD)

    async def _read_all(self, client: Client) -> None:
        await super()._read_all(client)
        await read_letters(client, DEAD, self.history, GROUP)

    async def _is_sent(self) -> bool:
        hosts = {name for each in self.plan.publishings for name in each.hosts}
        return not any(self.clients[name].serves for name in hosts)

    async def _all_comes(self, least_s: float = 0.0) -> bool:
        """Look at the group until it has got everything, for *least_s* in any case.

        False if it has not after WHOLE_S.
        """
        begun = trio.current_time()
        while trio.current_time() < begun + WHOLE_S:
            await trio.sleep(LOOK_S)
            is_whole = self._look_at_lags()
            if is_whole and await self._is_sent() and trio.current_time() >= begun + least_s:
                return True
        return False

    async def _is_calm(self) -> bool:
        """Wait until no row changes any more; False if that does not happen in WHOLE_S."""
        over = trio.current_time() + WHOLE_S
        while trio.current_time() < over:
            before = self._newest
            await trio.sleep(10 * LOOK_S)
            if before == self._newest:
                return True
        return False

    def _look_at_lags(self) -> bool:
        """Record which members lag; return True if everything was done."""
        for event in self.history.events[self._looked_at :]:
            if isinstance(event, MessagesAcknowledged):
                self._acknowledged |= {each for each in event.ids if not is_nowhere(each)}
            elif isinstance(event, Done):
                self._done |= set(event.ids)
            elif isinstance(event, Buried):
                self._done.add(event.id)
        self._looked_at = len(self.history.events)
        missing = self._acknowledged - self._done
        owners = self._owners()
        for partition in self._partitions():
            part = TopicPartition(TOPIC, partition)
            count = sum(each.partition == partition for each in missing)
            if part in owners and trio.current_time() > DURATION_S + self._grace_s:
                self.history.add(LagSeen(group=GROUP, part=part, member=owners[part], count=count))
        return not missing

    def _owners(self) -> dict[TopicPartition, str]:
        """Return the owners of partitions that live, and have nothing to give up."""
        living = {each.member for each in self.consumptions.values() if each.member}
        owners: dict[TopicPartition, str] = {}
        prefix = members_prefix(GROUP)
        for key, found in self.metadata.values.items():
            member = key.removeprefix(prefix)
            if key.startswith(prefix) and member in living:
                row = decode_member(key, found.value)
                parts = set() if row.revoked else parts_of(row.parts)
                owners |= {TopicPartition(TOPIC, part.partition): member for part in parts}
        return owners if self.plan.mode != "key-shared" else self._whole(owners)

    def _whole(self, slots: dict[TopicPartition, str]) -> dict[TopicPartition, str]:
        """Return the partitions of which such members have all slots; nobody has them alone."""
        parts = (TopicPartition(TOPIC, each) for each in self._partitions())
        return {
            part: "" for part in parts if all(unit(part, each) in slots for each in range(SLOTS))
        }

    def _partitions(self) -> range:
        key = topic_key(TOPIC)
        return decode_topic(key, self.metadata.values[key].value).partition_indexes

    async def _send(self, number: int, client: Client) -> None:
        """Send a message to each partition."""
        teller = Teller(self.history, TOPIC, f"late #{number}", "")
        for partition in self._partitions():
            async with client.producer(TOPIC, partition=partition) as producer:
                draft = Draft(b"late/%d/%d/%f" % (number, partition, trio.current_time()))
                outcomes = await teller.send(producer, [draft], "w")
                for failure in outcomes:
                    if failure is not None:
                        raise failure

    # --- what metadata hold ---------------------------------------------------------------

    def _note_record(self, key: str, found: Versioned | None) -> None:
        super()._note_record(key, found)
        names = {} if self._topic is None else {self._topic.uid: TOPIC}
        if key.startswith(GROUP_MEMBERS):
            now, newest = trio.current_time(), self._newest
            tell_member(self.history, names, key, found, version=newest, seen_at=now)
        elif key.startswith(PROGRESS) and found is not None:
            tell_progress(self.history, names, key, found)
        if found is not None and key.startswith((GROUP_MEMBERS, PROGRESS)):
            self._newest = max(self._newest, found.version)


class GroupFaults(TopicFaults):
    """Troubles of a group."""

    def __init__(self, simulation: GroupSimulation, trace: list[str]) -> None:
        super().__init__(simulation, trace)
        self._groups = simulation
        self._does |= {"leave": self._leave, "leader away": self._leader_away}

    async def _leave(self, step: Step) -> None:
        consumption = self._groups.consumptions.get(step.target)
        if consumption is not None:
            consumption.leave()
            await trio.sleep(step.span_s)
            consumption.come_back()

    async def _leader_away(self, step: Step) -> None:
        """The bookie that coordinates is away, in one of several ways, or from its members."""
        name = await self._groups.leader()
        if not name:
            return
        step = Step(step.number, step.at_s, step.detail, name, step.span_s)
        if step.kind == "crash":
            step = Step(step.number, step.at_s, step.kind, name, step.span_s, "clean")
        elif step.kind == "cut":
            host = next(iter(self._groups.consumptions.values())).consuming.host
            step = Step(step.number, step.at_s, step.kind, name, step.span_s, host)
        self._groups.note(f"the leader is {name}: {step.kind}")
        await self._does[step.kind](step)


def simulate_group(seed: int, *, only: Sequence[int] | None = None) -> Outcome:
    """Run the simulation of *seed*, with all its steps or with some *only*."""
    with _virtual_reports(), lanes_told():
        return run_plan(make_group_plan(seed), GroupSimulation, only=only)


@contextmanager
def _virtual_reports() -> Iterator[None]:
    """Have members report by the virtual clock; time.monotonic stands still (virtual.py)."""
    with replaced(heartbeats, "time", SimpleNamespace(monotonic=trio.current_time)):
        yield
