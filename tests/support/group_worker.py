"""One process that consumes in a group, or watches it: run as a script, killed at any moment.

    python group_worker.py consume URL HISTORY TOPIC NAME GROUP WAY [MEMBER]
    python group_worker.py watch URL HISTORY TOPIC NAME GROUP METADATA

A consumer goes on until the end of standard input, then leaves the group. WAY "poll" commits after
each poll, "iterate" leaves that to the consumer. "shared" and "key-shared" acknowledge messages one
by one, refuse poison each time and others now and then, and forget some. The watcher reads the
rows of members from METADATA, and looks at lags while there is a file "calm" beside its history.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio
from chance import seed_process
from group_events import LagSeen, ProgressStored
from group_witness import GroupAudience, members_told, tell_member
from history import HistoryFile, Recorder
from replaced import replaced
from run_seed import run_seed

import ledger_client
from ledger_client import Client, Options
from ledger_client.errors import LedgerError
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.options import TopicPartition
from ledger_client.groups.progress import Progress
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import Place
from ledger_client.wire.stores import open_store
from metadata.errors import MetadataError
from metadata.groups.assignment import Part
from metadata.groups.rows import Mode, members_prefix, parts_of
from metadata.store import MetadataStore, Op

PATIENCE = Options(read_timeout_s=3, request_timeout_s=2, metadata_timeout_s=5)
DELIVERIES_MAX = 5
ACK_TIMEOUT_S = 4.0
DELAY_S = 0.3
POISON = 40
"""One of so many messages is refused each time."""
SESSION_S = 6.0
BEAT_S = 1.5
REVOKE_S = 4.0
PAUSE_S = 0.2
ROWS_S = 0.1
LAGS_S = 1.0
SHARED: Mapping[str, Mode] = {"shared": "shared", "key-shared": "key-shared"}
CALM = "calm"
"""Name of the file that is there while nobody is hit."""


# --- consuming --------------------------------------------------------------------------


async def consume(
    client: Client, history: Recorder, path: Path, topic: str, words: list[str]
) -> None:
    """Consume in one session after the other, until cancelled."""
    group, way, member = (*words, "")[:3]
    mode = SHARED.get(way, "exclusive")
    take = {"poll": take_polled, "iterate": take_each}.get(way, take_shared)
    number = 0
    while True:
        number += 1
        audience = GroupAudience(history, group, f"{path.stem} #{number}")
        if mode != "exclusive":
            audience.opened(shared=True, deliveries_max=DELIVERIES_MAX)
        try:
            async with client.consumer(
                topic,
                group=group,
                mode=mode,
                member=member,
                start="earliest",
                auto_commit_s=None if way == "poll" else 1.0,
                session_s=SESSION_S,
                beat_s=BEAT_S,
                revoke_s=REVOKE_S,
                ack_timeout_s=ACK_TIMEOUT_S,
                deliveries_max=DELIVERIES_MAX,
                on_assigned=audience.assigned,
                on_revoked=audience.revoked,
            ) as consumer:
                await take(consumer, audience)
        except* LedgerError as answers:
            sys.stderr.write(f"{answers.exceptions}\n")
        await trio.sleep(PAUSE_S)


async def take_polled(consumer: GroupConsumer, audience: GroupAudience) -> None:
    """Poll and commit, with a rest now and then."""
    while True:
        try:
            messages = await consumer.poll(wait_s=1.0)
            audience.delivered(consumer, messages)
            if random.random() < 0.05:
                await trio.sleep(random.random())
            audience.done(messages)
            await consumer.commit()
        except LedgerError as answer:
            await rest(consumer, answer)


async def take_each(consumer: GroupConsumer, audience: GroupAudience) -> None:
    """Take one message after the other; some are hard work."""
    while True:
        try:
            message = await anext(consumer)
            audience.delivered(consumer, [message])
            if random.random() < 0.01:
                await trio.sleep(random.random())
            audience.done([message])
        except LedgerError as answer:
            await rest(consumer, answer)


async def take_shared(consumer: GroupConsumer, audience: GroupAudience) -> None:
    """Poll, and work on each message for itself; some acknowledgements wait for each other."""
    while True:
        waiting: list[Message] = []
        try:
            messages = await consumer.poll(wait_s=1.0, messages_max=random.choice((1, 5, 20)))
            audience.delivered(consumer, messages, shared=True)
            for message in messages:
                if random.random() < 0.02:
                    await trio.sleep(random.random())
                await work_on(consumer, audience, message, waiting)
            await consumer.flush()
            audience.acked(waiting)
        except LedgerError as answer:
            await rest(consumer, answer)


async def work_on(
    consumer: GroupConsumer, audience: GroupAudience, message: Message, waiting: list[Message]
) -> None:
    """Acknowledge a message, refuse it, or forget it."""
    luck = random.random()
    try:
        if is_poison(message):
            audience.put_off([message], always=True)
            consumer.nack(message, delay_s=DELAY_S, reason="poison")
        elif luck < 0.02:
            audience.put_off([message])
            if luck < 0.01:  # else it is forgotten
                consumer.nack(message, delay_s=DELAY_S, reason="later")
        else:
            audience.done([message])
            if luck < 0.5:
                await consumer.ack(message)
                audience.acked([message])
            else:
                consumer.ack_nowait(message)
                waiting.append(message)
    except LedgerError as answer:
        sys.stderr.write(f"{type(answer).__name__}: {answer}\n")


def is_poison(message: Message) -> bool:
    """Return True for a message that is refused each time; values begin with NAME/NUMBER/."""
    return int((message.value or b"").split(b"/")[1]) % POISON == 0


async def rest(consumer: GroupConsumer, answer: LedgerError) -> None:
    """Go on after a failure, unless it ended the consumer."""
    sys.stderr.write(f"{type(answer).__name__}: {answer}\n")
    if consumer._membership.failure is not None:
        raise answer
    await trio.sleep(PAUSE_S)


@contextmanager
def commits_told(history: Recorder, names: Mapping[int, str]) -> Iterator[None]:
    """Record each commit that the store confirmed, within the block."""
    store_progress = Progress._store_progress

    async def store_and_tell(
        progress: Progress, changed: Mapping[Part, dict[int, Place]], also: Sequence[Op] = ()
    ) -> list[int] | None:
        epoch = progress._epoch
        versions = await store_progress(progress, changed, also)
        for part, lanes in changed.items() if versions is not None else ():
            history.add(
                ProgressStored(
                    group=progress._group,
                    part=TopicPartition(names[part.topic], part.partition),
                    member=progress._member,
                    epoch=epoch,
                    version=progress._versions[part],
                    places={lane: place.at for lane, place in lanes.items()},
                )
            )
        return versions

    with replaced(Progress, "_store_progress", store_and_tell):
        yield


# --- watching ---------------------------------------------------------------------------


async def watch_rows(
    store: MetadataStore, history: Recorder, names: Mapping[int, str], group: str
) -> None:
    """Tell how the rows of members change, until cancelled; some changes may be missed."""
    seen: dict[str, int] = {}
    while True:
        rows = dict(await store.list(members_prefix(group)))
        now = time.monotonic()
        for key in sorted(seen.keys() - rows.keys()):
            del seen[key]
            tell_member(history, names, key, None, version=0, seen_at=now)
        for key, found in rows.items():
            if seen.get(key) != found.version:
                seen[key] = found.version
                tell_member(history, names, key, found, version=0, seen_at=now)
        await trio.sleep(ROWS_S)


async def watch_lags(
    client: Client, history: Recorder, names: Mapping[int, str], folder: Path, group: str
) -> None:
    """Tell which ready members lag, while nobody is hit, until cancelled."""
    while True:
        await trio.sleep(LAGS_S)
        try:
            if (folder / CALM).exists():
                await tell_lags(client, history, names, group)
        except (LedgerError, MetadataError) as answer:
            sys.stderr.write(f"{type(answer).__name__}: {answer}\n")


async def tell_lags(
    client: Client, history: Recorder, names: Mapping[int, str], group: str
) -> None:
    """Tell how far the owners of partitions lag. Raises LedgerError.

    Of a shared group, any member may have what is left of a partition.
    """
    state = await client.groups.describe(group)
    is_shared = state.mode != "exclusive"
    owners = {
        TopicPartition(names[part.topic], part.partition): member.member
        for member in state.members
        if member.state == "ready" and member.silent_s < 2 * BEAT_S
        for part in parts_of(member.record.parts)
    }
    counts: dict[TopicPartition, int] = {}
    for lane in await client.groups.lag(group):
        part = TopicPartition(lane.topic, lane.partition)
        counts[part] = counts.get(part, 0) + lane.lag
    for part, count in counts.items():
        if is_shared:
            history.add(LagSeen(group=group, part=part, member="shared", count=count))
        elif part in owners:
            history.add(LagSeen(group=group, part=part, member=owners[part], count=count))


async def main(*command: str) -> None:
    """Do what the command says."""
    role, url, file, topic, _, *words = command
    path = Path(file)
    history = HistoryFile(path)
    names: dict[int, str] = {}
    with members_told(history, time.monotonic), commits_told(history, names):
        async with (
            ledger_client.connect(url, options=PATIENCE) as client,
            trio.open_nursery() as tasks,
        ):
            names[await uid_of(client, topic)] = topic
            if role == "consume":
                tasks.start_soon(consume, client, history, path, topic, words)
            else:
                group, metadata = words
                store = await tasks.start(hold_store, metadata)
                tasks.start_soon(watch_rows, store, history, names, group)
                tasks.start_soon(watch_lags, client, history, names, path.parent, group)
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            tasks.cancel_scope.cancel()


async def uid_of(client: Client, topic: str) -> int:
    """Return the uid of a topic that is there, once the bookies answer."""
    while True:
        try:
            return (await client.topics.info(topic)).uid
        except LedgerError as answer:
            sys.stderr.write(f"{type(answer).__name__}: {answer}\n")
        await trio.sleep(PAUSE_S)


async def hold_store(url: str, task_status: trio.TaskStatus[MetadataStore]) -> None:
    """Keep a store open until cancelled."""
    async with open_store(url) as store:
        task_status.started(store)
        await trio.sleep_forever()


if __name__ == "__main__":
    seed_process(f"{Path(sys.argv[3]).name} {run_seed()}")
    trio.run(main, *sys.argv[1:])
