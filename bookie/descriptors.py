"""File descriptors: enough for the disk, however many peers connect.

A flush that cannot open its files ends the bookie. So the soft limit is raised to the hard
one at the start, and no more connections are taken than leave the disk its reserve:

    limit of the process = connections served + places of bookies + pending connections + RESERVE
"""

from __future__ import annotations

import logging
import resource

import msgspec

from bookie.config import BookieConfig
from bookie.connection_limits import bookies_max_of, pending_max_of
from bookie.errors import BookieError

RESERVE = 256 + 128
"""256 files of entry logs stay open (store.c). The rest is for the journal, a flush, the
metadata, pages, the connections to other bookies and what Python needs."""
_SERVED_MIN = 8
_log = logging.getLogger(__name__)


def fit_descriptors(config: BookieConfig) -> BookieConfig:
    """Raise the limit of this process, and return settings that keep within it.

    Raises:
        BookieError: the message says how many are needed.
    """
    limit = raise_limit()
    served = min(config.connections_max, served_max_of(limit))
    if served < min(config.connections_max, _SERVED_MIN):
        raise BookieError(
            f"this process may open {limit} files; {needed_for(_SERVED_MIN)} are the least. "
            "Raise the limit (ulimit -n, LimitNOFILE of systemd)"
        )
    if served < config.connections_max:
        _log.warning(
            "this process may open %d files: it serves %d connections, not connections_max %d, "
            "which takes %d. Raise the limit (ulimit -n, LimitNOFILE of systemd)",
            limit,
            served,
            config.connections_max,
            needed_for(config.connections_max),
        )
    return msgspec.structs.replace(config, connections_max=served)


def raise_limit() -> int:
    """Raise the soft limit of descriptors to the hard one; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as refused:
            _log.warning("the limit of open files stays %d: %s", soft, refused)
            return soft
    return hard if hard != resource.RLIM_INFINITY else 1 << 30


def needed_for(served: int) -> int:
    """Return how many descriptors *served* connections take, with all that is beside them."""
    return served + bookies_max_of(served) + pending_max_of(served) + RESERVE


def served_max_of(limit: int) -> int:
    """Return how many connections can be served with *limit* descriptors; 0 for none."""
    low, high = 0, max(limit, 0)
    while low < high:
        middle = (low + high + 1) // 2
        if needed_for(middle) <= limit:
            low = middle
        else:
            high = middle - 1
    return low
