"""Consumers, members and rows of groups that tell a history what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TypeVar

from event import mark_of
from group_events import (
    Acked,
    Assigned,
    BeatAnswered,
    Buried,
    Burying,
    Delivered,
    Done,
    LetGo,
    MemberLeft,
    MemberRemoved,
    MemberStored,
    Opened,
    ProgressStored,
    PutOff,
    Revoked,
    WentBack,
)
from history import Recorder
from replaced import replaced

from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.dead_letters import DeadLetters
from ledger_client.groups.options import TopicPartition
from ledger_client.groups.slots import Units
from ledger_client.ledgers.leader_calls import LeaderCalls, LeaderRequest
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import Position
from metadata.groups.calls import LeaveGroup, ReportIn, ReportNoted
from metadata.groups.rows import PartRun, decode_member, decode_progress, parts_of
from metadata.store import Versioned

T = TypeVar("T")
Names = Mapping[int, str]
"""Topics by their uid."""


class GroupAudience:
    """Tells a history what one consumer gets. *session* names one from opening to end."""

    def __init__(self, history: Recorder, group: str, session: str) -> None:
        self._history = history
        self._group = group
        self._session = session

    async def assigned(self, parts: Sequence[TopicPartition]) -> None:
        """Take this for the consumer's *on_assigned*."""
        self._history.add(Assigned(group=self._group, session=self._session, parts=list(parts)))

    async def revoked(self, parts: Sequence[TopicPartition]) -> None:
        """Take this for the consumer's *on_revoked*."""
        self._history.add(Revoked(group=self._group, session=self._session, parts=list(parts)))

    def opened(
        self,
        *,
        shared: bool,
        deliveries_max: int = 0,
        by_key: bool = False,
        ack_s: float = 0.0,
        revoke_s: float = 0.0,
    ) -> None:
        """The consumer is about to be opened."""
        self._history.add(
            Opened(
                group=self._group,
                session=self._session,
                shared=shared,
                deliveries_max=deliveries_max,
                by_key=by_key,
                ack_s=ack_s,
                revoke_s=revoke_s,
            )
        )

    def delivered(
        self, consumer: GroupConsumer, messages: Sequence[Message], *, shared: bool = False
    ) -> None:
        """Messages have come; call this before anything else is asked of the consumer."""
        membership = consumer._membership
        mode = consumer._options.mode
        by_key, units = mode == "key-shared", Units(mode)
        for topic, found in groupby(messages, key=lambda message: message.topic):
            of_topic = list(found)
            self._history.add(
                Delivered(
                    group=self._group,
                    session=self._session,
                    member=membership.member,
                    epoch=membership.pulse.applied,
                    topic=topic,
                    lanes=[each.lane for each in of_topic],
                    ids=[each.id for each in of_topic],
                    counts=[consumer.deliveries(each) for each in of_topic] if shared else [],
                    keys=[mark_of(each.key or b"") for each in of_topic] if by_key else [],
                    slots=[units.slot_of(each) for each in of_topic] if by_key else [],
                )
            )

    def acked(self, messages: Sequence[Message]) -> None:
        """The acknowledgement of messages is durable."""
        for topic, found in groupby(messages, key=lambda message: message.topic):
            ids = [each.id for each in found]
            self._history.add(Acked(group=self._group, session=self._session, topic=topic, ids=ids))

    def let_go(self, messages: Sequence[Message]) -> None:
        """Call this before messages are acknowledged."""
        for topic, found in groupby(messages, key=lambda message: message.topic):
            ids = [each.id for each in found]
            self._history.add(LetGo(group=self._group, session=self._session, topic=topic, ids=ids))

    def put_off(self, messages: Sequence[Message], *, always: bool = False) -> None:
        """Messages are to come again, and are not worked on any more; *always*: each time."""
        for topic, found in groupby(messages, key=lambda message: message.topic):
            ids = [each.id for each in found]
            self._history.add(
                PutOff(
                    group=self._group, session=self._session, topic=topic, ids=ids, always=always
                )
            )

    def done(self, messages: Sequence[Message]) -> None:
        """The application has done its work; call this before it asks for anything."""
        for topic, found in groupby(messages, key=lambda message: message.topic):
            ids = [each.id for each in found]
            self._history.add(Done(group=self._group, session=self._session, topic=topic, ids=ids))

    async def commit_back(self, consumer: GroupConsumer, position: Position) -> None:
        """Commit places that may lie before those that are committed. Raises LedgerError."""
        for (topic, partition), places in groupby(position, key=lambda each: (each[0], each[2])):
            self._history.add(
                WentBack(
                    group=self._group,
                    member=consumer._membership.member,
                    part=TopicPartition(topic, partition),
                    places={each.lane: each.place.at for each in places},
                )
            )
        await consumer.commit(position)


def tell_member(
    history: Recorder,
    names: Names,
    key: str,
    found: Versioned | None,
    *,
    version: int,
    seen_at: float,
) -> None:
    """Tell how a member's row stands now; *version*: of the newest row, if it was removed."""
    _, group, member = key.split("/")
    if found is None:
        history.add(MemberRemoved(group=group, member=member, version=version, seen_at=seen_at))
        return
    row = decode_member(key, found.value)
    history.add(
        MemberStored(
            group=group,
            member=member,
            run=row.run,
            epoch=row.epoch,
            version=found.version,
            parts=_named(names, row.parts),
            revoked=[part for each in row.revoked for part in _named(names, each.runs)],
            session_s=row.session_s,
            seen_at=seen_at,
        )
    )


def tell_progress(history: Recorder, names: Names, key: str, found: Versioned) -> None:
    """Tell how the progress of a partition stands now."""
    row = decode_progress(key, found.value)
    _, group, uid, partition = key.split("/")
    history.add(
        ProgressStored(
            group=group,
            part=TopicPartition(names[int(uid)], int(partition) - 1),
            member=row.member,
            epoch=row.epoch,
            version=found.version,
            places={each.lane: (each.number, each.entry, each.skip) for each in row.lanes},
        )
    )


def _named(names: Names, runs: Iterable[PartRun]) -> list[TopicPartition]:
    return sorted(TopicPartition(names[part.topic], part.partition) for part in parts_of(runs))


@contextmanager
def members_told(history: Recorder, clock: Callable[[], float]) -> Iterator[None]:
    """Record which reports of members are answered, and who leaves, within the block.

    *clock* is that of the history.
    """
    ask = LeaderCalls.ask

    async def ask_and_tell(
        calls: LeaderCalls, request: LeaderRequest, kind: type[T], *, timeout_s: float
    ) -> T:
        asked_at = clock()
        if isinstance(request, LeaveGroup):
            history.add(MemberLeft(group=request.group, member=request.member, run=request.run))
        reply = await ask(calls, request, kind, timeout_s=timeout_s)
        if isinstance(request, ReportIn) and isinstance(reply, ReportNoted):
            for beat, answer in zip(request.beats, reply.answers, strict=True):
                if answer.is_member:
                    history.add(
                        BeatAnswered(
                            group=beat.group, member=beat.member, run=beat.run, asked_at=asked_at
                        )
                    )
        return reply

    with replaced(LeaderCalls, "ask", ask_and_tell):
        yield


@contextmanager
def dead_letters_told(history: Recorder) -> Iterator[None]:
    """Record which dead letters members send, within the block."""
    send = DeadLetters.send

    async def send_and_tell(
        letters: DeadLetters, message: Message, *, deliveries: int, reason: str
    ) -> None:
        group, member, topic = letters._group, letters._member, message.topic
        history.add(
            Burying(group=group, member=member, topic=topic, id=message.id, deliveries=deliveries)
        )
        await send(letters, message, deliveries=deliveries, reason=reason)
        history.add(Buried(group=group, member=member, topic=topic, id=message.id))

    with replaced(DeadLetters, "send", send_and_tell):
        yield
