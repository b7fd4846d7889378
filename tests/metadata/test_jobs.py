from __future__ import annotations

import msgspec
import pytest

from metadata.calls import Transact, decode_request, encode_request
from metadata.errors import BadRecord
from metadata.jobs import (
    PINS_MAX,
    IdRun,
    JobIds,
    JobOwner,
    JobPins,
    PinnedLane,
    SinkProgress,
    StagedLedger,
    check_job_id,
    decode_ids,
    decode_job_owner,
    decode_pins,
    decode_sink,
    decode_staged,
    encode_job_row,
    ids_key,
    job_lease,
    job_of,
    pins_key,
    staged_key,
    staged_prefix,
)
from metadata.paged import PAGED_SIZE_MAX
from metadata.store import (
    KEY_SIZE_MAX,
    LEASE_VALUE_SIZE_MAX,
    OPS_MAX,
    OPS_SIZE_MAX,
    Put,
    check_ops,
)
from native.frame import call

NUMBER_MAX = (1 << 63) - 1


def test_rows_come_back_as_they_were_put() -> None:
    owner = JobOwner(kind="write", topic="s/t", host="h", process_id=7, since_ms=8)
    assert decode_job_owner("l", encode_job_row(owner)) == owner
    pins = JobPins(kind="replay", lanes=[PinnedLane(-1, 0, 3), PinnedLane(4, 5, 6)])
    assert decode_pins("p", encode_job_row(pins)) == pins
    staged = StagedLedger(ledger_id=9, partition=-1, lane=2, created_ms=3)
    assert decode_staged("s", encode_job_row(staged)) == staged
    ids = JobIds(runs=[IdRun(0, 2, 100, 7), IdRun(2, 1, 100, 907)])
    assert decode_ids("i", encode_job_row(ids)) == ids
    assert encode_job_row(ids) == b'{"runs":[[0,2,100,7],[2,1,100,907]]}'
    sink = SinkProgress(batch_id=5, at_ms=6)
    assert decode_sink("k", encode_job_row(sink)) == sink
    full = SinkProgress(batch_id=5, at_ms=6, run="r", checkpoint="/c", messages=7)
    assert decode_sink("k", encode_job_row(full)) == full
    assert decode_sink("k", b'{"batch_id":5,"at_ms":6}') == sink


@pytest.mark.parametrize("runs", [[(1, 1, 9, 1)], [(0, 2, 9, 1), (1, 1, 9, 20)], [(0, 0, 9, 1)]])
def test_ids_of_parts_have_no_holes_and_are_there_once(runs: list[tuple[int, ...]]) -> None:
    row = msgspec.json.encode({"runs": runs})
    with pytest.raises(BadRecord, match="i"):
        decode_ids("i", row)


def test_keys_name_topic_job_and_ledger() -> None:
    key = staged_key(7, "write-1f", 12)
    assert key == "staged/00000000000000000007/write-1f/00000000000000000012"
    assert key.startswith(staged_prefix(7, "write-1f"))
    rows = (pins_key(7, "write-1f"), ids_key(7, "write-1f"))
    for each in (key, job_lease(7, "write-1f"), *rows):
        assert job_of(each) == (7, "write-1f")


@pytest.mark.parametrize("key", ["jobs/7/a", "jobs/", "staged/0000000000000000000x/a/1", "x"])
def test_a_key_of_no_job_is_refused(key: str) -> None:
    with pytest.raises(BadRecord):
        job_of(key)


def test_what_breaks_a_rule_is_refused() -> None:
    with pytest.raises(BadRecord):
        decode_job_owner("l", b'{"kind": "party", "topic": "s/t"}')
    with pytest.raises(BadRecord):
        decode_pins("p", b'{"kind": "write", "lanes": [[0, -1, 2]]}')
    with pytest.raises(BadRecord):
        decode_staged("s", b"\xff")
    for job_id in ("", "a/b", "a" * 101, "\n"):
        with pytest.raises(ValueError, match="is not"):
            check_job_id(job_id)


def test_the_most_pins_fit_a_value_in_pages_and_an_owner_a_lease() -> None:
    pins = JobPins(kind="compaction", lanes=[PinnedLane(9999, 99_999, NUMBER_MAX)] * PINS_MAX)
    assert len(encode_job_row(pins)) < PAGED_SIZE_MAX
    owner = JobOwner(kind="compaction", topic="a" * 200 + "/" + "b" * 200, host="h" * 255)
    assert len(encode_job_row(owner)) < LEASE_VALUE_SIZE_MAX


def test_the_largest_transaction_fits_a_frame() -> None:
    size = OPS_SIZE_MAX // OPS_MAX
    ops = [Put("k" * KEY_SIZE_MAX, bytes(size), NUMBER_MAX) for _ in range(OPS_MAX)]
    check_ops(ops)
    encoded = encode_request(Transact(list(ops)))
    assert len(call(1, encoded)) > len(encoded)  # raises when the frame is too large
    decoded = decode_request(encoded)
    assert isinstance(decoded, Transact)
    assert len(decoded.ops) == OPS_MAX


def test_fields_of_a_newer_version_are_let_pass() -> None:
    row = msgspec.json.encode({"ledger_id": 1, "partition": 0, "colour": "red"})
    assert decode_staged("s", row).ledger_id == 1
