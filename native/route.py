"""Which partition a message goes to, the same in every process and as Pulsar's clients say."""

from __future__ import annotations

from array import array

from native._core import ffi, lib
from native.columns import Binary, Loan, address_of_rows, check_columns

NO_PARTITION = int(lib.BK_NO_PARTITION)
"""What route() gives a message without a key."""


def route(keys: Binary, partitions: int) -> array[int]:
    """Return the partition of each key, NO_PARTITION for null; the same in every process.

    It is that of Pulsar's clients with Murmur3: the hash without its sign, modulo
    *partitions*.
    """
    _check_number(partitions)
    found = array("I", bytes(4 * keys.length))
    loan = Loan(keys)
    check_columns(lib.bk_route(loan.pointer, keys.length, partitions, address_of_rows(found)))
    return found


def rows_of(partition_of: array[int], partitions: int) -> list[array[int]]:
    """Return for each partition the rows that go there, in order; NO_PARTITION is left out.

    Raises:
        ValueError: another number is no partition, or there are none.
    """
    _check_number(partitions)
    count = len(partition_of)
    starts = ffi.new("uint64_t[]", partitions + 1)
    rows = array("I", bytes(4 * count))
    result = lib.bk_group_rows(
        address_of_rows(partition_of), count, partitions, starts, address_of_rows(rows)
    )
    if result != lib.BK_OK:
        raise ValueError(f"a partition beyond {partitions - 1}")
    return [rows[starts[i] : starts[i + 1]] for i in range(partitions)]


def murmur3(data: bytes, seed: int = 0) -> int:
    """Return MurmurHash3_x86_32 of *data*, unsigned."""
    return int(lib.bk_murmur3(data, len(data), seed))


def _check_number(partitions: int) -> None:
    if not 1 <= partitions < NO_PARTITION:
        raise ValueError(f"{partitions} partitions")
