"""Whether groups are done with one message, by their rows; nothing is asked of their members.

    progress before or at the message ──► to come
    progress after it ──► in a share and not done? ──► held, by a member or by nobody
                     └──► among the dead letters?  ──► dead letter
                     └──► passed

A message of a shared group that passes from one member to another is in a share again at once, but
one listing can miss both shares. So they are listed twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import inf

import trio

from ledger_client.errors import LedgerError
from ledger_client.groups.options import DEAD_PREFIX, dead_topic
from ledger_client.groups.slots import Units
from ledger_client.ledgers.catalogue import translated
from ledger_client.message_id import MessageId
from ledger_client.topics.context import TopicContext
from ledger_client.topics.positions import Place
from ledger_client.topics.reading.reader import open_reader
from ledger_client.topics.tracing.whereabouts import GroupStanding, Traced
from metadata.groups.assignment import Part
from metadata.groups.rows import (
    GROUPS,
    SLOTS,
    GroupRecord,
    decode_group,
    decode_member,
    decode_progress,
    members_prefix,
    parts_of,
    progress_key,
)
from metadata.groups.shares import (
    ShareRecord,
    decode_share,
    holder_of,
    row_of_holder,
    shares_prefix,
    slot_part,
)
from metadata.store import items_under

LETTERS_MAX = 10_000
"""The newest dead letters of a group that are looked through."""
LETTERS_S = 5.0
"""Time limit for looking through them, of all groups together."""


class Standings:
    """The groups' standings about one message. Calls raise MetadataUnavailable, MetadataBroken.

    Args:
        context: the client's.
        traced: the message, whose place is known.
    """

    def __init__(self, context: TopicContext, traced: Traced) -> None:
        assert traced.place is not None
        self._context = context
        self._letters_until = inf
        self._topic = traced.report.topic
        self._uid = traced.uid
        self._place: Place = traced.place
        self._lane = traced.report.lane
        self._message = traced.message
        self._partition = traced.report.message_id.partition
        self._id = traced.report.message_id if traced.message is None else traced.message.id

    async def look(self) -> list[GroupStanding]:
        """Return the standing of each group that consumes the message's partition, by name."""
        with translated(self._context.catalogue.timeout_s):
            rows = await items_under(self._context.store, GROUPS)
            groups = {key.removeprefix(GROUPS): decode_group(key, row.value) for key, row in rows}
        found = [await self._of(name, record) for name, record in groups.items()]
        return [standing for standing in found if standing is not None]

    async def _of(self, group: str, record: GroupRecord) -> GroupStanding | None:
        """Return the standing of a group, `None` if it does not consume the partition."""
        passed: list[bool] = []
        parts = self._parts(record)
        for part in parts:
            has_passed = await self._has_passed(group, part)
            if has_passed is not None:
                passed.append(has_passed)
        if not passed and not await self._consumes(group, parts):
            return None
        if len(passed) < len(parts) or not all(passed):
            return GroupStanding(group=group, mode=record.mode, state="to come")
        if record.mode != "exclusive":
            held = await self._held(group, record) or await self._held(group, record)
            letter = await self._dead_letter(group) if held is None else None
            if held is not None:
                return held
            if letter is not None:
                return GroupStanding(
                    group=group, mode=record.mode, state="dead letter", dead_letter=letter
                )
        return GroupStanding(group=group, mode=record.mode, state="passed")

    def _parts(self, record: GroupRecord) -> list[Part]:
        """Return what the group has progress for: the partition, or slots that may have the key."""
        if record.mode != "key-shared":
            return [Part(self._uid, self._partition)]
        slots = range(SLOTS)
        if self._message is not None:
            slot = Units(record.mode).slot_of(self._message)
            slots = range(slot, slot + 1)
        return [slot_part(self._uid, self._partition, slot) for slot in slots]

    async def _has_passed(self, group: str, part: Part) -> bool | None:
        """Return True if the group's progress is after the message; `None` if it has none."""
        key = progress_key(group, part)
        with translated(self._context.catalogue.timeout_s):
            found = await self._context.store.get(key)
            if found is None:
                return None
            lanes = decode_progress(key, found.value).lanes
        heads = [(each.number, each.entry, each.skip) for each in lanes if each.lane == self._lane]
        return bool(heads) and self._place.at < heads[0]

    async def _consumes(self, group: str, parts: list[Part]) -> bool:
        """Return True if a member has one of *parts*."""
        with translated(self._context.catalogue.timeout_s):
            rows = await items_under(self._context.store, members_prefix(group))
            members = [decode_member(key, row.value) for key, row in rows]
        return any(parts_of(member.parts) & set(parts) for member in members)

    # --- shared groups -------------------------------------------------------------------

    async def _held(self, group: str, record: GroupRecord) -> GroupStanding | None:
        """Return who has the message of a shared group; `None` if nobody has, or it is done."""
        with translated(self._context.catalogue.timeout_s):
            rows = await items_under(self._context.store, shares_prefix(group))
            shares = {key: decode_share(key, row.value) for key, row in rows}
        for key, share in shares.items():
            index = self._index_in(share)
            if index is not None and not share.done[index // 8] >> index % 8 & 1:
                return GroupStanding(
                    group=group,
                    mode=record.mode,
                    state="held",
                    member=await self._member(group, key),
                    deliveries=share.tries.get(index, share.deliveries),
                )
        return None

    async def _member(self, group: str, key: str) -> str:
        """Return the member in the key of a share, "" if it is nobody or gone."""
        row = row_of_holder(group, key)
        if row is None:
            return ""
        with translated(self._context.catalogue.timeout_s):
            return "" if await self._context.store.get(row) is None else holder_of(key)

    def _index_in(self, share: ShareRecord) -> int | None:
        """Return the index of the message in a share, `None` if it is not in there."""
        where = (share.topic, share.partition, share.lane, share.number)
        if where != (self._uid, self._partition, self._lane, self._place.number):
            return None
        entry = self._place.entry - share.entry
        if not 0 <= entry < len(share.counts) or self._place.skip >= share.counts[entry]:
            return None
        return sum(share.counts[:entry]) + self._place.skip

    async def _dead_letter(self, group: str) -> MessageId | None:
        """Return the id of the message's dead letter, if it is among the newest ones.

        Only the group's own topic of dead letters is searched.
        """
        wanted = {
            "topic": self._topic.encode(),
            "group": group.encode(),
            "id": str(self._id).encode(),
        }
        left = LETTERS_MAX
        self._letters_until = min(self._letters_until, trio.current_time() + LETTERS_S)
        with trio.move_on_at(self._letters_until), suppress(LedgerError):
            letters = dead_topic(self._topic, group)
            async with open_reader(self._context, letters, reverse=True, on_gap="skip") as reader:
                async for letter in reader:
                    if _is_about(letter.headers, wanted):
                        return letter.id
                    left -= 1
                    if not left:
                        break
        return None


def _is_about(headers: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> bool:
    return all(headers.get(DEAD_PREFIX + name) == value for name, value in wanted.items())
