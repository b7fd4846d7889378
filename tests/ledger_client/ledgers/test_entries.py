from __future__ import annotations

from hypothesis import given, strategies as st

from ledger_client.ledgers.entries import Entries, Entry, EntryBatch

payloads = st.lists(st.lists(st.binary(max_size=5), min_size=1, max_size=4), max_size=5)


def batches_of(parts: list[list[bytes]]) -> list[EntryBatch]:
    batches, first = [], 10
    for part in parts:
        offsets, body = [], b"??"
        for payload in part:
            offsets.append(len(body))
            body += payload + b"?"
        batches.append(EntryBatch(3, first, body, offsets, list(map(len, part)), "b1"))
        first += len(part)
    return batches


@given(payloads, st.slices(20))
def test_entries_are_a_sequence_like_a_list_of_them(parts: list[list[bytes]], cut: slice) -> None:
    flat = [payload for part in parts for payload in part]
    model = [Entry(3, 10 + i, payload) for i, payload in enumerate(flat)]
    entries = Entries(batches_of(parts))
    assert len(entries) == len(model)
    assert list(entries) == model
    assert entries == model
    assert [entries[i] for i in range(len(model))] == model
    assert [entries[-i - 1] for i in range(len(model))] == model[::-1]
    assert entries[cut] == model[cut]


def test_a_batch_gives_views_without_copies_and_bytes_on_request() -> None:
    (batch,) = batches_of([[b"one", b"", b"three"]])
    assert (batch.last_entry, batch.size) == (12, 8)
    assert batch.payload(0).obj is batch.body
    assert list(batch.payloads()) == [b"one", b"", b"three"]
    assert batch.entry(2) == Entry(3, 12, b"three")
