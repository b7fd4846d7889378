"""The faults of a simulation destroy no more copies than its promises cover."""

from __future__ import annotations

from lost_copies import LostCopies

from metadata.records import Fragment, LedgerRecord, LedgerState


def ledger(number: int, *ensembles: str, ack_quorum: int) -> LedgerRecord:
    """A ledger with one ensemble, such as "abc", after the other."""
    return LedgerRecord(
        ledger_id=number,
        ensemble_size=len(ensembles[0]),
        write_quorum=len(ensembles[0]),
        ack_quorum=ack_quorum,
        state=LedgerState.OPEN,
        fragments=[Fragment(10 * i, list(names)) for i, names in enumerate(ensembles)],
    )


def test_one_copy_of_an_acknowledged_entry_is_always_left() -> None:
    lost = LostCopies()
    three, two = ledger(1, "abc", ack_quorum=3), ledger(2, "bc", ack_quorum=2)
    assert lost.lose("c", [three, two]) is None
    assert lost.lose("b", [three, two]) == 2
    assert lost.lose("b", [three]) is None
    assert lost.lose("a", [three]) == 1


def test_what_one_bookie_alone_was_waited_for_is_not_lost() -> None:
    assert LostCopies().lose("a", [ledger(1, "ab", ack_quorum=1)]) == 1


def test_a_bookie_that_was_replaced_counts_no_more() -> None:
    lost = LostCopies()
    assert lost.lose("a", [ledger(1, "ab", ack_quorum=2)]) is None
    assert lost.lose("b", [ledger(1, "cb", ack_quorum=2)]) is None


def test_each_fragment_keeps_a_copy() -> None:
    lost = LostCopies()
    moved = ledger(1, "ab", "cd", ack_quorum=2)
    assert lost.lose("a", [moved]) is None
    assert lost.lose("c", [moved]) is None
    assert lost.lose("d", [moved]) == 1


def test_a_refused_loss_leaves_no_trace() -> None:
    lost = LostCopies()
    lone = ledger(2, "a", ack_quorum=1)
    assert lost.lose("a", [ledger(1, "ab", ack_quorum=2), lone]) == 2
    assert lost.lose("b", [ledger(1, "ab", ack_quorum=2)]) is None
