"""The topics in the metadata store: create, alter, list, delete.

Each change is one transaction, by compare-and-set, together with its event (events.py).
Deletion marks the topic first, which hides it. From then on any client may finish the deletion
(retention/deletion.py); the name is free again when nothing of the topic is left.

Changes of topics with timesync have timestamps of the cluster's oracle. While a topic is altered or
deleted its ticks stay below that timestamp (metadata/time/tick_holds.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from ledger_client.background import Turns
from ledger_client.errors import BadTopic, MetadataUnavailable, NoSuchTopic, TopicBusy, TopicExists
from ledger_client.ledgers.catalogue import translated
from ledger_client.topics.events import Kind, event_ops, is_own
from metadata.clock import StoreClock
from metadata.cuts import read_kept
from metadata.errors import LeaseLost, VersionConflict
from metadata.groups.rows import GROUP_MEMBERS, decode_member
from metadata.listings import Listing
from metadata.sessions import ProcessSession
from metadata.store import ABSENT, Check, CheckLease, Delete, MetadataStore, Put, items_under
from metadata.time.tick_holds import hold_ticks
from metadata.topics import (
    GROWTHS_MAX,
    TOPIC_COUNTER,
    TOPICS,
    Growth,
    Retention,
    RollPolicy,
    Schema,
    TopicRecord,
    decode_topic,
    encode_row,
    namespace_prefix,
    split_topic,
    topic_key,
)

REPLICATION = 2
RECORD_SIZE_MAX = 240 << 10
"""Bytes of a topic's record, with its schema and properties; its events hold it again."""
Compression = Literal["none", "zstd", "lz4"]
Order = Literal["none", "event-time"]


class Alteration(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a topic to change; `None` leaves one as it is.

    Replication, quorum and limits apply to ledgers begun afterwards. The order of a topic cannot
    change, since written messages cannot be sorted again.
    """

    partitions: int | None = None
    replication: int | None = None
    ack_quorum: int | None = None
    compression: Compression | None = None
    roll: RollPolicy | None = None
    retention: Retention | None = None
    schema: Schema | None = None
    properties: dict[str, str] | None = None


Change = Alteration | Callable[[TopicRecord], Alteration]
"""A function gets the topic as it is, and is called again if others change it meanwhile."""


def altered(record: TopicRecord, alteration: Alteration) -> TopicRecord:
    """Return *record* with the changes of *alteration*.

    Raises:
        BadTopic: partitions would become fewer, or a topic without partitions would get some; or
            a value is invalid.
    """
    changes = {
        name: value
        for name, value in msgspec.structs.asdict(alteration).items()
        if value is not None
    }
    if alteration.replication is not None and alteration.ack_quorum is None:
        changes["ack_quorum"] = majority(alteration.replication)
    _check_partitions(record, alteration.partitions)
    return checked(record.name, msgspec.structs.asdict(record) | changes)


def checked(name: str, fields: dict[str, object]) -> TopicRecord:
    """Return the topic with these fields. Raises BadTopic, which names an invalid field."""
    try:
        # Encoded and decoded as it is stored, which refuses values such as an infinite age.
        record = msgspec.json.decode(msgspec.json.encode(fields), type=TopicRecord)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as wrong:
        raise BadTopic(_described(str(wrong)), topic=name) from wrong
    size = len(encode_row(record))
    if size > RECORD_SIZE_MAX:
        reason = f"schema, properties and all else take {size} bytes; at most {RECORD_SIZE_MAX} can"
        raise BadTopic(reason, topic=name)
    return record


def majority(replication: int) -> int:
    """Return the default ack quorum of a write quorum."""
    return replication // 2 + 1


def _check_partitions(record: TopicRecord, partitions: int | None) -> None:
    if partitions is None or partitions == record.partitions:
        return
    if record.partitions == 0:
        raise BadTopic("it is not partitioned, and stays so", topic=record.name)
    if partitions < record.partitions:
        reason = f"it has {record.partitions} partitions, which cannot become fewer"
        raise BadTopic(reason, topic=record.name)


def _described(message: str) -> str:
    """Turn "Expected `int` >= 1 - at `$.roll.size`" into "roll.size: expected int >= 1"."""
    what, at, where = message.replace("`", "").partition(" - at $.")
    return f"{where}: {what[:1].lower()}{what[1:]}" if at else message


TopicInfo = TopicRecord
"""The public form of a topic. Its record holds nothing secret."""


class TopicTimes(NamedTuple):
    """What changes of topics with timesync need."""

    session: ProcessSession
    allocate: Callable[[], Awaitable[int]]
    """returns a fresh timestamp"""


class TopicCatalogue:
    """The topics of one cluster.

    Every call may raise MetadataUnavailable and MetadataBroken, and BadTopic for an invalid name.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        timeout_s: float,
        clock: StoreClock | None = None,
        times: TopicTimes | None = None,
    ) -> None:
        """Pass the store's *clock* if an estimate of it exists already.

        Without *times* no topic with timesync can be changed.
        """
        self.store = store
        self.timeout_s = timeout_s
        self.clock = StoreClock(store) if clock is None else clock
        self.publishing = Turns()
        """of namespaces, whose events one task of this client publishes for all"""
        self._changing = Turns()
        self._times = times

    async def now_ms(self) -> int:
        """Return the store's time, in Unix milliseconds."""
        with translated(self.timeout_s):
            await self.clock.refresh()
        return self.clock.now_ms()

    async def create(self, wanted: TopicRecord) -> TopicRecord:
        """Create a topic like *wanted*, with a uid of its own, and return it.

        Raises:
            TopicExists: the name is taken, perhaps by a topic whose deletion is not finished.
            MetadataUnavailable: also if it has timesync, and nobody hands out timestamps.
        """
        while True:
            if await self.find(wanted.name) is not None:
                raise TopicExists(wanted.name)
            with translated(self.timeout_s):
                uid = await self.store.next_id(TOPIC_COUNTER)
            now_ms = await self.now_ms()
            timestamp = await self._timed().allocate() if wanted.timesync else 0
            made = msgspec.structs.replace(
                wanted, uid=uid, created_ms=now_ms, created_timestamp=timestamp, state="active"
            )
            if await self._change(made, ABSENT, "created", timestamp):
                return made

    async def get(self, name: str) -> tuple[TopicRecord, int]:
        """Return a topic and the version of its record.

        Raises:
            NoSuchTopic: there is no such topic, or it is being deleted.
        """
        found = await self.find(name)
        if found is None or found[0].state != "active":
            raise NoSuchTopic(name)
        return found

    async def find(self, name: str) -> tuple[TopicRecord, int] | None:
        """Return a topic and its record's version, even while it is being deleted."""
        key = _key(name)
        with translated(self.timeout_s):
            found = await self.store.get(key)
            return None if found is None else (decode_topic(key, found.value), found.version)

    async def alter(self, name: str, change: Change) -> TopicRecord:
        """Alter a topic and return it. If nothing changes, no event is written.

        Raises:
            NoSuchTopic: there is no such topic.
            BadTopic: a change is invalid; see altered().
            MetadataUnavailable: also if it has timesync, and nobody hands out timestamps.
        """
        now_ms = await self.now_ms()

        def changed(record: TopicRecord) -> TopicRecord:
            made = altered(record, change if isinstance(change, Alteration) else change(record))
            return _grown(record, made, now_ms)

        return await self._replace(name, "altered", changed)

    async def begin_deletion(self, name: str, *, force: bool = False) -> TopicRecord:
        """Hide a topic, unless that was done before, and return it.

        Raises:
            NoSuchTopic: there is no such topic.
            TopicBusy: a cut keeps it; or members of groups name it, without *force*.
        """
        found = await self.find(name)
        if found is not None and found[0].state == "deleting":
            return found[0]
        if found is not None and not force:
            await self._check_unconsumed(name)
        return await self.mark_deleting(name)

    async def mark_deleting(self, name: str) -> TopicRecord:
        """Mark the topic as deleting, which hides it.

        Raises:
            NoSuchTopic: it is hidden already.
            TopicBusy: a cut keeps it.
        """
        return await self._replace(
            name, "deleted", lambda record: msgspec.structs.replace(record, state="deleting")
        )

    async def forget(self, record: TopicRecord, *, checks: Sequence[CheckLease] = ()) -> None:
        """Remove the record of a topic, the last that is left of it.

        Does nothing if it is removed already. Raises LeaseLost if one of *checks* fails.
        """
        found = await self.find(record.name)
        if found is None or found[0].uid != record.uid:
            return
        try:
            with translated(self.timeout_s):
                await self.store.transact([*checks, Delete(_key(record.name), found[1])])
        except VersionConflict:
            return  # only its removal changes the record of a topic that is being deleted

    async def list(self, namespace: str | None = None, *, own: bool = True) -> list[TopicRecord]:
        """Return the topics of a namespace, or of all, sorted by name, without those being deleted.

        With *own* False, internal topics such as ``__events`` are left out.
        """
        prefix = TOPICS if namespace is None else namespace_prefix(namespace)
        with translated(self.timeout_s):
            items = await items_under(self.store, prefix)
            records = [decode_topic(key, found.value) for key, found in items]
        active = [record for record in records if record.state == "active"]
        return [record for record in active if own or not is_own(record.name)]

    async def _replace(
        self, name: str, kind: Kind, change: Callable[[TopicRecord], TopicRecord]
    ) -> TopicRecord:
        while True:
            record, version = await self.get(name)
            changed = change(record)
            if changed == record:
                return changed
            if record.timesync:
                made = await self._change_timed(changed, version, kind)
            else:
                made = changed if await self._change(changed, version, kind) else None
            if made is not None:
                return made

    async def _change_timed(
        self, changed: TopicRecord, version: int, kind: Kind
    ) -> TopicRecord | None:
        """Replace *version* by *changed* with a timestamp, above all ticks of the topic till then.

        Return it as it is stored, `None` if another client changed it first.
        """
        times = self._timed()
        below = await times.allocate()
        try:
            with translated(self.timeout_s):
                hold = await hold_ticks(
                    times.session, changed.name, changed.uid, below=below, kind=kind
                )
            try:
                timestamp = await times.allocate()
                made = _with_timestamp(changed, kind, timestamp)
                is_made = await self._change(made, version, kind, timestamp, checks=[hold.check])
            finally:
                await hold.release()
        except LeaseLost:
            reason = f"the session of this client ended while {changed.name} was to be {kind}"
            raise MetadataUnavailable(f"{reason}; nothing was changed") from None
        return made if is_made else None

    def _timed(self) -> TopicTimes:
        if self._times is None:
            raise MetadataUnavailable("a topic with timesync is changed by clients of a cluster")
        return self._times

    async def _change(
        self,
        record: TopicRecord,
        version: int,
        kind: Kind,
        timestamp: int = 0,
        *,
        checks: Sequence[CheckLease | Check] = (),
    ) -> bool:
        """Replace *version* by *record*; False if another client changed it first.

        Raises TopicBusy if it is to be deleted and a cut keeps it.
        """
        if kind == "deleted":
            checks = [*checks, await self._unkept(record)]
        shown = record if kind != "deleted" else msgspec.structs.replace(record, state="active")
        put = Put(topic_key(record.name), encode_row(record), version)
        try:
            with translated(self.timeout_s):
                # All changes of a namespace number their events, so they would only collide.
                async with self._changing.of(split_topic(record.name)[0]):
                    events = await event_ops(self.store, kind, shown, timestamp)
                    await self.store.transact([*checks, put, *events])
        except VersionConflict:
            return False
        return True

    async def _check_unconsumed(self, name: str) -> None:
        """Raise TopicBusy if members of groups name a topic; patterns do not count."""
        members = Listing(self.store, GROUP_MEMBERS, _topics_of_member, unreadable=set())
        with translated(self.timeout_s):
            groups = {group async for group, topics in members if name in topics}
        if groups:
            raise TopicBusy.consumed(name, sorted(groups))

    async def _unkept(self, record: TopicRecord) -> Check:
        """Return the check that no cut keeps a topic. Raises TopicBusy."""
        with translated(self.timeout_s):
            kept = await read_kept(self.store, record.uid)
        if kept.cuts:
            name = kept.cuts[0].name
            raise TopicBusy(f"cut {name} keeps it: quire cut delete {name}", topic=record.name)
        if kept.is_staked:
            raise TopicBusy("a cut of it is being created", topic=record.name)
        return kept.check


def _grown(before: TopicRecord, after: TopicRecord, now_ms: int) -> TopicRecord:
    """Return *after* with a note of when its new partitions were added."""
    if after.partitions == before.partitions:
        return after
    growths = [*before.grown, Growth(before.partitions, now_ms)]
    if len(growths) > GROWTHS_MAX:  # those of the oldest count as younger than they are
        growths[:2] = [Growth(growths[0].first, growths[1].at_ms)]
    return msgspec.structs.replace(after, grown=growths)


def _with_timestamp(record: TopicRecord, kind: Kind, timestamp: int) -> TopicRecord:
    """Return the record as a change of this kind and timestamp leaves it."""
    if kind == "deleted":
        return msgspec.structs.replace(record, deleted_timestamp=timestamp)
    return msgspec.structs.replace(record, altered_timestamp=timestamp)


def _topics_of_member(key: str, value: bytes) -> tuple[str, Sequence[str]]:
    """Return the group and the named topics of a member. Raises BadRecord."""
    group = key.removeprefix(GROUP_MEMBERS).partition("/")[0]
    return group, decode_member(key, value).wanted.topics


def check_users(name: str) -> None:
    """Raise BadTopic for an invalid name, or one that is reserved for internal topics."""
    _key(name)
    if is_own(name):
        raise BadTopic("names that begin with '__' are quire's own", topic=name)


def _key(name: str) -> str:
    try:
        return topic_key(name)
    except ValueError as wrong:
        raise BadTopic(str(wrong), topic=name) from wrong
