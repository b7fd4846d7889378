"""What a lost member had, and what was removed before anybody was done with it."""

from __future__ import annotations

import msgspec
import pytest
from group_shares import share_of

from ledger_client import Gap, MessageId
from ledger_client.figures import Figures
from ledger_client.groups.holdings import Holdings
from ledger_client.groups.losses import Losses
from ledger_client.groups.share import Share, State, messages_left
from ledger_client.topics.positions import Place
from metadata.groups.shares import ShareRecord
from metadata.topics import RemovedLedgers

TOPIC = "shop/orders"


def gap(first: int | None = None) -> Gap:
    """The gap that a reader met, which goes on in ledger *first*."""
    left = None if first is None else MessageId(first, 0, 0, 0)
    position = MessageId(1, 0, 0, 0)
    return Gap(TOPIC, partition=0, lane=0, position=position, first=left, missing=99)


def entry(number: int, *, ledger: int = 0) -> Place:
    return Place(ledger, number, 0, 10 + ledger, 100 * ledger + number)


def lost_share(name: str = "s", *, topic: int = 1, lane: int = 0) -> Share:
    """A share of two messages, of which the first is lost."""
    share = share_of("aa", name=name, topic=topic)
    share.record = msgspec.structs.replace(share.record, lane=lane)
    share.messages[0] = None
    assert len(share.lose([])) == 1
    return share


class Rig:
    """Losses of a member, with what it has and what it stores."""

    def __init__(self, *, holds_back: bool = False) -> None:
        self.holdings = Holdings(by_key=holds_back)
        self.figures = Figures()
        self.stored: list[Share] = []
        self.losses = Losses(self.holdings, self.stored.append, self.figures, holds_back=holds_back)

    def have(self, share: Share, lost: Gap | None = None, *entries: Place) -> Share:
        """Take over a share that has lost these entries, or none."""
        if lost is not None:
            self.losses.note(lost, share, entries)
        self.holdings.add(share)
        self.holdings.release(share)
        return share

    def told(self) -> list[Gap]:
        """Return all that there is to tell."""
        return [*iter(self.losses.take, None)]


def test_an_entry_of_which_several_shares_had_messages_is_counted_once() -> None:
    rig = Rig()
    rig.have(lost_share("s"), gap(), entry(3), entry(1))
    rig.have(lost_share("t"), gap(), entry(1), entry(2))
    rig.losses.gather()
    (told,) = rig.told()
    assert told.missing == 3
    assert told.position == MessageId(10, 1, 0, 0)


@pytest.mark.parametrize("looks", [1, 3])
def test_a_gap_ends_where_that_of_its_last_entry_does(looks: int) -> None:
    """Shares are taken over in any order, by one look or by several before it is told."""
    rig = Rig()
    for first, place in ((5, entry(1)), (20, entry(0, ledger=2)), (12, entry(0, ledger=1))):
        rig.have(lost_share(str(first)), gap(first), place)
        if looks == 3:
            rig.losses.gather()
    rig.losses.gather()
    (told,) = rig.told()
    assert told.first == MessageId(20, 0, 0, 0)
    assert told.position == MessageId(10, 1, 0, 0)
    assert told.missing == 3


def test_each_lane_has_a_gap_of_its_own() -> None:
    rig = Rig()
    for topic in (1, 2):
        for lane in (0, 1):
            rig.have(lost_share(f"{topic}{lane}", topic=topic, lane=lane), gap(), entry(lane))
    rig.losses.gather()
    assert [each.missing for each in rig.told()] == [1] * 4
    assert rig.figures.reading(TOPIC).gaps == 4


def test_what_is_lost_is_told_once_after_the_look_that_found_it() -> None:
    rig = Rig()
    rig.have(lost_share(), gap(), entry(1))
    assert rig.told() == []
    rig.losses.gather()
    assert len(rig.told()) == 1
    rig.losses.gather()
    assert rig.told() == []


def test_what_is_lost_is_done_once_it_was_told() -> None:
    """Until then its row says that it is not, so that others tell of it if this member is lost."""
    rig = Rig()
    share = rig.have(lost_share(), gap(), entry(1))
    rig.losses.gather()
    assert messages_left(share.row("")) == 2
    assert rig.stored == []
    assert rig.holdings.left == 1, "no room is kept for what is lost"
    rig.told()
    assert rig.stored == [share]
    assert messages_left(share.row("")) == 1
    assert rig.holdings.left == 1


def test_what_others_have_by_then_is_neither_told_nor_stored() -> None:
    rig = Rig()
    share = rig.have(lost_share(), gap(), entry(1))
    rig.have(lost_share("t", lane=1), gap(), entry(1))
    rig.losses.gather()
    rig.holdings.drop(share)
    assert rig.holdings.left == 1
    assert len(rig.told()) == 1
    assert share not in rig.stored


def test_what_is_lost_is_not_acknowledged() -> None:
    """By an application that had it before this member was removed, and came back."""
    rig = Rig()
    message = share_of("aa").messages[0]
    assert message is not None
    rig.have(lost_share(), gap(), entry(1))
    assert rig.holdings.find(message) is None


def test_with_keys_in_order_a_partition_waits_until_its_gaps_are_told() -> None:
    """Also what comes while one is being told; others do not wait."""
    rig = Rig(holds_back=True)
    lost = rig.have(lost_share(), gap(), entry(1))
    other = rig.have(share_of("b", name="o", topic=2))
    rig.losses.gather()
    rig.have(lost_share("t", lane=1), gap(), entry(1))
    later = rig.have(share_of("c", name="u", entry=1))
    assert rig.holdings.waiting == 1
    assert rig.holdings.next(1.0) is other.messages[0]
    assert rig.holdings.next(1.0) is None
    assert len(rig.told()) == 1
    assert rig.holdings.next(1.0) is None
    rig.losses.gather()
    assert len(rig.told()) == 1
    found = [rig.holdings.next(1.0) for _ in range(4)]
    assert found[0] is lost.messages[1]
    assert found[2] is later.messages[0]
    assert found[3] is None


def test_without_order_nothing_waits_for_a_gap() -> None:
    rig = Rig()
    rig.have(lost_share(), gap(), entry(1))
    assert rig.holdings.next(1.0) is not None


def share(counts: list[int], done: int = 0) -> Share:
    """A share of entries that are all gone."""
    record = ShareRecord(
        topic=1,
        partition=0,
        lane=0,
        number=4,
        ledger_id=9,
        entry=2,
        version=50,
        counts=counts,
        done=done.to_bytes(1, "little"),
    )
    found = Share(record, "s", is_blind=False)
    found.messages = [None] * sum(counts)
    return found


def test_only_entries_with_messages_that_are_not_done_are_lost() -> None:
    """Of five entries, one has no message, one is done, and one was read."""
    mine = share([2, 0, 1, 2, 3], done=0b100)
    mine.messages[5:] = share_of("aaa").messages
    assert mine.lose([]) == [Place(4, 2, 0, 9, 50), Place(4, 5, 0, 9, 53)]
    assert mine.in_state(State.LOST) == [0, 1, 3, 4]


def test_what_was_deleted_on_purpose_is_not_lost() -> None:
    removed = RemovedLedgers(0, 1, 51, 53, 1, 1)
    assert [each.version for each in share([1] * 5).lose([removed])] == [50, 53, 54]
