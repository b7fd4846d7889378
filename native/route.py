"""Which partition a message goes to, the same in every process and as Pulsar's clients say."""

from __future__ import annotations

from array import array

from native._core import ffi, lib
from native.columns import Binary, Loan, check_columns, lend_array

NO_PARTITION = int(lib.BK_NO_PARTITION)
"""What route() gives a message without a key."""


def route(keys: Binary, partitions: int) -> array[int]:
    """Return the partition of each key, NO_PARTITION for null; the same in every process.

    It is that of Pulsar's clients with Murmur3: the hash without its sign, modulo
    *partitions*.
    """
    if not 1 <= partitions < NO_PARTITION:
        raise ValueError(f"{partitions} partitions")
    found = array("I", bytes(4 * keys.length))
    loan = Loan(keys)
    check_columns(lib.bk_route(loan.pointer, keys.length, partitions, lend_array(found)))
    return found


def rows_of(partition_of: array[int], partitions: int) -> list[array[int]]:
    """Return for each partition the rows that go there, in order; NO_PARTITION is left out.

    Raises:
        ValueError: another number is no partition.
    """
    count = len(partition_of)
    starts = ffi.new("uint64_t[]", partitions + 1)
    rows = array("I", bytes(4 * count))
    result = lib.bk_group_rows(
        lend_array(partition_of), count, partitions, starts, lend_array(rows)
    )
    if result != lib.BK_OK:
        raise ValueError(f"a partition beyond {partitions - 1}")
    return [rows[starts[i] : starts[i + 1]] for i in range(partitions)]


def murmur3(data: bytes, seed: int = 0) -> int:
    """Return MurmurHash3_x86_32 of *data*, unsigned."""
    return int(lib.bk_murmur3(data, len(data), seed))
