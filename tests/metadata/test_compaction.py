from __future__ import annotations

import msgspec
import pytest

from metadata.compaction import (
    HORIZONS_MAX,
    LEDGERS_MAX,
    RETIRED_MAX,
    CompactedLedger,
    CompactedSet,
    CompactionReport,
    Horizon,
    MessageOrigin,
    Retired,
    compacted_key,
    decode_set,
    encode_set,
)
from metadata.errors import BadRecord
from metadata.paged import PAGED_SIZE_MAX

BIG = (1 << 63) - 2
LEDGER = CompactedLedger(
    partition=0,
    lane=1,
    ledger_id=90,
    first=MessageOrigin(0, 5, 2, 2),
    last=MessageOrigin(3, 9, 1, 41),
    entries=2,
    messages=7,
    size=300,
)
HORIZON = Horizon(partition=0, lane=1, number=3, ledger_id=9, version=50, order_key=1000)
SET = CompactedSet(
    generation=2,
    null_keys="keep",
    partitions=4,
    horizons=[HORIZON],
    ledgers=[LEDGER],
    retired=[Retired(80, 123)],
    report=CompactionReport(keys=7, messages_in=100, messages_out=7, seconds=0.5),
)


def spoilt(**changes: object) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(SET) | changes)


def many(count: int) -> list[Horizon]:
    return [
        Horizon(partition=9999, lane=(1 << 30) + i, number=BIG, ledger_id=BIG, version=BIG,
                order_key=BIG, tombstone_order=BIG)
        for i in range(count)
    ]  # fmt: skip


def test_a_set_comes_back_as_it_was() -> None:
    assert decode_set("k", encode_set(SET)) == SET


def test_a_set_is_json_that_people_can_read() -> None:
    """PS-37: horizon, ledgers and the job's report."""
    told = msgspec.json.decode(encode_set(SET))
    assert told["horizons"] == [
        {"partition": 0, "lane": 1, "number": 3, "ledger_id": 9, "version": 50, "order_key": 1000}
    ]
    assert told["ledgers"][0]["first"] == [0, 5, 2, 2]
    assert told["retired"] == [[80, 123]]
    assert told["report"]["keys"] == 7
    assert compacted_key(7) == "compacted/00000000000000000007"


def test_fields_of_a_newer_version_are_let_pass() -> None:
    assert decode_set("k", spoilt(colour="green")) == SET


LEDGER_ROW = msgspec.to_builtins(LEDGER)
HORIZON_ROW = msgspec.to_builtins(HORIZON)


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 0},
        {"null_keys": "some"},
        {"partitions": -1},
        {"horizons": []},
        {"horizons": [HORIZON_ROW, HORIZON_ROW]},
        {"horizons": [HORIZON_ROW | {"version": 41}]},
        {"horizons": [HORIZON_ROW | {"partition": -2}]},
        {"horizons": [HORIZON_ROW | {"order_key": 1 << 63}]},
        {"horizons": [HORIZON_ROW | {"tombstone_order": 1 << 63}]},
        {"ledgers": [LEDGER_ROW | {"lane": 0}]},
        {"ledgers": [LEDGER_ROW, LEDGER_ROW]},
        {"ledgers": [LEDGER_ROW | {"entries": 0}]},
        {"ledgers": [LEDGER_ROW | {"messages": 0}]},
        {"ledgers": [LEDGER_ROW | {"last": [0, 5, 1, 1]}]},
        {"ledgers": [LEDGER_ROW, LEDGER_ROW | {"ledger_id": 91}]},
        {"retired": [[90, 1]]},
        {"retired": [[-1, 1]]},
        {"retired": [[i, 0] for i in range(100, 101 + RETIRED_MAX)]},
        {"report": {"seconds": -1}},
    ],
)
def test_what_breaks_a_rule_is_no_set(changes: dict[str, object]) -> None:
    with pytest.raises(BadRecord, match=r"^k is not a CompactedSet"):
        decode_set("k", spoilt(**changes))


def test_the_largest_set_fits_a_value_in_pages() -> None:
    at = MessageOrigin(BIG, BIG, BIG, BIG - 1)
    ledgers = [
        msgspec.structs.replace(
            LEDGER, partition=9999, lane=1 << 30, ledger_id=BIG - i, first=at, last=at,
            entries=BIG, messages=BIG, size=BIG,
        )
        for i in range(LEDGERS_MAX)
    ]  # fmt: skip
    largest = CompactedSet(
        generation=BIG,
        horizons=many(HORIZONS_MAX),
        ledgers=ledgers,
        retired=[Retired(i, BIG) for i in range(RETIRED_MAX)],
        report=CompactionReport(
            keys=BIG, messages_in=BIG, messages_out=BIG, bytes_in=BIG, bytes_out=BIG
        ),
    )
    assert len(encode_set(largest)) <= PAGED_SIZE_MAX


def test_a_set_finds_the_horizon_and_the_ledgers_of_a_lane() -> None:
    assert SET.horizon(0, 1) == HORIZON
    assert SET.horizon(0, 0) is None
    assert SET.lane_ledgers(0, 1) == [LEDGER]
    assert SET.lane_ledgers(1, 1) == []
