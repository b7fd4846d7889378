"""The lanes that a group consumes: how far it came in each, and where it would be elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ledger_client.errors import BadTopic
from ledger_client.groups.backlog import Held, backlog, held_in
from ledger_client.groups.consumers import GroupLane
from ledger_client.groups.progress import read_all_progress
from ledger_client.groups.share_rows import shares_in
from ledger_client.groups.slots import Units, are_even, lowest
from ledger_client.ledgers.catalogue import translated
from ledger_client.message_id import MessageId
from ledger_client.topics.context import TopicContext
from ledger_client.topics.positions import EARLIEST, LaneRef, Place, Places, is_position
from ledger_client.topics.reading.lane_ranges import KnownLane
from ledger_client.topics.reading.lane_set import LaneSet, narrow
from ledger_client.topics.reading.options import ReadOptions, Start, check_timed
from ledger_client.topics.reading.place_finder import row_of_message
from metadata.groups.assignment import Part
from metadata.groups.rows import (
    SLOTS,
    Mode,
    decode_group,
    decode_member,
    group_key,
    members_prefix,
    parts_of,
    progress_part,
    progress_prefix,
)
from metadata.groups.shares import ShareRecord
from metadata.store import items_under
from metadata.topics import TopicRecord


class GroupLanes:
    """The lanes that one group consumes.

    Args:
        context: the client's.
        group: its name.
    """

    def __init__(self, context: TopicContext, group: str) -> None:
        self._context = context
        self._group = group

    async def topics(self, names: Iterable[str] = ()) -> list[TopicRecord]:
        """Return the topics of these names, by default those in which the group has progress.

        Raises:
            NoSuchTopic: there is none of a name.
        """
        if named := [names] if isinstance(names, str) else list(names):
            return [(await self._context.catalogue.get(name))[0] for name in named]
        uids = {progress_part(key).topic for key in await self._rows()}
        return [topic for topic in await self._context.catalogue.list() if topic.uid in uids]

    async def known(self, topic: TopicRecord) -> Sequence[KnownLane]:
        """Return the lanes of a topic. Raises NoSuchTopic."""
        return await self._lanes(topic).lanes_of(0)

    async def lag(self, topics: Iterable[TopicRecord]) -> list[GroupLane]:
        """Return every lane of *topics*. Raises LedgerError as reading does."""
        chosen, found = list(topics), list[GroupLane]()
        heads = await self._heads(chosen)
        stored = {part: lowest(places) for part, places in heads.items()}
        held, owners = await self.held(), await self._owners(chosen)
        now_ms = await self._context.catalogue.now_ms()
        for topic in chosen:
            for lane, end in await self.spans(topic):
                part = Part(topic.uid, lane.lane.partition)
                place = stored.get(part, {}).get(lane.lane.lane, EARLIEST)
                unacked = held_in(held.get((part, lane.lane.lane), ()), place)
                one = await self._lane(lane, place, end, unacked, now_ms, owners.get(part, ""))
                is_even = are_even(heads.get(part, ()), lane.lane.lane)
                found.append(msgspec.structs.replace(one, is_exact=one.is_exact and is_even))
        return found

    async def spans(self, topic: TopicRecord) -> list[tuple[KnownLane, Place]]:
        """Return the lanes of a topic, each with its end. Raises LedgerError as reading does."""
        lanes = self._lanes(topic)
        known = await lanes.lanes_of(0)
        ends = await lanes.find(known, "latest")
        return [(lane, end.place) for lane, end in zip(known, ends, strict=True)]

    async def places(self, topics: Iterable[TopicRecord], start: Start) -> dict[Part, Places]:
        """Return the places that *start* stands for, in the lanes of each partition of *topics*.

        A message is a place in its own topic alone, and a position in the partitions that it
        names. Lanes that begin at their first message are left out.

        Raises:
            BadTopic: there is no such place, as behind the end of a lane.
            LedgerError: as reading does.
        """
        found: dict[Part, dict[int, Place]] = {}
        chosen = list(topics)
        if isinstance(start, MessageId) and len(chosen) > 1:
            chosen = [await self._topic_of(start, chosen)]
        for topic in chosen:
            check_timed(start, topic)
            lanes = self._lanes(topic)
            known = await lanes.lanes_of(0)
            named = narrow([each.lane for each in known], start)
            known = [each for each in known if each.lane in named and _names(start, each.lane)]
            begins = await lanes.find(known, start, exact=True)
            found |= {part: {} for part in _begun(start, topic)}
            for lane, begin in zip(known, begins, strict=True):
                part = Part(topic.uid, lane.lane.partition)
                places = found.setdefault(part, {})
                if begin.place != EARLIEST:
                    places[lane.lane.lane] = begin.place
        if is_position(start) and not found:
            names = ", ".join(topic.name for topic in chosen)
            raise BadTopic("the position names nothing of this topic", topic=names)
        return {**found}

    async def shown(
        self, topics: Iterable[TopicRecord], places: Mapping[Part, Places]
    ) -> dict[Part, Places]:
        """Return *places* with every lane of their partitions: those left out begin at EARLIEST.

        Raises:
            NoSuchTopic: one of *topics* is gone.
        """
        found = {part: dict(lanes) for part, lanes in places.items()}
        for topic in topics:
            for known in await self.known(topic):
                part = Part(topic.uid, known.lane.partition)
                if part in found:
                    found[part].setdefault(known.lane.lane, EARLIEST)
        return {**found}

    async def _topic_of(self, message: MessageId, topics: Iterable[TopicRecord]) -> TopicRecord:
        """Return which of *topics* has the ledger of *message*. Raises BadTopic if none has."""
        for topic in topics:
            for known in await self._lanes(topic).lanes_of(0):
                is_there = known.lane.partition == message.partition
                if is_there and await row_of_message(known, message) is not None:
                    return topic
        names = ", ".join(topic.name for topic in topics)
        raise BadTopic(f"none of these has message {message}; name its topic", topic=names)

    async def ends(self, topic: TopicRecord) -> Places:
        """Return the places behind the lanes of a topic with one partition.

        Lanes without a ledger are left out.

        Raises:
            LedgerError: as reading does.
        """
        lanes = self._lanes(topic)
        known = [each for each in await lanes.lanes_of(0) if await each.rows.first_from(0)]
        ends = await lanes.find(known, "latest")
        return {each.lane.lane: end.place for each, end in zip(known, ends, strict=True)}

    async def committed(self, topics: Iterable[TopicRecord]) -> dict[Part, Places]:
        """Return where the group goes on in each partition of *topics*; of slots, the first place.

        Raises:
            MetadataUnavailable: the store did not answer in time.
        """
        return {part: lowest(places) for part, places in (await self._heads(topics)).items()}

    async def _heads(self, topics: Iterable[TopicRecord]) -> dict[Part, list[Places]]:
        """Return where the group goes on in each partition: one place a lane, or one a slot.

        A slot that has not begun goes on at the beginning.
        """
        context = self._context
        timeout_s = context.options.metadata_timeout_s
        stored = await read_all_progress(context.store, self._group, timeout_s)
        places = {part: row.places for part, row in stored.items()}
        if await self._mode() != "key-shared":
            return {part: [lanes] for part, lanes in places.items()}
        slots: dict[Part, list[Places]] = {}
        units, known = Units("key-shared"), {topic.uid: topic for topic in topics}
        for part, lanes in places.items():
            if part.topic in known:
                whole = Part(part.topic, units.partition(known[part.topic], part))
                slots.setdefault(whole, []).append(lanes)
        return {
            whole: [*found, *({} for _ in range(SLOTS - len(found)))]
            for whole, found in slots.items()
        }

    async def _mode(self) -> Mode:
        key = group_key(self._group)
        with translated(self._context.options.metadata_timeout_s):
            found = await self._context.store.get(key)
        return "exclusive" if found is None else decode_group(key, found.value).mode

    async def held(self) -> Mapping[tuple[Part, int], Sequence[ShareRecord]]:
        """Return what members of a shared group hold, by partition and lane.

        Raises:
            MetadataUnavailable: the store did not answer in time.
        """
        timeout_s = self._context.options.metadata_timeout_s
        held: dict[tuple[Part, int], list[ShareRecord]] = defaultdict(list)
        for record in (await shares_in(self._context.store, self._group, None, timeout_s)).values():
            held[Part(record.topic, record.partition), record.lane].append(record)
        return {**held}

    async def _rows(self) -> list[str]:
        prefix = progress_prefix(self._group)
        with translated(self._context.options.metadata_timeout_s):
            return [key for key, _ in await items_under(self._context.store, prefix)]

    async def _owners(self, topics: Iterable[TopicRecord]) -> dict[Part, str]:
        """Return the member of each partition that one member alone has."""
        prefix = members_prefix(self._group)
        units, known = Units(await self._mode()), {topic.uid: topic for topic in topics}
        found: dict[Part, str] = {}
        with translated(self._context.options.metadata_timeout_s):
            for key, row in await items_under(self._context.store, prefix):
                member = key.removeprefix(prefix)
                for each in parts_of(decode_member(key, row.value).parts):
                    if each.topic not in known:
                        continue
                    part = Part(each.topic, units.partition(known[each.topic], each))
                    found[part] = member if found.get(part, member) == member else ""
        return found

    async def _lane(
        self, known: KnownLane, place: Place, end: Place, held: Held, now_ms: int, member: str
    ) -> GroupLane:
        lane = known.lane
        left = await backlog(known, self._context.opener, place, end, held)
        return GroupLane(
            topic=lane.topic,
            partition=lane.partition,
            lane=lane.lane,
            committed=place.version,
            end=end.version,
            lag=left.messages,
            is_exact=left.is_exact,
            lag_s=0.0 if left.sent_ms is None else max(now_ms - left.sent_ms, 0) / 1000,
            member=member,
            unacked=held.messages,
        )

    def _lanes(self, topic: TopicRecord) -> LaneSet:
        return LaneSet(
            catalogue=self._context.catalogue,
            opener=self._context.opener,
            topics=[topic],
            options=ReadOptions(),
        )


def _begun(start: Start, topic: TopicRecord) -> set[Part]:
    """Return the partitions of which *start* is a position that names a lane's first message.

    They may have no lanes yet.
    """
    return {
        Part(topic.uid, each.partition)
        for each in (start if is_position(start) else ())
        if each.uid == topic.uid and each.partition in topic.partition_indexes
        if each.place.at == EARLIEST.at
    }


def _names(start: Start, lane: LaneRef) -> bool:
    """Return False if *start* is a position that names nothing of the lane's partition."""
    return not is_position(start) or any(
        (each.topic, each.partition) == (lane.topic, lane.partition) for each in start
    )
