"""Whoever sends messages in a simulation: what is to be sent outlives every process.

A session is refused, fenced, killed with its machine, left in a hurry, or told that nobody
knows. A producer with a name sends again what it was not told of, with the same numbers, in the
next session; one without a name sends again now and then, and has its messages twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio
from history import Recorder
from message_witness import TELLER, Draft, Teller
from topic_plan import Publishing, TopicPlan

from ledger_client import Client
from ledger_client.errors import (
    EventTimeBack,
    LedgerError,
    ProducerFailed,
    ProducerFenced,
    SendUnknown,
)
from ledger_client.topics.producing.producer import Producer

if TYPE_CHECKING:
    from client_host import ClientHost

KEYS = [b"red", b"green", b"blue", b"grey", b"pink", b"teal"]
PAUSE_S_MAX = 1.0
SECOND_NS = 1_000_000_000
GOES_BACK = 0.15
"""The share of messages whose event time is before the last one's."""


class Publisher:
    """One producer of the plan, wherever it runs now."""

    def __init__(
        self, topic: str, publishing: Publishing, plan: TopicPlan, history: Recorder
    ) -> None:
        self.publishing = publishing
        self._topic = topic
        self._history = history
        self._plan = plan
        self._chance = random.Random(f"{publishing.name} {plan.seed}")
        self._drafts = list(self._draft_all())
        self._settled: set[int] = set()
        self._sessions = 0
        self._host = 0

    def _draft_all(self) -> list[Draft]:
        publishing, chance = self.publishing, self._chance
        time_ns = round(publishing.start_s) * SECOND_NS
        backward = random.Random(f"times of {publishing.name} {self._plan.seed}")
        drafts = []
        for number in range(publishing.count):
            time_ns += chance.choice([0, 0, 1, SECOND_NS // 10])
            # Refused where times are ordered; most telling as the first message of a session.
            goes_back = backward.random() < GOES_BACK
            label = f"{publishing.name}/{number}/".encode()
            drafts.append(
                Draft(
                    value=label + chance.randbytes(chance.randint(0, publishing.payload_max)),
                    key=chance.choice([*KEYS, None]),
                    event_time=time_ns - goes_back * SECOND_NS if self._plan.ordered else None,
                    sequence=number if publishing.named else None,
                )
            )
        if publishing.named or publishing.way == "many":
            # What is sent again must come to the same partition, and what one call sends has
            # an order among messages with keys only.
            drafts = [d if d.key is not None else d._replace(key=b"none") for d in drafts]
        return drafts

    @property
    def name(self) -> str:
        """Its name in the cluster."""
        return self.publishing.name if self.publishing.named else ""

    @property
    def _has_partition(self) -> bool:
        """True if it has its partition alone; otherwise it numbers in its own lane."""
        access = self.publishing.access or ("exclusive" if self._plan.ordered else "shared")
        return access != "shared"

    @property
    def next_host(self) -> str:
        """The machine that it moves to next."""
        self._host += 1
        return self.publishing.hosts[self._host % len(self.publishing.hosts)]

    async def run(self, host: ClientHost, client: Client, *, takes: bool = False) -> None:
        """Send in one session after the other, until all is sent or another has the lane.

        *takes*: take it over from wherever it ran before.
        """
        while self._left() and not host.retired:
            self._sessions += 1
            session = f"{self.publishing.name} #{self._sessions} on {host.machine.name}"
            teller = Teller(self._history, self._topic, session, self.name)
            try:
                with trio.move_on_after(self.publishing.patience_s):
                    await self._run_session(client, teller, host, takes=takes)
            except ProducerFenced:
                if takes or self._chance.random() < 0.7:
                    return
            except LedgerError:
                pass
            await trio.sleep(PAUSE_S_MAX * self._chance.random())

    async def _run_session(
        self, client: Client, teller: Teller, host: ClientHost, *, takes: bool
    ) -> None:
        publishing = self.publishing
        TELLER.set(teller)
        async with client.producer(
            self._topic,
            producer_name=self.name,
            access="take-over" if takes and self._has_partition else publishing.access,
            lane_name=publishing.lane_name,
            batching=publishing.batching,
            batch_messages=publishing.batch_max,
            linger_ms=publishing.linger_ms,
            batch_bytes=4000,
        ) as producer:
            sending = Session(self, producer, teller, lambda: host.retired)
            async with trio.open_nursery() as nursery:
                for number in range(publishing.tasks):
                    nursery.start_soon(sending.send_in_turn, f"w{number}")
            if sending.failure is not None:
                raise sending.failure

    def take(self, count: int, under_way: set[int]) -> list[int]:
        """Return the next messages to send, in order; none when nothing is left."""
        left = [number for number in self._left() if number not in under_way][:count]
        if self.name and self.publishing.way == "many":  # numbers of one call have no gap
            left = [number for at, number in enumerate(left) if number == left[0] + at]
        return left

    def _left(self) -> list[int]:
        return [n for n in range(len(self._drafts)) if n not in self._settled]

    def draft(self, number: int) -> Draft:
        """A message by its number."""
        return self._drafts[number]

    def settle(self, number: int, failure: LedgerError | None) -> None:
        """Note what became of a message; one that is not settled is sent again."""
        if failure is None or isinstance(failure, EventTimeBack):
            self._settled.add(number)
        elif not self.name and isinstance(failure, SendUnknown) and self._chance.random() < 0.5:
            self._settled.add(number)  # it rather loses one than sends it twice

    def goes_on(self, failure: LedgerError) -> bool:
        """True if the session stays in use after a failure."""
        if isinstance(failure, EventTimeBack):
            return True
        return not isinstance(failure, ProducerFailed) and self._chance.random() < 0.3

    async def rest(self) -> None:
        """Think for a while."""
        await trio.sleep(self.publishing.think_s_max * self._chance.random())


class Session:
    """One producer at work, by one task or several. *failure*: why it is to be left."""

    def __init__(
        self,
        publisher: Publisher,
        producer: Producer,
        teller: Teller,
        retired: Callable[[], bool],
    ) -> None:
        self.failure: LedgerError | None = None
        self._publisher = publisher
        self._producer = producer
        self._teller = teller
        self._retired = retired
        self._left = publisher.publishing.session_max
        self._under_way: set[int] = set()

    async def send_in_turn(self, writer: str) -> None:
        """Send until nothing is left, the session is long enough, or the producer failed."""
        publishing = self._publisher.publishing
        ways = {"one": self._teller.send, "tickets": self._teller.send_together}
        send = ways.get(publishing.way, self._teller.send_many)
        count = 1 if publishing.way == "one" else publishing.batch_max
        while self._left > 0 and self.failure is None and not self._retired():
            numbers = self._publisher.take(count, self._under_way)
            if not numbers:
                return
            self._left -= len(numbers)
            self._under_way.update(numbers)
            drafts = [self._publisher.draft(number) for number in numbers]
            outcomes = await send(self._producer, drafts, writer)
            for number, failure in zip(numbers, outcomes, strict=False):
                self._publisher.settle(number, failure)
                if failure is not None and not self._publisher.goes_on(failure):
                    self.failure = failure
            self._under_way.difference_update(numbers)
            await self._publisher.rest()
