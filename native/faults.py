"""Faults of disks, planned by tests: the second half of io.h.

Only some builds include them: editable ones, and those with
``-C cmake.define.BK_FAULTS=ON``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from native._core import ffi, lib
from native.errors import check

_ACTION = "planning a fault, which needs a build with -C cmake.define.BK_FAULTS=ON"
_SITES = {
    "journal_write": lib.BK_FAULT_JOURNAL_WRITE,
    "journal_sync": lib.BK_FAULT_JOURNAL_SYNC,
    "log_write": lib.BK_FAULT_LOG_WRITE,
    "log_sync": lib.BK_FAULT_LOG_SYNC,
    "index_write": lib.BK_FAULT_INDEX_WRITE,
    "index_sync": lib.BK_FAULT_INDEX_SYNC,
    "table_write": lib.BK_FAULT_TABLE_WRITE,
    "table_sync": lib.BK_FAULT_TABLE_SYNC,
    "entry_read": lib.BK_FAULT_ENTRY_READ,
    "log_erase": lib.BK_FAULT_LOG_ERASE,
    "array": lib.BK_FAULT_ARRAY,
    "folder_read": lib.BK_FAULT_FOLDER_READ,
    "journal_read": lib.BK_FAULT_JOURNAL_READ,
    "log_read": lib.BK_FAULT_LOG_READ,
    "table_read": lib.BK_FAULT_TABLE_READ,
    "index_read": lib.BK_FAULT_INDEX_READ,
    "index_flip": lib.BK_FAULT_INDEX_FLIP,
}


def plan_fault(site: str, nth: int = 1, error_number: int = 5, count: int = 1) -> None:
    """Make the *nth* next call at *site* and the *count* - 1 calls after it fail.

    Args:
        site: journal_write, journal_sync, log_write, log_sync, index_write, index_sync,
            table_write, table_sync, entry_read, log_erase, array (of memory), folder_read, or
            index_flip (a block of an index reads with a wrong bit, without an error).
            With journal_read, log_read, table_read and index_read, of scans from front to back, it
            is the *nth* block of any such file that cannot be read, and *count* - 1 behind it,
            until clear_fault().
        nth: counted from 1, the next call.
        error_number: a positive errno.
        count: calls in a row that fail.

    Raises:
        OSError: ENOSYS, the core was built without faults.
    """
    check(lib.bk_fault_plan(_SITES[site], nth, error_number, count), _ACTION)


def clear_fault() -> None:
    """Drop the planned fault, if there is one."""
    check(lib.bk_fault_plan(lib.BK_FAULT_NONE, 0, 0, 0), _ACTION)


@contextmanager
def syncs_heard(heard: Callable[[int], None]) -> Iterator[None]:
    """Call *heard* with the descriptor behind each sync of the core that succeeded.

    An exception raised by *heard* is raised again when the block ends. No engine may be
    in use when the block begins or ends.

    Raises:
        OSError: ENOSYS, the core was built without faults.
    """
    failures: list[BaseException] = []

    def note(_type: object, failure: BaseException, _trace: object) -> None:
        failures.append(failure)

    callback = ffi.callback("void(int)", heard, onerror=note)
    check(lib.bk_io_on_sync(callback), _ACTION)
    try:
        yield
    finally:
        lib.bk_io_on_sync(ffi.NULL)
        del callback
    for failure in failures:
        raise failure
