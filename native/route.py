"""The partition of each message: the same in every process, and in Pulsar's clients."""

from __future__ import annotations

from array import array

from native._core import ffi, lib
from native.columns import Binary, Loan, address_of_rows, check_columns

NO_PARTITION = int(lib.BK_NO_PARTITION)
"""What route() gives a message without a key."""


def route(keys: Binary, partitions: int) -> array[int]:
    """Return the partition of each key, NO_PARTITION for null; the same in every process.

    The same partition that Pulsar's clients choose with Murmur3: the hash without its sign bit,
    modulo *partitions*.
    """
    _check_number(partitions)
    found = array("I", bytes(4 * keys.length))
    loan = Loan(keys)
    check_columns(lib.bk_route(loan.pointer, keys.length, partitions, address_of_rows(found)))
    return found


def rows_of(partition_of: array[int], partitions: int) -> list[array[int]]:
    """Return the rows of each partition, in order; rows with NO_PARTITION are left out.

    Raises:
        ValueError: a number is not a partition, or *partitions* is out of bounds.
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
    """Return MurmurHash3_x86_32 of *data* as an unsigned 32-bit number."""
    return int(lib.bk_murmur3(data, len(data), seed))


def _check_number(partitions: int) -> None:
    if not 1 <= partitions < NO_PARTITION:
        raise ValueError(f"{partitions} partitions")
