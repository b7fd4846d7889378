"""The rows of the shares that one member has: stored, given to others, and taken from the gone.

Each change expects the version of the row, so a member that lost a share learns of it here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from itertools import chain, islice

import msgspec
import trio

from ledger_client.errors import MetadataUnavailable
from ledger_client.groups.share import Share, State, messages_left, new_name
from ledger_client.ledgers.catalogue import translated
from metadata.errors import VersionConflict
from metadata.groups.assignment import Part
from metadata.groups.keeps import going_back
from metadata.groups.rows import Wanted, member_key, members_prefix
from metadata.groups.shares import (
    FREE,
    ShareRecord,
    decode_share,
    held_prefix,
    holder_of,
    row_of_holder,
    share_key,
    shares_prefix,
    want_key,
    wants_prefix,
)
from metadata.store import (
    ABSENT,
    Check,
    Delete,
    Item,
    MetadataStore,
    Op,
    Put,
    Versioned,
    items_under,
    pages,
)

ROWS_AT_ONCE = 200
SIZE_AT_ONCE = 400 << 10
"""Bytes of rows in one transaction."""


class ShareRows:
    """The rows of one member of a group.

    Args:
        store: the metadata store.
        group: name of the group.
        member: name of the member.
        run: identifies what the member takes; another one after each loss of membership.
        timeout_s: for one operation of the store.
    """

    def __init__(
        self, store: MetadataStore, group: str, member: str, *, run: str, timeout_s: float
    ) -> None:
        self.run = run
        self.turn = trio.Lock()
        """held while rows of shares that this member has are changed"""
        self._store = store
        self._group = group
        self._member = member
        self._timeout_s = timeout_s
        self._coming: set[str] = set()
        """names of shares that are stored by now, maybe, and not handed out yet"""

    @contextmanager
    def taking(self, shares: Sequence[Share]) -> Iterator[None]:
        """Take new shares: given() and orphans() do not find their rows within the block.

        A hint about a row may come before the answer to the change that put it.
        """
        names = {share.name for share in shares}
        self._coming |= names
        try:
            yield
        finally:
            self._coming -= names

    def key(self, share: Share) -> str:
        """Return the key of a share of this member."""
        return share_key(self._group, self._member, share.name)

    def put(self, share: Share) -> Put:
        """Return what stores a share that is new."""
        return Put(self.key(share), msgspec.json.encode(share.row(self.run)), ABSENT)

    # --- acknowledgements ----------------------------------------------------------------

    async def save(self, shares: Iterable[Share]) -> set[Share]:
        """Store shares as they are by now; return those that others have.

        Raises:
            MetadataUnavailable: some may be stored; save them again.
        """
        lost: set[Share] = set()
        left = list(shares)
        async with self.turn:
            while left:
                # The member may have lost everything while this waited.
                left = [share for share in left if not share.is_stored]
                lost |= {share for share in left if not share.is_held}
                left = [share for share in left if share.is_held]
                values = self._first(left)
                if not values or await self._save(values):
                    left = left[len(values) :]
                    continue
                gone = await self._look(values)
                lost |= gone
                left = [share for share in left if share not in gone]
        return lost

    def _first(self, shares: Sequence[Share]) -> dict[Share, bytes | None]:
        """Return as many rows as one transaction takes; `None` for those to delete."""
        taken: dict[Share, bytes | None] = {}
        size = 0
        for share in islice(shares, ROWS_AT_ONCE):
            value = msgspec.json.encode(share.row(self.run)) if share.left else None
            size += len(value or b"")
            if taken and size > SIZE_AT_ONCE:
                break
            taken[share] = value
        return taken

    async def _save(self, values: dict[Share, bytes | None]) -> bool:
        """Make one transaction; False if a row had changed."""
        ops: list[Op] = []
        for share, value in values.items():
            key, version = self.key(share), share.row_version
            ops.append(Delete(key, version) if value is None else Put(key, value, version))
        try:
            with translated(self._timeout_s):
                versions = await self._store.transact(ops)
        except VersionConflict:
            return False
        except MetadataUnavailable:
            with trio.CancelScope(shield=True), trio.move_on_after(self._timeout_s):
                await self._look(values)
            raise
        for (share, value), version in zip(values.items(), versions, strict=True):
            share.row_version, share.is_stored = version, value is None
        return True

    async def _look(self, shares: Iterable[Share]) -> set[Share]:
        """Learn the versions of rows again; return the shares that others have by now."""
        lost: set[Share] = set()
        for share in shares:
            found = await self._get(self.key(share))
            row = None if found is None else decode_share(self.key(share), found.value)
            if found is not None and row is not None and row.run == self.run:
                share.row_version = found.version
                share.note_given(row)
            else:
                lost.add(share)
        return lost

    # --- given and taken -----------------------------------------------------------------

    async def give(
        self, share: Share, record: ShareRecord, indexes: Sequence[int], want: Item
    ) -> bool:
        """Let another member have messages of a share, as *record*; False if nothing was changed.

        *want*: the row of that member, which is without work.

        Raises:
            MetadataUnavailable: the store did not answer in time; they may be given.
        """
        member = want[0].rpartition("/")[2]
        given = share_key(self._group, member, new_name())
        async with self.turn:
            if not share.is_held:
                return False
            ops: list[Op] = [
                self._without(share, indexes),
                Put(given, msgspec.json.encode(record), ABSENT),
            ]
            ops += await self._moving(share)
            row = await self._get(member_key(self._group, member))
            if row is None:
                await self._transact([Delete(want[0])])
                return False
            ops += [Check(member_key(self._group, member), row.version)]
            ops += [Delete(want[0], want[1].version)]
            try:
                versions = await self._transact(ops)
            except VersionConflict:
                # A call whose answer was lost is sent again, and then meets its own change.
                return await self._is_without(share, indexes)
            share.row_version = versions[0]
            share.is_stored = isinstance(ops[0], Delete)
        return True

    async def free(self, left: Mapping[Share, Sequence[int]]) -> set[Share]:
        """Leave messages of shares to others: of the first ones, as many as one change takes.

        Return those of which others have them by now; none if rows had changed, which are known
        anew.

        Raises:
            MetadataUnavailable: the store did not answer in time; they may be left.
        """
        async with self.turn:
            gone = {share for share in left if not share.is_held}
            changes = self._freeing({each: at for each, at in left.items() if each not in gone})
            if not changes:
                return gone
            ops: list[Op] = [*chain.from_iterable(changes.values())]
            with translated(self._timeout_s):
                topics = {share.record.topic for share in changes}
                ops += await going_back(self._store, self._group, topics)
            try:
                versions = await self._transact(ops)
            except VersionConflict:
                # A call whose answer was lost is sent again, and then meets its own change.
                return gone | {each for each in changes if await self._is_without(each, left[each])}
            for number, (share, (without, _)) in enumerate(changes.items()):
                share.row_version = versions[2 * number]
                share.is_stored = isinstance(without, Delete)
        return gone | changes.keys()

    def _freeing(self, left: Mapping[Share, Sequence[int]]) -> dict[Share, tuple[Op, Put]]:
        """Return for the first shares what one transaction takes: a share without, and the rest."""
        changes: dict[Share, tuple[Op, Put]] = {}
        size = 0
        for share, indexes in islice(left.items(), ROWS_AT_ONCE // 2):
            without, value = (
                self._without(share, indexes),
                msgspec.json.encode(share.part_of(indexes)),
            )
            size += len(value) + (len(without.value) if isinstance(without, Put) else 0)
            if changes and size > SIZE_AT_ONCE:
                break
            free = share_key(self._group, FREE, new_name())
            changes[share] = without, Put(free, value, ABSENT)
        return changes

    def _without(self, share: Share, indexes: Sequence[int]) -> Op:
        row = share.row(self.run, without=indexes)
        if not messages_left(row):
            return Delete(self.key(share), share.row_version)
        return Put(self.key(share), msgspec.json.encode(row), share.row_version)

    async def is_without(self, share: Share, indexes: Sequence[int]) -> bool:
        """Return True if the stored row of a share has none of these messages.

        Raises:
            MetadataUnavailable: the store did not answer in time.
        """
        async with self.turn:
            return await self._is_without(share, indexes)

    async def _is_without(self, share: Share, indexes: Sequence[int]) -> bool:
        key = self.key(share)
        found = await self._get(key)
        if found is None:
            share.is_stored = all(
                state == State.DONE or index in indexes for index, state in enumerate(share.states)
            )
            return True
        row = decode_share(key, found.value)
        if row.run != self.run:
            return True  # another process of this member's name has the whole share
        share.row_version = found.version
        left = Share(row, share.name, is_blind=False)
        return all(left.states[index] == State.DONE for index in indexes)

    async def leave(self, share: Share) -> None:
        """Leave what is not done of a share. Raises MetadataUnavailable, VersionConflict."""
        async with self.turn:
            left = [at for at, state in enumerate(share.states) if state != State.DONE]
            if left:
                row = msgspec.json.encode(share.part_of(left))
                await self._transact([Put(self.key(share), row, share.row_version)])

    async def free_former(self) -> None:
        """Leave to others the shares in this member's name, unless it is a member.

        Raises:
            MetadataUnavailable: the store did not answer in time; some may be left.
        """
        row = member_key(self._group, self._member)
        while items := await self.given(()):
            if await self._get(row) is not None:
                return
            ops: list[Op] = [Check(row, ABSENT)]
            topics: set[int] = set()
            for key, found in _fitting(sorted(items, key=_order)):
                free = share_key(self._group, FREE, new_name())
                ops += [Delete(key, found.version), Put(free, found.value, ABSENT)]
                topics.add(decode_share(key, found.value).topic)
            with translated(self._timeout_s):
                ops += await going_back(self._store, self._group, topics)
            with suppress(VersionConflict):  # others take them, or it is a member by now
                await self._transact(ops)

    async def adopt(self, item: Item, share: Share, rest: ShareRecord | None) -> bool:
        """Take over a share, or leave *rest* of it; False if it or its holder changed meanwhile."""
        key, found = item
        if rest is not None:  # its former holder, which may come back, learns that it lost it
            rest = msgspec.structs.replace(rest, run="")
        ops: list[Op] = []
        row = row_of_holder(self._group, key)
        is_own = holder_of(key) == self._member
        if row is not None and not is_own:
            ops.append(Check(row, ABSENT))
        if is_own and rest is None:
            share.name = key.rpartition("/")[2]
            ops.append(Put(key, msgspec.json.encode(share.row(self.run)), found.version))
        else:
            if rest is None:
                ops.append(Delete(key, found.version))
            elif is_own:  # others take nothing of a member that lives
                free = share_key(self._group, FREE, new_name())
                ops += [Delete(key, found.version), Put(free, msgspec.json.encode(rest), ABSENT)]
            else:
                ops.append(Put(key, msgspec.json.encode(rest), found.version))
            ops.append(self.put(share))
        last = len(ops) - 1
        ops += await self._moving(share)
        try:
            share.row_version = (await self._transact(ops))[last]
        except VersionConflict:
            # A call whose answer was lost is sent again, and then meets its own change.
            return not await self._look([share])
        return True

    async def again(self, item: Item) -> Item | None:
        """Return a row as it is by now. Raises MetadataUnavailable."""
        found = await self._get(item[0])
        return None if found is None else (item[0], found)

    async def _moving(self, share: Share) -> list[Op]:
        """Return what shows retention, which lists shares, that one passes to another key."""
        with translated(self._timeout_s):
            return await going_back(self._store, self._group, [share.record.topic])

    # --- what there is -------------------------------------------------------------------

    async def orphans(self, known: Container[str]) -> AsyncIterator[Item]:
        """Yield the shares that nobody has, and those of this member that are not in *known*."""
        prefix, after = shares_prefix(self._group), ""
        while page := await self._list(prefix, after):
            key = page[0][0]
            holder = holder_of(key)
            owned = held_prefix(self._group, holder)
            after = owned + "~"  # names of shares end before
            if holder in (self._member, FREE) or await self._is_gone(holder):
                async for items in pages(self._store, owned):
                    for item in items:
                        if not self.knows(item[0], known):
                            yield item

    async def given(self, known: Container[str]) -> list[Item]:
        """Return the shares of this member that are not in *known*."""
        prefix = held_prefix(self._group, self._member)
        with translated(self._timeout_s):
            page = await self._store.list(prefix)
        return [item for item in page if not self.knows(item[0], known)]

    def knows(self, key: str, known: Container[str]) -> bool:
        """Return True for a share of this member that it knows of by now."""
        name = key.rpartition("/")[2]
        return holder_of(key) == self._member and (name in known or name in self._coming)

    async def others(self) -> bool:
        """Return True if the group has another member."""
        with translated(self._timeout_s):
            page = await self._store.list(members_prefix(self._group), limit=2)
        return len(page) > 1

    # --- wants ---------------------------------------------------------------------------

    async def want(self, wanted: Wanted) -> None:
        """Say that this member has nothing to do. Raises MetadataUnavailable."""
        value = msgspec.json.encode(wanted)
        with translated(self._timeout_s):
            await self._store.put(want_key(self._group, self._member), value)

    async def unwant(self) -> None:
        """Take that back. Raises MetadataUnavailable."""
        await self._transact([Delete(want_key(self._group, self._member))])

    async def wants(self) -> list[Item]:
        """Return what other members without work stored."""
        mine = want_key(self._group, self._member)
        with translated(self._timeout_s):
            page = await self._store.list(wants_prefix(self._group))
        return [item for item in page if item[0] != mine]

    # --- the store -----------------------------------------------------------------------

    async def _is_gone(self, member: str) -> bool:
        return await self._get(member_key(self._group, member)) is None

    async def _get(self, key: str) -> Versioned | None:
        with translated(self._timeout_s):
            return await self._store.get(key)

    async def _list(self, prefix: str, after: str) -> list[Item]:
        with translated(self._timeout_s):
            return await self._store.list(prefix, after=after, limit=1)

    async def _transact(self, ops: Sequence[Op]) -> list[int]:
        with translated(self._timeout_s):
            return await self._store.transact(ops)


def _order(item: Item) -> tuple[int, ...]:
    return decode_share(item[0], item[1].value).order


def _fitting(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the first rows, as many as one transaction takes: one at least."""
    size = 0
    for number, (key, found) in enumerate(islice(items, ROWS_AT_ONCE // 2)):
        size += len(found.value)
        if number and size > SIZE_AT_ONCE:
            return
        yield key, found


async def shares_in(
    store: MetadataStore, group: str, parts: Set[Part] | None, timeout_s: float
) -> dict[str, ShareRecord]:
    """Return what members of a group have of some partitions, by key; `None` for all.

    Raises:
        MetadataUnavailable: the store did not answer in time.
    """
    with translated(timeout_s):
        rows = await items_under(store, shares_prefix(group))
        found = {key: decode_share(key, row.value) for key, row in rows}
    return {
        key: record
        for key, record in found.items()
        if parts is None or Part(record.topic, record.partition) in parts
    }
