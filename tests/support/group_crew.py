"""Processes that publish to a topic of a fleet and consume it in a group."""

from __future__ import annotations

import time
from pathlib import Path

import trio
from fleet import Fleet
from group_events import Calm, DeadLetter, GroupSettled
from group_worker import CALM
from history import HistoryFile
from topic_crew import FINISH_S, TOPIC, Crew, close_lanes

import ledger_client
from ledger_client import Client
from ledger_client.errors import LedgerError
from ledger_client.groups.consumers import GroupLane
from ledger_client.groups.options import TopicPartition
from ledger_client.message_id import MessageId
from ledger_client.wire.stores import open_store
from metadata.groups.rows import SLOTS
from metadata.listings import leader

GROUP = "billing"
WORKER = Path(__file__).with_name("group_worker.py")
SETTLED_S = 120.0
REST_S = 8.0
"""Rows that did not change for so long change no more."""
LOOK_S = 0.5


class GroupCrew(Crew):
    """A crew whose consumers share a topic as members of one group."""

    def __init__(
        self, fleet: Fleet, folder: Path, *, partitions: int, rest_s: float = REST_S
    ) -> None:
        """*rest_s*: rows that did not change for so long change no more."""
        super().__init__(fleet, folder, partitions=partitions)
        self._rest_s = rest_s
        self._metadata = fleet.metadata
        self._calm = folder / CALM

    def script(self, role: str) -> Path:
        return WORKER if role in ("consume", "watch") else super().script(role)

    def watch(self) -> None:
        """Start the watcher of the group's rows and lags."""
        self.start("watch", "watcher", GROUP, self._metadata)

    def note_calm(self, *, is_calm: bool) -> None:
        """Have the watcher look at lags, or not. It may be in the middle of a look."""
        history = HistoryFile(self._folder / "calm.jsonl")
        history.add(Calm(group=GROUP, is_calm=is_calm))
        history.close()
        if is_calm:
            self._calm.touch()
        else:
            self._calm.unlink(missing_ok=True)

    def leader(self) -> str:
        """Return the bookie that leads, "" if none does."""

        async def look() -> str:
            async with open_store(self._metadata) as store:
                found = await leader(store)
                return "" if found is None else found.bookie_id

        return trio.run(look)

    def wait_until_sent(self) -> None:
        """Return when all producers are done."""
        for name, (worker, command) in self._workers.items():
            if command[0] == "produce":
                self._wait(name, worker)

    def settle(self) -> None:
        """Wait until the group has everything, and its rows rest; then end its consumers.

        All producers are done.
        """
        history = HistoryFile(self._folder / "settled.jsonl")
        parts = trio.run(self._settled)
        history.add(GroupSettled(group=GROUP, parts=parts))
        self._wait_for_a_lag()
        for name in [name for name, (_, words) in self._workers.items() if words[0] == "consume"]:
            self.stop(name)
        self.stop("watcher")
        for letter in trio.run(self._dead_letters):
            history.add(letter)
        history.close()

    def _wait_for_a_lag(self) -> None:
        """Return once the watcher looked at lags, which it does while nobody is hit."""
        end = time.monotonic() + FINISH_S
        while not self.has_told("watcher-*", "LagSeen"):
            assert time.monotonic() < end, self.log("watcher")[-2000:]
            time.sleep(LOOK_S)

    async def _settled(self) -> list[TopicPartition]:
        async with ledger_client.connect(self._metadata) as client:
            await close_lanes(client)
            await _wait_until_rested(client, self._rest_s)
            topic = await client.topics.info(TOPIC)
            state = await client.groups.describe(GROUP)
            if state.mode == "key-shared":
                slots = range(topic.partitions * SLOTS)
                return [TopicPartition(TOPIC, each) for each in slots]
            return [TopicPartition(TOPIC, each) for each in topic.partition_indexes]

    async def _dead_letters(self) -> list[DeadLetter]:
        name = f"{TOPIC.partition('/')[0]}/{GROUP}.dead"
        async with ledger_client.connect(self._metadata) as client:
            if all(topic.name != name for topic in await client.topics.list()):
                return []
            async with client.producer(name, access="take-over"):
                pass  # it closes what members left open that were killed
            async with client.reader(name, end="latest") as reader:
                return [
                    DeadLetter(
                        group=GROUP,
                        topic=letter.headers["quire-dead-topic"].decode(),
                        id=MessageId.parse(letter.headers["quire-dead-id"].decode()),
                        deliveries=int(letter.headers["quire-dead-deliveries"]),
                    )
                    async for letter in reader
                ]


async def _wait_until_rested(client: Client, rest_s: float) -> None:
    """Return when the group lags nowhere, and has not changed for a while."""
    end = time.monotonic() + SETTLED_S
    epoch, since = -1, time.monotonic()
    failure: LedgerError | None = None
    lags: list[GroupLane] = []
    while True:
        await trio.sleep(LOOK_S)
        try:
            state = await client.groups.describe(GROUP)
            lags = [lane for lane in await client.groups.lag(GROUP) if lane.lag]
        except LedgerError as answer:
            state, failure = None, answer
        now = time.monotonic()
        if state is None or state.epoch != epoch or state.state != "ready" or lags:
            epoch, since = -1 if state is None else state.epoch, now
        elif now - since > rest_s:
            return
        assert now < end, f"the group is not whole: it lags in {lags}, {failure}, {state}"
