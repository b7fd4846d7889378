"""A consumer of the plan on its machine: what an application does with a group's messages."""

from __future__ import annotations

import random
import zlib
from typing import TYPE_CHECKING

import trio
from group_plan import Consuming, GroupPlan
from group_witness import GroupAudience
from history import History

from ledger_client import Client
from ledger_client.errors import LedgerError
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import Position

if TYPE_CHECKING:
    from client_host import ClientHost

PAUSE_S_MAX = 1.0
POLL_S = 2.0
SESSION_S = 6.0
BEAT_S = 1.5
REVOKE_S = 4.0
ACK_S = 5.0
NACK_S_MAX = 3.0


class Consumption:
    """One consumer, session by session.

    Attributes:
        member: its name in the group now, "" while it has no session.
        away: True while it is to leave, or to stay away.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        consuming: Consuming,
        plan: GroupPlan,
        history: History,
    ) -> None:
        self.consuming = consuming
        self.member = ""
        self.away = False
        self._shared = plan.shared
        self._hurries = False
        self._plan = plan
        self._topic = topic
        self._group = group
        self._history = history
        self._chance = random.Random(f"{consuming.name} {plan.seed}")
        self._sessions = 0
        self._before: Position = Position()
        self._scope = trio.CancelScope()

    def leave(self) -> None:
        """Leave the group, and stay away until come_back()."""
        self.away = True
        self._scope.cancel()

    def come_back(self) -> None:
        self.away = False

    def hurry(self) -> None:
        """Work without pauses from now on, and refuse what is poison alone."""
        self._hurries = self._shared

    async def run(self, host: ClientHost, client: Client) -> None:
        """Consume, in one session after the other, until cancelled."""
        while True:
            await trio.sleep(PAUSE_S_MAX * self._chance.random())
            if self.away:
                continue
            self._sessions += 1
            session = f"{self.consuming.name} #{self._sessions} on {host.machine.name}"
            audience = GroupAudience(self._history, self._group, session)
            audience.opened(
                shared=self._shared,
                deliveries_max=self._plan.deliveries_max,
                by_key=self._plan.mode == "key-shared",
                ack_s=ACK_S,
                revoke_s=REVOKE_S,
            )
            try:
                await self._consume(client, audience)
            except* LedgerError:
                pass
            finally:
                self.member = ""

    async def _consume(self, client: Client, audience: GroupAudience) -> None:
        consuming = self.consuming
        by_itself = consuming.commits == "itself" or self._shared
        async with client.consumer(
            self._topic,
            group=self._group,
            mode=self._plan.mode,
            ack_timeout_s=ACK_S,
            deliveries_max=self._plan.deliveries_max,
            start="earliest",
            member=consuming.member,
            auto_commit_s=consuming.auto_commit_s if by_itself else None,
            session_s=SESSION_S,
            beat_s=BEAT_S,
            revoke_s=REVOKE_S,
            on_assigned=audience.assigned,
            on_revoked=audience.revoked,
        ) as consumer:
            self.member, self._before = consumer._membership.member, Position()
            with trio.CancelScope() as self._scope:
                await self._take(consumer, audience)

    async def _take(self, consumer: GroupConsumer, audience: GroupAudience) -> None:
        while True:
            try:
                messages = await self._next(consumer)
                audience.delivered(consumer, messages, shared=self._shared)
                await self._work_on(audience, messages)
                if self._shared:
                    await self._acknowledge(consumer, audience, messages)
                    continue
                audience.done(messages)
                await self._commit(consumer, audience, messages)
            except LedgerError:
                if consumer._membership.failure is not None:
                    raise
                await trio.sleep(PAUSE_S_MAX * self._chance.random())

    async def _next(self, consumer: GroupConsumer) -> list[Message]:
        if self.consuming.way == "iterate":
            return [await anext(consumer)]
        return await consumer.poll(wait_s=POLL_S, messages_max=self.consuming.messages_max)

    async def _work_on(self, audience: GroupAudience, messages: list[Message]) -> None:
        try:
            await self._work()
        except trio.Cancelled:
            # To leave without an error says so; a machine that is frozen may do it late.
            if self._scope.cancel_called and not self._shared:
                audience.done(messages)
            raise

    async def _work(self) -> None:
        if self._chance.random() < 0.3 and not self._hurries:
            await trio.sleep(self.consuming.think_s_max * self._chance.random())

    async def _acknowledge(
        self, consumer: GroupConsumer, audience: GroupAudience, messages: list[Message]
    ) -> None:
        """Acknowledge messages in any order, but some, which are refused."""
        chance = self._chance
        done = [
            each
            for each in messages
            if (chance.random() >= self.consuming.nack_share or self._hurries)
            and not self._is_poison(each)
        ]
        audience.done(done)
        for each in messages:
            if each not in done:
                audience.put_off([each], always=self._is_poison(each))
                delay_s = 0.1 if self._hurries else NACK_S_MAX * chance.random()
                consumer.nack(each, delay_s=delay_s)
        chance.shuffle(done)
        while done:
            some = [done.pop() for _ in range(min(len(done), chance.choice([1, 1, 3, 100])))]
            audience.let_go(some)
            await consumer.ack(some)
            audience.acked(some)
            await self._work()

    def _is_poison(self, message: Message) -> bool:
        return zlib.crc32(message.value or b"") % 1000 < self._plan.poison * 1000

    async def _commit(
        self, consumer: GroupConsumer, audience: GroupAudience, messages: list[Message]
    ) -> None:
        if self._chance.random() < self.consuming.back_share and self._before:
            await audience.commit_back(consumer, self._before)
        elif self.consuming.commits == "poll":
            self._before = consumer.position()
            await consumer.commit()
        elif self.consuming.commits == "message" and messages:
            await consumer.commit(messages[-1])
