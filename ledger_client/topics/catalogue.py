"""The topics that metadata knows: made, altered, listed and taken away.

Each change is one transaction, by compare-and-set, together with its event (events.py).
A topic that is deleted is marked first. From then on nobody finds it, and whoever comes by
can end the deletion (deletion.py): its name is free again when nothing of it is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ledger_client.topics.alteration import Alteration, altered
from ledger_client.topics.errors import BadTopic, NoSuchTopic, TopicExists
from ledger_client.topics.events import Kind, event_ops, is_own
from ledger_client.topics.keeping.holdings import items_under
from ledger_client.translation import translated
from metadata.clock import StoreClock
from metadata.errors import VersionConflict
from metadata.store import ABSENT, CheckLease, Delete, MetadataStore, Put
from metadata.topics import (
    TOPIC_COUNTER,
    TOPICS,
    TopicRecord,
    decode_topic,
    encode_row,
    namespace_prefix,
    topic_key,
)

TopicInfo = TopicRecord
"""What may be shown of a topic is all that is stored of it."""


class TopicCatalogue:
    """The topics of one cluster.

    Every call may raise MetadataUnavailable and MetadataBroken; BadTopic for what is no
    topic's name; others are named where they can happen.
    """

    def __init__(
        self, store: MetadataStore, *, timeout_s: float, clock: StoreClock | None = None
    ) -> None:
        """*clock*: the store's, if there is an estimate of it already."""
        self.store = store
        self.timeout_s = timeout_s
        self.clock = StoreClock(store) if clock is None else clock

    async def now_ms(self) -> int:
        """Return the store's time, in Unix milliseconds."""
        with translated(self.timeout_s):
            await self.clock.refresh()
        return self.clock.now_ms()

    async def create(self, wanted: TopicRecord) -> TopicRecord:
        """Make a topic like *wanted*, with an uid of its own, and return it.

        Raises:
            TopicExists: the name is taken, or still taken: its deletion is not over.
        """
        while True:
            if await self.find(wanted.name) is not None:
                raise TopicExists(wanted.name)
            with translated(self.timeout_s):
                uid = await self.store.next_id(TOPIC_COUNTER)
            now_ms = await self.now_ms()
            made = msgspec.structs.replace(wanted, uid=uid, created_ms=now_ms, state="active")
            if await self._change(made, ABSENT, "created"):
                return made

    async def get(self, name: str) -> tuple[TopicRecord, int]:
        """Return a topic and the version of its record.

        Raises:
            NoSuchTopic: there is none, or it is being deleted.
        """
        found = await self.find(name)
        if found is None or found[0].state != "active":
            raise NoSuchTopic(name)
        return found

    async def find(self, name: str) -> tuple[TopicRecord, int] | None:
        """Return what is stored of a topic, also while it is being deleted."""
        key = _key(name)
        with translated(self.timeout_s):
            found = await self.store.get(key)
            return None if found is None else (decode_topic(key, found.value), found.version)

    async def alter(self, name: str, alteration: Alteration) -> TopicRecord:
        """Alter a topic and return it; what is so already is no change, and no event.

        Raises:
            NoSuchTopic: there is none.
            BadTopic: it cannot become so.
        """
        return await self._replace(name, "altered", lambda record: altered(record, alteration))

    async def mark_deleting(self, name: str) -> TopicRecord:
        """Let nobody find the topic any more. Raises NoSuchTopic: nobody does."""
        return await self._replace(
            name, "deleted", lambda record: msgspec.structs.replace(record, state="deleting")
        )

    async def forget(self, record: TopicRecord, *, checks: Sequence[CheckLease] = ()) -> None:
        """Remove the record of a topic of which nothing else is left.

        Nothing happens when somebody else did so. Raises LeaseLost.
        """
        found = await self.find(record.name)
        if found is None or found[0].uid != record.uid:
            return
        try:
            with translated(self.timeout_s):
                await self.store.transact([*checks, Delete(_key(record.name), found[1])])
        except VersionConflict:
            return  # it is changed no more, but by removing it

    async def list(self, namespace: str | None = None, *, own: bool = True) -> list[TopicRecord]:
        """Return the topics of a namespace, or all, by name, without those being deleted.

        *own* False: without this layer's own, such as ``__events``.
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
            if changed == record or await self._change(changed, version, kind):
                return changed

    async def _change(self, record: TopicRecord, version: int, kind: Kind) -> bool:
        """Put *record* in the place of *version*; False if somebody was faster: look again."""
        told = record if kind != "deleted" else msgspec.structs.replace(record, state="active")
        try:
            with translated(self.timeout_s):
                events = await event_ops(self.store, kind, told)
                put = Put(topic_key(record.name), encode_row(record), version)
                await self.store.transact([put, *events])
        except VersionConflict:
            return False
        return True


def check_users(name: str) -> None:
    """Raise BadTopic for a name that users cannot give: it is none, or it is our own."""
    _key(name)
    if is_own(name):
        raise BadTopic("names that begin with '__' are quire's own", topic=name)


def _key(name: str) -> str:
    try:
        return topic_key(name)
    except ValueError as wrong:
        raise BadTopic(str(wrong), topic=name) from wrong
