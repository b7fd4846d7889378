"""What a lost member had, and what was removed before anybody was done with it.

    a look at what is left over                     the application's calls
      share ──┐
      share ──┼─ note() ──► gather(): a gap of each lane ──► take() ──► done, and stored
      share ──┘

Shares are taken over one by one, and one purge removes messages of many: what one look finds of a
lane is one gap. The messages are done once the application was told. Until then the rows of their
shares say that they are not, so that whoever takes over from this member tells of them.

With keys in order, messages of a partition are held back from the first loss that is found there
until its gap is told, unless gaps are skipped. So a gap comes before what follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ledger_client.errors import Gap
from ledger_client.figures import Figures
from ledger_client.groups.holdings import Holdings
from ledger_client.groups.share import Share
from ledger_client.topics.positions import Place
from metadata.groups.assignment import Part

Lane = tuple[Part, int]


class _Loss:
    """What is lost of one lane."""

    def __init__(self) -> None:
        self._gap: Gap | None = None
        self._last: Place | None = None
        """the last entry, which *gap* is of"""
        self._entries: set[Place] = set()
        self.shares: dict[Share, None] = {}

    def note(self, gap: Gap, share: Share, entries: Collection[Place]) -> None:
        """Add entries of a share, and the gap that a reader of them met."""
        last = max(entries)
        if self._last is None or last > self._last:
            self._gap, self._last = gap, last
        self._entries.update(entries)
        self.shares[share] = None

    def add(self, other: _Loss) -> None:
        """Add what another look found of the lane."""
        assert other._gap is not None and other._last is not None, "something was noted"
        if self._last is None or other._last > self._last:
            self._gap, self._last = other._gap, other._last
        self._entries |= other._entries
        self.shares |= other.shares

    def gap(self) -> Gap:
        """Return one gap for all of it."""
        gap = self._gap
        assert gap is not None, "something was noted"
        return Gap(
            gap.topic,
            partition=gap.partition,
            lane=gap.lane,
            position=min(self._entries).message_id(gap.partition),
            first=gap.first,
            missing=len(self._entries),
        )


class Losses:
    """See the head of this module.

    Args:
        holdings: what this member has.
        change: stores a share soon.
        figures: the client's, which count gaps.
        holds_back: whether messages wait for the gap before them.
    """

    def __init__(
        self,
        holdings: Holdings,
        change: Callable[[Share], None],
        figures: Figures,
        *,
        holds_back: bool,
    ) -> None:
        self._holdings = holdings
        self._change = change
        self._figures = figures
        self._holds_back = holds_back
        self._found: dict[Lane, _Loss] = {}
        """by the look that is under way"""
        self._told_next: dict[Lane, _Loss] = {}

    @property
    def has_some(self) -> bool:
        """True if take() has something."""
        return bool(self._told_next)

    def note(self, gap: Gap, share: Share, entries: Collection[Place]) -> bool:
        """Add entries that a share has lost; True if its partition is held back from now on."""
        if not entries:
            return False
        lane = share.part, share.record.lane
        self._found.setdefault(lane, _Loss()).note(gap, share, entries)
        return self._holds_back and self._holdings.hold_back(share.part)

    def gather(self) -> None:
        """Let take() have what was found: the look is over."""
        for lane, loss in self._found.items():
            self._told_next.setdefault(lane, _Loss()).add(loss)
        self._found.clear()

    def take(self) -> Gap | None:
        """Return one gap for all that is lost of a lane. It is told: nobody else tells of it."""
        while self._told_next:
            lane = next(iter(self._told_next))
            loss = self._told_next.pop(lane)
            given_up = [share for share in loss.shares if self._holdings.give_up(share)]
            for share in given_up:
                self._change(share)
            if all(each[0] != lane[0] for each in (*self._told_next, *self._found)):
                self._holdings.go_on(lane[0])
            if given_up:  # else others have all of it by now
                gap = loss.gap()
                self._figures.reading(gap.topic).gaps += 1
                return gap
        return None

    def clear(self) -> None:
        """Tell of nothing: others have these shares."""
        self._found.clear()
        self._told_next.clear()
