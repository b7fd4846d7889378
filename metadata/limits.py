"""Limits of a store: sizes of keys and values, counts and times.

Every driver checks them before it does anything, so all drivers refuse the same requests, and a
reply always fits a frame.
"""

from __future__ import annotations

from collections.abc import Sequence

from metadata.errors import BadRequest
from metadata.store import CheckLease, Lease, Op, Put

KEY_SIZE_MAX = 512
VALUE_SIZE_MAX = 1 << 20
PAGE_COUNT_MAX = 1000
PAGE_SIZE_MAX = 2 << 20  # bytes of values in one page, unless it holds one item only
OPS_MAX = 1024
OPS_SIZE_MAX = 4 << 20  # bytes of values in one transaction
IDS_MAX = 1_000_000
LEASE_VALUE_SIZE_MAX = 4096
TTL_S_MIN = 0.05
TTL_S_MAX = 86_400.0
WAIT_S_MAX = 60.0
INTEGER_MAX = (1 << 63) - 1


def check_key(key: str, what: str = "key") -> None:
    """Raise BadRequest unless *key* has 1 to 512 bytes, all printable."""
    if not key:
        raise BadRequest(f"the {what} is empty")
    check_prefix(key, what)


def check_prefix(prefix: str, what: str = "prefix") -> None:
    """Raise BadRequest unless *prefix* has at most 512 bytes, all printable."""
    if not prefix.isprintable():
        raise BadRequest(f"the {what} {prefix[:40]!a} has characters that cannot be printed")
    size = len(prefix.encode())
    if size > KEY_SIZE_MAX:
        raise BadRequest(f"the {what} has {size} bytes; at most {KEY_SIZE_MAX} are allowed")


def check_size(size: int, size_max: int, what: str) -> None:
    """Raise BadRequest when *size* bytes are more than *size_max*."""
    if size > size_max:
        raise BadRequest(f"{what} has {size} bytes; at most {size_max} are allowed")


def check_range(number: float, lowest: float, highest: float, what: str) -> None:
    """Raise BadRequest unless *number* lies between the two, both included."""
    if not lowest <= number <= highest:
        raise BadRequest(f"{what} is {number}; allowed are {lowest} to {highest}")


def check_expected(expected: int | None) -> None:
    """Raise BadRequest unless *expected* is None or can be a version."""
    if expected is not None:
        check_range(expected, 0, INTEGER_MAX, "the expected version")


def check_ops(ops: Sequence[Op]) -> None:
    """Raise BadRequest if a transaction has too many ops, too large values or a bad key."""
    check_range(len(ops), 0, OPS_MAX, "the number of ops")
    size = 0
    for op in ops:
        if isinstance(op, CheckLease):
            check_lease(op)
            continue
        check_key(op.key)
        check_expected(op.expected)
        if isinstance(op, Put):
            check_size(len(op.value), VALUE_SIZE_MAX, f"the value of {op.key}")
            size += len(op.value)
    check_size(size, OPS_SIZE_MAX, "the transaction")


def check_page(prefix: str, after: str, limit: int = PAGE_COUNT_MAX) -> None:
    """Check the arguments of a listing of keys or leases. Raises BadRequest."""
    check_prefix(prefix)
    check_prefix(after, "key to go on after")
    check_range(limit, 1, PAGE_COUNT_MAX, "the limit")


def check_ids(counter: str, count: int) -> None:
    """Check a request for fresh ids. Raises BadRequest."""
    check_key(counter, "counter")
    check_range(count, 1, IDS_MAX, "the count of ids")


def check_grant(name: str, owner: str, ttl_s: float, value: bytes) -> None:
    """Check a request for a lease. Raises BadRequest."""
    check_key(name, "lease name")
    check_key(owner, "owner")
    check_range(ttl_s, TTL_S_MIN, TTL_S_MAX, "the time to live")
    check_size(len(value), LEASE_VALUE_SIZE_MAX, "the value")


def check_lease(lease: Lease | CheckLease, value: bytes | None = None) -> None:
    """Check the lease of a renewal or release, and its new value. Raises BadRequest."""
    check_key(lease.name, "lease name")
    check_key(lease.owner, "owner")
    check_range(lease.epoch, 1, INTEGER_MAX, "the epoch")
    check_size(len(value or b""), LEASE_VALUE_SIZE_MAX, "the value")


def check_changes(prefix: str, since: int | None, wait_s: float) -> None:
    """Check the arguments of changes(). Raises BadRequest."""
    check_prefix(prefix)
    check_range(since or 0, 0, INTEGER_MAX, "the revision")
    check_range(wait_s, 0, WAIT_S_MAX, "the wait")
