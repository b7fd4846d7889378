"""What a group has still to do in a lane: messages that members hold, and those after its place.

    taken by members of a shared group,
    some of them not acknowledged         taken by nobody yet
    ──┬─────────────────────────────────┬────────────────────┬──
      first one not acknowledged        the group's place    end

Both count as lag. The slots of a key-shared partition have places of their own, and the group's is
the lowest of them. What members hold after it is among the messages up to the end, and counts once.

So do messages after it that slots further ahead are done with: nothing but their keys says whose
they are, and reading those is too much for a look. While one slot is behind others, the lag is the
most that it can be, and GroupLanes.lag() says that it is not exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from ledger_client.errors import LedgerError
from ledger_client.groups.share import messages_left
from ledger_client.ledgers.opener import LedgerOpener
from ledger_client.topics.positions import Place
from ledger_client.topics.reading.lag import behind, sent_at
from ledger_client.topics.reading.lane_ranges import KnownLane
from metadata.groups.shares import ShareRecord


class Held(NamedTuple):
    """What members of a shared group hold of a lane, not acknowledged."""

    messages: int = 0
    taken: int = 0
    """those of *messages* that lie before the group's place"""
    first: Place | None = None
    """the entry of the first message; `None` without any"""


class Backlog(NamedTuple):
    """What a group has not done in a lane."""

    messages: int
    is_exact: bool
    """False: some of *messages* are estimated"""
    sent_ms: int | None
    """Unix time at which the oldest of them was sent; `None` without any"""


def held_in(shares: Iterable[ShareRecord], place: Place) -> Held:
    """Return what these shares of one lane hold, if the group goes on at *place*."""
    messages, taken, first = 0, 0, None
    for share in shares:
        left = messages_left(share)
        if not left:
            continue
        messages += left
        taken += messages_left(share, _count_before(share, place))
        at = _first_left(share)
        first = at if first is None or at.at < first.at else first
    return Held(messages, taken, first)


async def backlog(
    lane: KnownLane, opener: LedgerOpener, place: Place, end: Place, held: Held
) -> Backlog:
    """Return what a group that goes on at *place* has not done of a lane.

    Costs as much as behind(), and one more short read if members hold messages. If that fails, the
    age leaves them out.

    Raises:
        LedgerError: as reading does.
    """
    found = await behind(lane.rows, opener, place, end)
    sent_ms = found.sent_ms
    if held.first is not None:
        held_ms = None
        with suppress(LedgerError):
            held_ms = await sent_at(lane.rows, opener, held.first)
        sent_ms = min((each for each in (sent_ms, held_ms) if each is not None), default=None)
    return Backlog(found.messages + held.taken, found.is_exact, sent_ms)


def _count_before(share: ShareRecord, place: Place) -> int:
    """Return how many of a share's messages lie before *place*."""
    if share.number != place.number:
        return sum(share.counts) if share.number < place.number else 0
    entries = max(place.entry - share.entry, 0)
    inside = 0 <= place.entry - share.entry < len(share.counts)
    return sum(share.counts[:entries]) + (min(place.skip, share.counts[entries]) if inside else 0)


def _first_left(share: ShareRecord) -> Place:
    """Return the entry of the first message that is not acknowledged; there is one."""
    done, entry = int.from_bytes(share.done, "little"), 0
    index = (~done & (done + 1)).bit_length() - 1
    for count in share.counts:
        if index < count:
            break
        index -= count
        entry += 1
    return Place(share.number, share.entry + entry, 0, share.ledger_id, share.version + entry)
