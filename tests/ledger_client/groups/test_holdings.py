"""What a member of a shared group has, and the order in which it goes out."""

from __future__ import annotations

import pytest
from group_shares import share_of

from ledger_client.groups.holdings import Holdings
from ledger_client.groups.share import Share, State
from metadata.groups.assignment import Part


def holdings_of(*shares: Share) -> Holdings:
    holdings = Holdings(by_key=True)
    for share in shares:
        holdings.add(share)
        holdings.release(share)
    return holdings


def handed(holdings: Holdings) -> list[int]:
    """Hand out all there is; return their places in their shares."""
    found: list[int] = []
    while (message := holdings.next(1.0)) is not None:
        found.append(int(message.value or b""))
    return found


def test_a_message_that_leaves_while_it_waits_holds_its_key_no_longer() -> None:
    """It was refused, and then went to the next owner of its slot; the slot comes back."""
    gone, share = share_of("aa"), share_of("aa", name="t")
    holdings = holdings_of(gone)
    holdings.next(1.0)
    holdings.wait(gone, 0, State.WAITING)
    for index in (0, 1):
        holdings.wait(gone, index, State.LEAVING)
        holdings.finish(gone, index)
    holdings.drop(gone)
    holdings.add(share)
    holdings.release(share)
    assert handed(holdings) == [0, 1]


def test_a_share_that_is_lost_holds_no_key() -> None:
    lost, share = share_of("a"), share_of("a", name="t", entry=1)
    holdings = holdings_of(lost, share)
    holdings.next(1.0)
    holdings.wait(lost, 0, State.WAITING)
    assert handed(holdings) == []
    holdings.drop(lost)
    assert handed(holdings) == [10]


def test_messages_that_wait_behind_others_of_their_key_go_out_in_their_order() -> None:
    """The second one, refused too, comes to wait after the third, which was not handed out yet."""
    share = share_of("aaa")
    holdings = holdings_of(share)
    holdings.next(1.0)
    holdings.next(1.0)
    holdings.wait(share, 0, State.WAITING)
    assert handed(holdings) == []
    holdings.wait(share, 1, State.WAITING)
    holdings.release(share, [1])
    assert handed(holdings) == []
    holdings.release(share, [0])
    assert handed(holdings) == [0, 1, 2]


def test_what_is_taken_back_lets_no_later_message_of_its_key_go() -> None:
    share = share_of("aaa")
    holdings = holdings_of(share)
    holdings.next(1.0)
    holdings.next(1.0)
    holdings.wait(share, 0, State.WAITING)
    holdings.release(share, [1])  # the application never saw it
    assert handed(holdings) == []
    holdings.release(share, [0])
    assert handed(holdings) == [0, 1, 2]


def test_a_key_waits_in_its_partition_alone() -> None:
    share, other = share_of("a"), share_of("a", name="t", topic=2)
    holdings = holdings_of(share)
    holdings.next(1.0)
    holdings.wait(share, 0, State.WAITING)
    holdings.add(other)
    holdings.release(other)
    assert handed(holdings) == [0]


def test_a_message_that_comes_again_waits_while_its_partition_is_paused() -> None:
    share = share_of("abc")
    holdings = holdings_of(share)
    holdings.next(1.0)
    holdings.wait(share, 0, State.WAITING)
    holdings.pause([Part(1, 0)])
    holdings.release(share, [0])
    assert not holdings.has_next
    assert handed(holdings) == []
    holdings.resume([Part(1, 0)])
    assert handed(holdings) == [0, 1, 2]


def test_messages_that_come_again_stop_later_ones_of_their_key_alone() -> None:
    share = share_of("aaaa")
    holdings = holdings_of(share)
    assert handed(holdings) == [0, 1, 2, 3]
    for index in range(3):
        holdings.wait(share, index, State.DUE)
    holdings.release(share, [0])
    assert handed(holdings) == [0]
    holdings.release(share, [2])
    assert handed(holdings) == []
    holdings.release(share, [1])
    assert handed(holdings) == [1, 2]


def test_what_is_to_come_again_and_waited_goes_before_what_is_due_later() -> None:
    share = share_of("aaa")
    holdings = holdings_of(share)
    handed(holdings)
    for index in range(3):
        holdings.wait(share, index, State.DUE)
    holdings.release(share, [1])
    assert handed(holdings) == []
    holdings.release(share, [0])
    holdings.release(share, [2])
    assert handed(holdings) == [0, 1, 2]


def test_another_share_of_the_same_entry_frees_no_key() -> None:
    """A member has two shares of an entry if it took them over from two members."""
    share, other = share_of("aa", name="a"), share_of("aa", name="b")
    holdings = holdings_of(share)
    for index in range(2):
        other.finish(index)
    other.messages = list(share.messages)  # they were read, and are another share's
    holdings.add(other)
    holdings.next(1.0)
    holdings.wait(share, 0, State.WAITING)
    holdings.drop(other)
    assert handed(holdings) == []


@pytest.mark.parametrize("ends", ["finish", "drop"])
def test_whoever_waits_learns_that_a_key_is_free(ends: str) -> None:
    """A dead letter ends the wait of those behind it, and so does the loss of a share."""
    freed: list[None] = []
    first, second = share_of("a", name="a"), share_of("a", name="b", entry=1)
    holdings = Holdings(by_key=True, on_freed=lambda: freed.append(None))
    for share in (first, second):
        holdings.add(share)
        holdings.release(share)
    holdings.next(1.0)
    holdings.wait(first, 0, State.WAITING)
    assert handed(holdings) == []
    assert not freed
    if ends == "finish":
        holdings.finish(first, 0)
    else:
        holdings.drop(first)
    assert freed
    assert handed(holdings) == [10]


def test_what_is_leaving_cannot_be_acknowledged() -> None:
    share = share_of("a")
    holdings = holdings_of(share)
    found = holdings.next(1.0)
    assert found is not None
    assert holdings.find(found) == (share, 0)
    holdings.wait(share, 0, State.LEAVING)
    assert holdings.find(found) is None
