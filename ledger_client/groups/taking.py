"""Entries that arrived are taken: progress moves over them as they become this member's shares.

Both change in one transaction, so an entry is taken once, whoever has the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from ledger_client.errors import (
    CommitRefused,
    Gap,
    LedgerError,
    MetadataUnavailable,
    NoSuchTopic,
)
from ledger_client.groups.holdings import Holdings
from ledger_client.groups.options import ConsumerOptions
from ledger_client.groups.progress import Progress
from ledger_client.groups.share import Share, done_bits, new_name
from ledger_client.groups.share_rows import ShareRows
from ledger_client.groups.slots import Units, lowest
from ledger_client.groups.sources import PartSource
from ledger_client.topics.messages import MessageRange
from ledger_client.topics.positions import EARLIEST, LaneRef, Place, Places
from metadata.groups.assignment import Part
from metadata.groups.shares import ENTRIES_MAX, MESSAGES_MAX, ShareRecord

READY_MAX = 1000
"""Messages that wait for the application; then nothing more is taken."""
MESSAGES_AT_ONCE = 4096
CHANGES_MAX = 80
"""Shares, and places of partitions, in one transaction."""
RETRY_S = 0.5
_log = logging.getLogger(__name__)


@dataclass
class Draft:
    """Consecutive entries of one ledger that are to be taken."""

    lane: LaneRef
    ranges: list[MessageRange] = field(default_factory=list)
    wanted: list[list[int]] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    """messages by entry"""

    def takes(self, here: MessageRange) -> bool:
        """Return True if these messages may follow."""
        if not self.ranges:
            return True
        first, place = self.ranges[0].batch.place, here.batch.place
        length = place.entry - first.entry + 1
        messages = sum(self.counts.values()) + here.batch.count
        return (
            place.ledger_id == first.ledger_id
            and length <= ENTRIES_MAX
            and messages <= min(MESSAGES_AT_ONCE, MESSAGES_MAX)
        )

    def add(self, here: MessageRange, wanted: list[int]) -> None:
        """Take these messages, of which only some are wanted."""
        self.ranges.append(here)
        self.wanted.append(wanted)
        self.counts[here.batch.place.entry] = here.batch.count

    def share(self, *, is_blind: bool) -> Share:
        """Return the share that holds what is wanted."""
        place = self.ranges[0].batch.place
        entries = range(place.entry, max(self.counts) + 1)
        counts = [self.counts.get(entry, 0) for entry in entries]
        first, wanted = 0, set[int]()
        begins: dict[int, int] = {}
        for entry, each in zip(entries, counts, strict=True):
            begins[entry] = first
            first += each
        for here, indexes in zip(self.ranges, self.wanted, strict=True):
            begin = begins[here.batch.place.entry]
            wanted.update(begin + index for index in indexes)
        record = ShareRecord(
            topic=self.lane.uid,
            partition=self.lane.partition,
            lane=self.lane.lane,
            number=place.number,
            ledger_id=place.ledger_id,
            entry=place.entry,
            version=place.version,
            counts=counts,
            done=done_bits(first, wanted),
            deliveries=int(is_blind),
        )
        share = Share(record, new_name(), is_blind=is_blind)
        share.fill(self.ranges)
        return share


@dataclass
class Taken:
    """What one transaction takes."""

    places: dict[Part, dict[int, Place]] = field(default_factory=dict)
    drafts: list[Draft] = field(default_factory=list)
    messages: int = 0
    size: int = 0


class Taking:
    """Takes what arrives, as long as there is room. run() must run meanwhile.

    Args:
        options: the consumer's.
        partitions: those that this member has.
        progress: the group's, there.
        rows: of this member's shares.
        holdings: what it has.
        receive: called with each share that was taken.
        adopt: takes over what was taken in a change of which the answer was lost.
        on_failure: called when raise_failure() has something to raise.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        partitions: PartSource,
        progress: Progress,
        rows: ShareRows,
        holdings: Holdings,
        receive: Callable[[Share], None],
        adopt: Callable[[], Awaitable[None]],
        on_failure: Callable[[], None],
    ) -> None:
        self._options = options
        self._partitions = partitions
        self._progress = progress
        self._rows = rows
        self._holdings = holdings
        self._receive = receive
        self._adopt = adopt
        self._on_failure = on_failure
        self._units = Units(options.mode)
        self._heads: dict[Part, dict[int, Place]] = {}
        self._of: dict[tuple[int, int], dict[Part, dict[int, Place]]] = {}
        """the same, by topic and partition"""
        self._begun: dict[Part, Places] = {}
        """where partitions begin that are not read yet"""
        self._reading = trio.Lock()
        self._news = trio.Event()
        self._waits_for_room = False
        self._turn = trio.Lock()
        self._feed = 0
        self._failure: LedgerError | None = None
        self._is_over = False

    # --- partitions ----------------------------------------------------------------------

    def begin(self, part: Part, places: Places) -> None:
        """Take messages of *part* from these places on, once it is read."""
        self._begun[part] = places

    async def read(self, parts: set[Part]) -> None:
        """Read partitions, from where all of their slots go on. Deleted topics are passed over.

        Raises LedgerError.
        """
        async with self._reading:
            wanted: dict[tuple[int, int], set[Part]] = {}
            for part in parts:
                if part.topic in self._partitions.feeds:
                    wanted.setdefault(self._whole(part), set()).add(part)
            for (uid, partition), here in sorted(wanted.items()):
                feed = self._partitions.feeds.get(uid)
                if feed is None:
                    continue  # it went meanwhile
                feed.stop({partition})  # on_assigned may have paused it
                # Not before: what is read of other slots may be far ahead of those that begin.
                for part in here & self._begun.keys():
                    self._heads[part] = dict(self._begun.pop(part))
                    self._of.setdefault((uid, partition), {})[part] = self._heads[part]
                if heads := self._of.get((uid, partition)):
                    try:
                        await feed.add({partition: lowest(heads.values())})
                    except NoSuchTopic:
                        self._partitions.end(feed.topic)
                if (uid, partition) not in self._of:  # it went meanwhile
                    feed.drop({partition})

    def drop(self, parts: set[Part]) -> None:
        """Take nothing more of *parts*."""
        for part in parts:
            self._begun.pop(part, None)
        for part in parts & self._heads.keys():
            del self._heads[part]
            whole = self._whole(part)
            del self._of[whole][part]
            if not self._of[whole]:
                del self._of[whole]
                self._partitions.feeds[whole[0]].drop({whole[1]})

    def lose(self) -> None:
        """Take nothing more of any partition."""
        self.drop(self._heads.keys() | self._begun.keys())

    def stop(self) -> None:
        """Take nothing more."""
        self._is_over = True

    async def settle(self) -> None:
        """Return when nothing is being taken."""
        async with self._turn:
            pass

    # --- taking --------------------------------------------------------------------------

    def arrive(self) -> None:
        """Look whether there is something to take."""
        self._news.set()

    def look(self) -> None:
        """Look whether there is room by now."""
        if self._waits_for_room and self._has_room():
            self._news.set()

    @property
    def has_failed(self) -> bool:
        """True if raise_failure() has something to raise: nothing more is taken before."""
        return self._failure is not None

    def raise_failure(self) -> None:
        """Raise what went wrong with reading, once. Raises LedgerError."""
        failure, self._failure = self._failure, None
        if failure is not None:
            self._news.set()  # what comes after it
            raise failure

    async def run(self) -> None:
        """Take until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            # A failure waits for the application, which paces what is tried again.
            while not self._is_over and self._has_room() and not self.has_failed:
                async with self._turn:
                    taken = self._collect()
                    if not taken.places:
                        break
                    await self._take(taken)
            self._waits_for_room = not self._has_room()

    def _has_room(self) -> bool:
        held, options = self._holdings, self._options
        return (
            held.waiting < READY_MAX
            and held.left < options.unacked_max
            and held.size < options.read_ahead_size
        )

    def _collect(self) -> Taken:
        """Return what has arrived, as far as there is room."""
        taken, silent = Taken(), 0
        feeds = list(self._partitions.feeds.values())
        while silent < len(feeds) and self._goes_on(taken):
            self._feed += 1
            feed = feeds[self._feed % len(feeds)]
            try:
                batch = feed.take()
            except NoSuchTopic:
                self._partitions.end(feed.topic)
                batch = None
            except LedgerError as failure:
                self.fail(failure)
                break
            if batch is None:
                silent += 1
                continue
            silent = 0
            (here,) = batch.ranges
            self._add(taken, here)
        return taken

    def _goes_on(self, taken: Taken) -> bool:
        held, options = self._holdings, self._options
        return (
            held.waiting + taken.messages < READY_MAX
            and held.left + taken.messages < options.unacked_max
            and held.size + taken.size < options.read_ahead_size
            and len(taken.places) + len(taken.drafts) < CHANGES_MAX
        )

    def _add(self, taken: Taken, here: MessageRange) -> None:
        lane = here.batch.lane
        heads = self._of.get((lane.uid, lane.partition))
        if not heads:
            return
        slots = {self._units.slot(part): places for part, places in heads.items()}
        wanted = self._units.wanted(here, slots)
        after = here.after
        for part, places in heads.items():
            if after.at > places.get(lane.lane, EARLIEST).at:
                taken.places.setdefault(part, {})[lane.lane] = after
        if not wanted:
            return
        draft = next((each for each in reversed(taken.drafts) if each.lane == lane), None)
        if draft is None or not draft.takes(here):
            draft = Draft(lane)
            taken.drafts.append(draft)
        draft.add(here, wanted)
        taken.messages += len(wanted)
        taken.size += here.batch.header.body_size

    async def _take(self, taken: Taken) -> None:
        """Make it this member's, in one transaction, and hand it out."""
        is_blind = self._options.deliveries_max != 1
        shares = [draft.share(is_blind=is_blind) for draft in taken.drafts]
        try:
            with self._rows.taking(shares):
                versions = await self._progress.claim(
                    taken.places, [self._rows.put(share) for share in shares]
                )
                for share, version in zip(shares, versions, strict=True):
                    share.row_version = version
                    self._receive(share)
        except LedgerError as failure:
            _log.warning("group %s: messages not taken: %s", self._options.group, failure)
            await self._begin_again(set(taken.places), waits=isinstance(failure, CommitRefused))
            return
        for part, lanes in taken.places.items():
            self._heads.get(part, {}).update(lanes)

    async def _begin_again(self, parts: set[Part], *, waits: bool) -> None:
        """Read partitions from the stored progress on, after a change that was not made."""
        while here := {part for part in parts if part in self._heads}:
            if not waits:
                await trio.sleep(RETRY_S)
            waits = False
            try:
                stored = await self._progress.read(here)
                for part in here & self._heads.keys():
                    self.begin(part, stored[part] or {})
                await self._adopt()  # what was taken comes before what follows it
                await self.read(here & self._heads.keys())
            except MetadataUnavailable:
                continue
            except LedgerError as failure:
                self.fail(failure)
                continue
            return

    def fail(self, failure: LedgerError) -> None:
        """Let a call of the application raise *failure*; of several, the last one, or a gap."""
        if not isinstance(self._failure, Gap):
            self._failure = failure
        self._on_failure()

    # --- slots ---------------------------------------------------------------------------

    def _whole(self, part: Part) -> tuple[int, int]:
        """Return the topic and the partition that is read for *part*."""
        topic = self._partitions.feeds[part.topic].topic
        return part.topic, self._units.partition(topic, part)
