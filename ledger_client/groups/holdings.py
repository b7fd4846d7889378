"""All messages that a member of a shared group has, and which of them comes next.

No I/O: others store what is noted here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import trio
from sortedcontainers import SortedDict

from ledger_client.groups.share import Share, State
from ledger_client.topics.messages import Message
from metadata.groups.assignment import Part


@dataclass(slots=True)
class Run:
    """Messages of a share that may be handed out: those that are ready, from *at* to *stop*."""

    share: Share
    at: int
    stop: int


Key = tuple[Part, int, bytes]
"""A lane of a partition, and a key of messages there: they have an order."""
Which = tuple[Share, int]
"""A message: its share, and its index there."""
Spot = tuple[int, int]
"""A message's place in its lane: the version of its entry, and its index there."""


@dataclass(slots=True)
class Held:
    """A key of which messages are to be delivered again, and later ones wait *behind* them."""

    waiting: SortedDict[Spot, tuple[Share, int]] = field(default_factory=SortedDict)
    behind: SortedDict[Spot, tuple[Share, int]] = field(default_factory=SortedDict)

    def precedes(self, spot: Spot) -> bool:
        """Return True if a message before *spot* is to be delivered again."""
        return bool(self.waiting) and self.waiting.peekitem(0)[0] < spot


ACKED_MAX = 10_000
"""Entries of which it is known which messages this member acknowledged."""
_READY, _HANDED = int(State.READY), int(State.HANDED)


class Holdings:
    """The shares of one member.

    Args:
        by_key: while a message waits to be delivered again, later ones of its key wait behind it.
        on_room: called when the member has less than before.
        on_freed: called when messages may be handed out that waited behind others of their key.
    """

    def __init__(
        self,
        *,
        by_key: bool,
        on_room: Callable[[], None] = lambda: None,
        on_freed: Callable[[], None] = lambda: None,
    ) -> None:
        self.shares: dict[str, Share] = {}
        self.left = 0
        """messages that are not acknowledged, and not lost"""
        self.size = 0
        """bytes of the shares that are not done"""
        self.ready = 0
        """messages that can be handed out, also those that are aside"""
        self._by_key = by_key
        self._on_room = on_room
        self._on_freed = on_freed
        self._changed = trio.Event()
        self._is_watched = False
        self._entries: dict[tuple[int, int], list[Share]] = {}
        self._runs: deque[Run] = deque()
        self._paused: set[Part] = set()
        self._held_back: set[Part] = set()
        self._aside: list[Run] = []
        """of partitions that are paused or held back"""
        self._held: dict[Key, Held] = {}
        self._acked: dict[tuple[int, int], int] = {}
        """by ledger and entry, a bit for each message that this member acknowledged"""

    # --- shares --------------------------------------------------------------------------

    def add(self, share: Share) -> None:
        """Have the messages of a share; those that are missing are done."""
        self.shares[share.name] = share
        self.left += share.left - share.states.count(State.LOST)
        self.size += share.size
        self.ready += share.states.count(State.READY)
        for index in share.in_state(State.READY):
            if share.messages[index] is None:
                self.finish(share, index)
        for entry in share.entry_ids():
            self._entries.setdefault((share.record.ledger_id, entry), []).append(share)

    def drop(self, share: Share) -> None:
        """Have a share no longer."""
        if self.shares.pop(share.name, None) is None:
            return
        for key, held in list(self._held.items()):
            for each in [each for each in held.waiting.values() if each[0] is share]:
                self._leave_key(key, each)
        self.left -= share.left - share.states.count(State.LOST)
        self.size -= share.size
        self.ready -= share.states.count(State.READY)
        share.is_held = False
        share.states = bytearray([State.DONE]) * len(share.states)
        for entry in share.entry_ids():
            at = (share.record.ledger_id, entry)
            if not share.is_stored:  # so acknowledgements of it may be lost
                self._acked.pop(at, None)
            others = [each for each in self._entries[at] if each is not share]
            if others:
                self._entries[at] = others
            else:
                del self._entries[at]
        if self._is_watched:
            self._changed.set()
        self._on_room()

    def clear(self) -> None:
        """Have nothing any more, and nothing paused or held back."""
        for share in list(self.shares.values()):
            self.drop(share)
        self._runs.clear()
        self._aside.clear()
        self._held.clear()
        self._paused.clear()
        self._held_back.clear()

    async def changed(self) -> None:
        """Return when another message is done."""
        self._changed, self._is_watched = trio.Event(), True
        try:
            await self._changed.wait()
        finally:
            self._is_watched = False

    def find(self, message: Message) -> tuple[Share, int] | None:
        """Return the share of a message that is not done, leaving or lost, and its index there."""
        for share in self._entries.get((message.id.ledger_id, message.id.entry_id), ()):
            index = share.index_of(message)
            if share.states[index] not in (State.DONE, State.LEAVING, State.LOST):
                return share, index
        return None

    # --- messages ------------------------------------------------------------------------

    def release(self, share: Share, indexes: Iterable[int] | None = None) -> None:
        """Let messages be handed out: all that are ready, in order; or these, before any other."""
        if indexes is None:
            self._queue(Run(share, 0, len(share.states)))
            return
        for index in reversed(list(indexes)):
            self._go_first(share, index)

    def in_order(self, messages: Iterable[Which]) -> list[Which]:
        """Return messages so that those of each key are in order, if that matters."""
        return sorted(messages, key=_order) if self._by_key else list(messages)

    @property
    def has_next(self) -> bool:
        """True if next() has a message, unless one of its key comes again first."""
        while self._runs:
            run = self._runs[0]
            at = run.share.states.find(_READY, run.at, run.stop)
            if at >= 0:
                run.at = at
                return True
            self._runs.popleft()
        return False

    @property
    def waiting(self) -> int:
        """The messages that can be handed out, those that are aside left out."""
        aside = sum(run.share.states.count(_READY, run.at, run.stop) for run in self._aside)
        return self.ready - aside

    def next(self, now: float) -> Message | None:
        """Hand out the next message, `None` if there is none."""
        while self._runs:
            run = self._runs[0]
            share = run.share
            at = share.states.find(_READY, run.at, run.stop)
            if at < 0:
                self._runs.popleft()
                continue
            run.at = at + 1
            message = share.messages[at]
            assert message is not None, "what is missing is done"
            held = self._held.get(_key(share, message.key)) if message.key is not None else None
            if held is not None and held.precedes(spot := _spot(message)):
                self._unready(share, at)
                share.states[at] = State.BEHIND
                held.behind[spot] = share, at
                continue
            share.states[at] = _HANDED
            share.ahead.discard(at)
            share.handed_at[at] = now
            self.ready -= 1
            self._unhold(share, at)
            return message
        return None

    def finish(self, share: Share, index: int) -> None:
        """Note that a message is done."""
        self._unready(share, index)
        self._unhold(share, index)
        self.left -= share.states[index] != State.LOST
        share.finish(index)
        if self._is_watched:
            self._changed.set()
        self._on_room()

    def give_up(self, share: Share) -> bool:
        """Note that what is lost of a share is done; False if nothing is."""
        lost = share.in_state(State.LOST)
        for index in lost:
            self.finish(share, index)
        return bool(lost)

    def acknowledge(self, share: Share, index: int, message: Message) -> None:
        """Note that the application is done with a message."""
        self.finish(share, index)
        at = (message.id.ledger_id, message.id.entry_id)
        self._acked[at] = self._acked.get(at, 0) | 1 << max(message.id.batch_index, 0)
        if len(self._acked) > ACKED_MAX:
            del self._acked[next(iter(self._acked))]

    def acknowledged(self, message: Message) -> list[Share] | None:
        """Return the shares that have, or had, a message that was acknowledged here.

        `None`: it was not, or too long ago, or others may have it since.
        """
        at = (message.id.ledger_id, message.id.entry_id)
        if not self._acked.get(at, 0) >> max(message.id.batch_index, 0) & 1:
            return None
        return self._entries.get(at, [])

    def wait(self, share: Share, index: int, state: State, reason: str = "") -> None:
        """Let a message wait to be delivered again, and later ones of its key behind it."""
        self._unready(share, index)
        share.states[index] = state
        if reason:
            share.reasons[index] = reason
        if state != State.LEAVING:
            self.precede(share, [index])

    def precede(self, share: Share, indexes: Iterable[int]) -> None:
        """Let later messages of the keys of these wait until they were handed out."""
        for index in indexes if self._by_key else ():
            message = share.messages[index]
            if message is not None and message.key is not None:
                held = self._held.setdefault(_key(share, message.key), Held())
                held.waiting[_spot(message)] = share, index

    def restore(self, share: Share, before: Mapping[int, int]) -> None:
        """Have messages that were to leave, in the states *before*."""
        for index, state in before.items():
            # What it waited behind may be done by now; if not, it waits there again.
            share.states[index] = _READY if state == State.BEHIND else state
            self.ready += share.states[index] == _READY
        self._queue(Run(share, min(before), max(before) + 1))

    def overdue(self, since: float) -> list[tuple[Share, int]]:
        """Return the messages that were handed out before *since*, and are not done."""
        return [
            (share, index)
            for share in self.shares.values()
            for index in share.in_state(State.HANDED)
            if share.handed_at[index] <= since
        ]

    def last_ready(self, count: int) -> dict[Share, list[int]]:
        """Return the last *count* messages that are ready, by share."""
        found: dict[Share, list[int]] = {}
        for run in reversed(self._runs):
            share, known = run.share, found.get(run.share, [])
            ready = [
                index
                for index in share.in_state(State.READY)
                if run.at <= index < run.stop and index not in known
            ]
            if taken := ready[max(len(ready) - count, 0) :]:
                found[share] = [*known, *taken]
            count -= len(taken)
            if count <= 0:
                break
        return found

    # --- pauses --------------------------------------------------------------------------

    def pause(self, parts: Iterable[Part]) -> None:
        """Hand out nothing of these partitions."""
        self._paused.update(parts)
        self._set_aside()

    def resume(self, parts: Iterable[Part]) -> None:
        """Hand out these partitions again."""
        self._paused.difference_update(parts)
        self._take_back()

    def hold_back(self, part: Part) -> bool:
        """Hand out nothing of a partition, until go_on(); False if it is so already."""
        if part in self._held_back:
            return False
        self._held_back.add(part)
        self._set_aside()
        return True

    def go_on(self, part: Part) -> None:
        """Hold nothing back any more of a partition."""
        if part in self._held_back:
            self._held_back.remove(part)
            self._take_back()

    def _set_aside(self) -> None:
        runs, self._runs = list(self._runs), deque()
        for run in runs:
            self._queue(run)

    def _take_back(self) -> None:
        runs, self._aside = self._aside, []
        for run in runs:
            self._queue(run)

    def is_aside(self, share: Share) -> bool:
        """Return True if nothing of a share is handed out now."""
        return share.part in self._paused or share.part in self._held_back

    def _queue(self, run: Run) -> None:
        (self._aside if self.is_aside(run.share) else self._runs).append(run)

    def _go_first(self, share: Share, index: int) -> None:
        """Have a message that is ready before any other one."""
        share.states[index] = State.READY
        self.ready += 1
        run = Run(share, index, index + 1)
        if self.is_aside(share):
            self._aside.insert(0, run)
        else:
            self._runs.appendleft(run)

    def _unready(self, share: Share, index: int) -> None:
        self.ready -= share.states[index] == _READY

    def _unhold(self, share: Share, index: int) -> None:
        """Note that a message does not wait any more to be delivered again."""
        message = share.messages[index] if self._held else None
        if message is not None and message.key is not None:
            self._leave_key(_key(share, message.key), (share, index))

    def _leave_key(self, key: Key, which: Which) -> None:
        """Let the messages go on that wait behind this one alone, in order."""
        held, spot = self._held.get(key), _order(which)
        if held is None or held.waiting.get(spot) != which:
            return
        del held.waiting[spot]
        freed: list[Which] = []
        while held.behind and not held.precedes(held.behind.peekitem(0)[0]):
            freed.append(held.behind.popitem(0)[1])
        if not held.waiting:
            del self._held[key]
        freed = [(share, index) for share, index in freed if share.states[index] == State.BEHIND]
        for share, index in reversed(freed):
            self._go_first(share, index)
        if freed:
            self._on_freed()


def _order(which: Which) -> Spot:
    """Return the place of a message in its lane."""
    message = which[0].messages[which[1]]
    assert message is not None, "it is not done"
    return _spot(message)


def _spot(message: Message) -> Spot:
    return message.version, message.id.batch_index


def _key(share: Share, key: bytes) -> Key:
    return share.part, share.record.lane, key
