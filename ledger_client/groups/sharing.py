"""Messages pass from member to member: from those that are gone, and to those that have nothing.

A member without work says so by a row. Whoever has more than its application asks for gives some
of it to such members. What a member had that is gone is taken over by whoever finds it.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
    Set as AbstractSet,
)
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, Protocol, TypeAlias

import msgspec
import trio

from ledger_client.errors import BadTopic, Gap, LedgerError, MetadataUnavailable, NoSuchTopic
from ledger_client.groups.arrivals import Arrivals, Awaited
from ledger_client.groups.holdings import Holdings
from ledger_client.groups.options import ConsumerOptions
from ledger_client.groups.passing import Keeper, Passing
from ledger_client.groups.share import Share, State, done_bits, new_name
from ledger_client.groups.share_rows import ShareRows
from ledger_client.groups.slots import Units
from ledger_client.groups.sources import Kept, PartSource
from ledger_client.topics.positions import Place
from metadata.errors import MetadataError
from metadata.groups.assignment import Part
from metadata.groups.rows import Wanted, matches, members_prefix
from metadata.groups.shares import (
    FREE,
    ShareRecord,
    decode_share,
    decode_want,
    held_prefix,
    holder_of,
    wants_prefix,
)
from metadata.store import Item
from metadata.watch import Watches

LOOK_S = 10.0
"""Between two looks at what is left over, beside hints."""
WANT_S = 0.1
"""How long the application waits in vain until others are asked for messages."""
WANTING_S = 1.0
"""Between two looks whether the application still waits, while others know that it does."""
GIVE_S = 0.02
"""How long messages wait for the application until others get them."""
GIVEN_MAX = 500
ADOPTED_MAX = 200
"""Shares that one look takes over."""
FETCHED_MAX = 16
"""Shares that are read at once before they are taken over, one after the other."""
ATTEMPTS_MAX = 50
ADOPTIONS_MAX = 4
"""How often one share is tried that others change."""
CONFLICT_S = 0.05
"""Until shares are looked at again that others changed."""
RETRY_S = 1.0
HANDED_OVER = 0.6
"""Of the time to finish what is revoked."""
_log = logging.getLogger(__name__)
Work = Callable[[], Awaitable[None]]
Fetched: TypeAlias = dict[str, Kept]
"""Messages of shares that were read ahead, by key."""


class Receiver(Keeper, Protocol):
    """Who hands out what was adopted, or could not be given away."""

    def receive(self, share: Share) -> None:
        """Hand out the messages of a share."""

    def miss(self, gap: Gap, share: Share, lost: Sequence[Place]) -> None:
        """Note that entries of a share were removed before anybody was done with them."""

    def tell(self) -> None:
        """Tell of what was noted: the look at what is left over has ended."""

    def due(self) -> list[tuple[Share, int]]:
        """Return the messages that are to be delivered again."""


class Orphan(NamedTuple):
    """A share that nobody has."""

    item: Item
    record: ShareRecord

    @property
    def part(self) -> Part:
        """Where its messages are."""
        return Part(self.record.topic, self.record.partition)


class Sharing:
    """See the head of this module. run() must run meanwhile."""

    def __init__(
        self,
        watches: Watches,
        options: ConsumerOptions,
        membership: Awaited,
        partitions: PartSource,
        arrivals: Arrivals,
        rows: ShareRows,
        holdings: Holdings,
        receiver: Receiver,
    ) -> None:
        self._watches = watches
        self._options = options
        self._membership = membership
        self._partitions = partitions
        self._arrivals = arrivals
        self._rows = rows
        self._holdings = holdings
        self._receiver = receiver
        self._units = Units(options.mode)
        self._by_key = options.mode == "key-shared"
        self._is_wanting = False
        self._has_others = False
        self._is_wanted_by_others = False
        self._known_topics: dict[int, bool] = {}
        """by uid, whether this member wants messages of a topic, which there is"""
        self._unreadable: set[str] = set()
        """keys of shares whose messages are not there any more"""
        self._news: dict[str, trio.Event] = {}
        self._slots_of: dict[str, set[int]] = {}
        """by key, the slots of messages in shares that were read, and are for others"""
        self._begun: AbstractSet[Part] = frozenset()
        """what was begun as this began to look for what others left: no share of a slot is passed
        over, and a later one taken"""
        self._turn = trio.Lock()
        self._is_leaving = False
        self._run = rows.run
        """what shares are of that the look under way takes over"""
        self._passing = Passing(
            options.group, self._units, partitions, rows, holdings, receiver, arrivals.note
        )

    async def run(self) -> None:
        """Give and take until cancelled."""
        group = self._options.group
        tasks: dict[str, Work] = {members_prefix(group): self._look_for_orphans}
        if self._by_key:
            # A member that is late leaves messages of slots that others have by then.
            tasks[held_prefix(group, FREE)] = self.adopt_orphans
        else:
            tasks[held_prefix(group, self._membership.member)] = self._take_gifts
            tasks[wants_prefix(group)] = self._give_sometimes
        async with trio.open_nursery() as nursery:
            for prefix, work in tasks.items():
                nursery.start_soon(self._follow, prefix, work)
            nursery.start_soon(self._passing.run if self._by_key else self._want_sometimes)

    def notify(self, prefix: str, _hint: str) -> None:
        """Look at what changed."""
        self._hurry(prefix)

    def _hurry(self, prefix: str) -> None:
        if prefix in self._news:
            self._news[prefix].set()

    async def _follow(self, prefix: str, work: Work) -> None:
        """Do *work* at each hint about *prefix*, and from time to time, until cancelled."""
        self._news[prefix] = trio.Event()
        with suppress(MetadataError):  # it is done from time to time all the same
            self._watches.subscribe(prefix, self)
        try:
            while True:
                with trio.move_on_after(LOOK_S):
                    await self._news[prefix].wait()
                self._news[prefix] = trio.Event()
                if not self._membership.is_member or self._is_leaving:
                    continue
                try:
                    await work()
                except (LedgerError, MetadataError) as failure:
                    self.report("messages not shared with other members", failure)
                    await trio.sleep(RETRY_S)
                    self._news[prefix].set()
        finally:
            self._watches.unsubscribe(prefix, self)

    # --- taken over ----------------------------------------------------------------------

    async def _look_for_orphans(self) -> None:
        self._has_others = await self._rows.others()
        await self.adopt_orphans()

    def report(self, what: str, failure: Exception) -> None:
        """Log what is tried again, unless it failed because this member goes."""
        if self._membership.is_member and not self._is_leaving:
            _log.warning("group %s: %s: %s", self._options.group, what, failure)

    @asynccontextmanager
    async def _look(self) -> AsyncIterator[None]:
        """A look at what is left over, one at a time; of losses it tells at its end."""
        async with self._turn:
            self._run = self._rows.run
            self._check_member()
            try:
                yield
            finally:
                self._receiver.tell()

    def _check_member(self, *, may_leave: bool = False) -> None:
        """Raise MetadataUnavailable if this is no member, or was lost since the look began.

        What it takes over from then on others take over, too. *may_leave*: what it has by now it
        leaves to others.
        """
        is_member = self._membership.is_member and (may_leave or not self._is_leaving)
        if not is_member or self._rows.run != self._run:
            raise MetadataUnavailable("the member went while it took over what others left")

    async def adopt_orphans(self) -> None:
        """Take over what nobody has; with keys in order, all of it that is for this member.

        Raises LedgerError.
        """
        async with self._look():
            await self._passing.recall()
            await self._passing.leave()
            if self._passing.is_leaving:
                raise MetadataUnavailable("messages of revoked slots are not left to others yet")
            for _ in range(ATTEMPTS_MAX):
                parts = self._partitions.parts
                self._begun = frozenset(self._partitions.begun)
                found = await self._find_orphans()
                if not await self._adopt_all(found, parts):
                    break
                await trio.sleep(CONFLICT_S)
            else:
                raise MetadataUnavailable("what members left changes all the time")
            self._passing.restore()
            if len(found) == ADOPTED_MAX and not self._by_key:
                self._hurry(members_prefix(self._options.group))

    async def _find_orphans(self) -> list[Orphan]:
        """Return what nobody has, and is of topics that this member wants."""
        found: list[Orphan] = []
        if not self._has_room():
            return found
        known: dict[str, set[int]] = {}
        async for item in self._rows.orphans(self._holdings.shares):
            record = decode_share(item[0], item[1].value)
            is_ours = self._is_ours(item)
            if item[0] in self._unreadable or not await self._is_for_us(
                record.topic, is_ours=is_ours
            ):
                continue
            if item[0] in self._slots_of:
                slots = known[item[0]] = self._slots_of[item[0]]
                if not is_ours and slots.isdisjoint(self._slots(record)):
                    continue
            found.append(Orphan(item, record))
            if len(found) == ADOPTED_MAX and not self._by_key:
                break
        self._slots_of = known
        if self._by_key:
            found.sort(key=lambda orphan: orphan.record.order)
        else:
            random.shuffle(found)  # other members look at the same time
        return found

    def _has_room(self) -> bool:
        return self._by_key or self._holdings.left < self._options.unacked_max

    def _is_ours(self, item: Item) -> bool:
        """Return True for a share in the name of this member, which others cannot adopt."""
        return holder_of(item[0]) == self._membership.member

    async def _is_for_us(self, uid: int, *, is_ours: bool) -> bool:
        """Return True for a topic that this member wants, and of which it may read messages.

        *is_ours*: it has messages of it, if only to leave them to others.
        """
        if uid not in self._known_topics:
            try:
                feed = await self._partitions.feed(uid)
            except NoSuchTopic:
                self._known_topics[uid] = False  # what is left of it goes with its group
            else:
                is_wanted = matches(self._membership.wanted, feed.topic.name)
                self._known_topics[uid] = is_wanted
        is_known = self._known_topics[uid]
        return is_known and (
            is_ours or not self._by_key or any(part.topic == uid for part in self._partitions.parts)
        )

    async def _adopt_all(self, found: Sequence[Orphan], parts: AbstractSet[Part]) -> bool:
        """Adopt shares; True if they must be looked at again for the order of keys.

        Others changed some that this member needs: later messages of a partition wait then, as
        they do if one cannot be read. Or it has other *parts* by now: it may have passed over
        some of them.
        """
        failure: LedgerError | None = None
        blocked: set[Part] = set()
        fetched: Fetched = {}
        for number, orphan in enumerate(found):
            self._check_member()
            if self._has_others_than(parts):
                return True
            if number and orphan.part != found[number - 1].part and self._by_key:
                self._receiver.tell()  # messages there wait for it
            if number % FETCHED_MAX == 0:
                near = found[number : number + FETCHED_MAX]
                fetched = await self._fetch(each for each in near if each.part not in blocked)
            if orphan.part in blocked:
                continue
            try:
                is_done = await self._adopt(orphan.item, parts, fetched)
            except (BadTopic, NoSuchTopic):
                self._unreadable.add(orphan.item[0])  # it goes with its group
                continue
            except LedgerError as wrong:
                failure, is_done = wrong, False
            if not is_done and self._by_key:
                blocked.add(orphan.part)
        if failure is not None:
            raise failure
        return bool(blocked)

    async def _fetch(self, found: Iterable[Orphan]) -> Fetched:
        """Read the messages of some shares at once, as far as that is possible."""
        fetched: Fetched = {}

        async def fetch(orphan: Orphan) -> None:
            with suppress(LedgerError, MetadataError):  # it is read again where that is raised
                fetched[orphan.item[0]] = await self._read(orphan.record)

        async with trio.open_nursery() as nursery:
            for orphan in found:
                if not self._by_key or self._is_ours(orphan.item) or self._slots(orphan.record):
                    nursery.start_soon(fetch, orphan)
        return fetched

    async def _read(self, record: ShareRecord) -> Kept:
        """Return the messages of the entries of a share. Raises LedgerError."""
        feed = await self._partitions.feed(record.topic)
        share = Share(record, "", is_blind=False)
        return await feed.read(record.partition, record.lane, share.begin, share.end)

    def _has_others_than(self, parts: AbstractSet[Part]) -> bool:
        return self._by_key and self._partitions.parts is not parts

    async def _take_gifts(self) -> None:
        async with self._look():
            self._begun = frozenset(self._partitions.begun)
            for item in await self._rows.given(self._holdings.shares):
                await self._adopt(item, self._partitions.parts, {})

    async def _adopt(self, item: Item, parts: AbstractSet[Part], fetched: Fetched) -> bool:
        """Take over a share as it is by now, if others take what is theirs of it meanwhile."""
        found: Item | None = item
        for _ in range(ADOPTIONS_MAX):
            if found is None or self._has_others_than(parts):
                break
            if await self._take_over(found, parts, fetched):
                return True
            found = await self._rows.again(item)
        return False

    async def _take_over(self, item: Item, parts: AbstractSet[Part], fetched: Fetched) -> bool:
        """Take over a share, of a key-shared group what belongs to this member's slots.

        What is in its own name since a former run of it, and of other slots now, is left to others.
        False if it or its holder changed meanwhile, or what this member has, which were *parts*.
        """
        record = decode_share(item[0], item[1].value)
        is_ours = self._is_ours(item)
        is_for_us = self._has_room() and await self._is_for_us(record.topic, is_ours=is_ours)
        slots = self._slots(record) if is_for_us else set[int]()
        if not is_for_us or (self._by_key and not slots and not is_ours):
            return True
        is_own = record.run == self._rows.run  # taken, but the store's answer was lost
        share = Share(record, new_name(), is_blind=is_own and record.is_blind)
        if record.deliveries == 0 and self._options.deliveries_max != 1:
            share.deliveries, share.is_blind = 1, True
        if item[0] not in fetched:
            fetched[item[0]] = await self._read(record)
        kept = fetched[item[0]]
        share.fill(kept.ranges)
        rest, theirs = self._rest(share, slots, is_own=is_own)
        if rest is not None and not share.left and not is_ours:
            self._slots_of[item[0]] = theirs
            return True
        async with self._rows.turn:
            if self._rows.knows(item[0], self._holdings.shares):
                return True  # it was being taken when it was found
            if self._has_others_than(parts):
                return False
            if is_ours:
                self._is_wanting = False  # a gift, which took the row away
            self._check_member()
            if not await self._rows.adopt(item, share, rest):
                return False
            self._check_member(may_leave=True)
            # Not before: what others changed meanwhile is looked at again.
            self._slots_of |= {item[0]: theirs} if rest is not None else {}
            if kept.gap is not None:
                self._receiver.miss(kept.gap, share, share.lose(kept.removals))
            self._receiver.receive(share)
            self._holdings.precede(share, share.in_state(State.READY))
        return True

    def _slots(self, record: ShareRecord) -> set[int]:
        return self._passing.slots(record, self._begun)

    def _rest(
        self, share: Share, slots: set[int], *, is_own: bool
    ) -> tuple[ShareRecord | None, set[int]]:
        """Keep the messages of some slots; return what is left for others, and its slots."""
        theirs: dict[int, int] = {}
        for index in share.in_state(State.READY) if self._by_key else ():
            message = share.messages[index]
            if message is not None and (slot := self._units.slot_of(message)) not in slots:
                theirs[index] = slot
        if not theirs:
            return None, set()
        record = share.record
        rest = msgspec.structs.replace(
            record,
            done=done_bits(len(share.states), theirs),
            deliveries=record.deliveries - (is_own and record.is_blind),
            is_blind=False,
            tries={each: n for each, n in record.tries.items() if each in theirs},
        )
        for index in theirs:
            share.finish(index)
        return rest, set(theirs.values())

    # --- given ---------------------------------------------------------------------------

    async def _want_sometimes(self) -> None:
        """Say that this member has nothing to do, when its application waits in vain."""
        since = -math.inf
        while True:
            await trio.sleep(WANTING_S if self._is_wanting else WANT_S)
            if trio.current_time() - since > LOOK_S:
                self._is_wanting = False  # others may have seen it, and had nothing to give
            if self._is_idle() and not self._is_wanting and self._has_others:
                since = trio.current_time()
                try:
                    await self._rows.want(self._membership.wanted)
                    self._is_wanting = True
                except LedgerError as failure:
                    _log.info("group %s: %s", self._options.group, failure)
                    await trio.sleep(RETRY_S)

    def _is_idle(self) -> bool:
        return (
            self._arrivals.is_awaited and self._membership.is_member and not self._holdings.has_next
        )

    def look(self) -> None:
        """Look whether there is something to give by now, if somebody wants it."""
        if self._is_wanted_by_others:
            self._hurry(wants_prefix(self._options.group))

    async def _give_sometimes(self) -> None:
        """Give to members without work what the application does not ask for, while it is so."""
        while wants := await self._rows.wants():
            self._is_wanted_by_others = True
            if not self._surplus():
                return  # look() goes on
            await trio.sleep(GIVE_S)
            given = False
            for number, want in enumerate(wants if not self._arrivals.is_awaited else ()):
                given |= await self._give(want, len(wants) - number)
            if not given:
                await trio.sleep(WANT_S)
        self._is_wanted_by_others = False

    def _surplus(self) -> int:
        return self._holdings.waiting + len(self._receiver.due())

    async def _give(self, want: Item, members: int) -> bool:
        """Give a fair part of what waits for the application to one of *members* members."""
        count = min(-(-self._surplus() // (members + 1)), GIVEN_MAX)
        wanted = decode_want(want[0], want[1].value)
        last = self._holdings.last_ready(count)
        chosen = {share: at for share, at in last.items() if self._is_wanted(share, at[0], wanted)}
        for share, index in self._receiver.due() if not chosen else ():
            if self._is_wanted(share, index, wanted):
                chosen = {share: [index]}
                break
        if not chosen:
            return False
        share = max(chosen, key=lambda each: len(chosen[each]))
        return await self._passing.give(share, chosen[share], want)

    def _is_wanted(self, share: Share, index: int, wanted: Wanted) -> bool:
        message = share.messages[index]
        return message is not None and matches(wanted, message.topic)

    # --- left to others ------------------------------------------------------------------

    async def hand_over(self, parts: set[Part]) -> None:
        """Wait until the messages of these slots are done; at the end leave them to others.

        Their next owner takes them over before anything else, so each key stays in order. What
        cannot be left now is not handed out any more, and is left later.
        """
        try:
            with trio.move_on_after(self._options.revoke_s * HANDED_OVER):
                async with self._turn:
                    pass  # what is being taken over is among them
                while any(True for _ in self._passing.of_slots(parts)):
                    await self._holdings.changed()
        finally:
            self._passing.withhold(dict(self._passing.of_slots(parts)))
            left_s = max(self._options.revoke_s * (1 - HANDED_OVER), RETRY_S)
            with trio.CancelScope(shield=True), trio.move_on_after(left_s):
                await self._passing.leave()
                while self._passing.is_leaving:
                    await trio.sleep(CONFLICT_S)
                    await self._passing.leave()

    def keep_out(self, share: Share) -> None:
        """Leave to others what came of slots that this member has no more."""
        if self._by_key:
            self._passing.withhold_strange(share)

    async def leave(self) -> None:
        """Leave everything to others, with the deliveries that took place. Raises LedgerError."""
        self._is_leaving = True  # a look that is under way ends soon
        async with self._turn:
            await self._passing.leave_all()
            if self._has_others:
                await self._rows.unwant()
