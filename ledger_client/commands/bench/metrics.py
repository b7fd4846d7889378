"""Counters of bookies, from their /metrics pages."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Sequence

import trio

from ledger_client.commands.sandbox import Bookie

TIMEOUT_S = 10.0


async def count(bookies: Sequence[Bookie], name: str) -> int:
    """Return the counter quire_bookie_<name>_total, summed over the bookies.

    Raises:
        OSError: a page cannot be fetched.
    """
    return sum([await trio.to_thread.run_sync(_scrape, bookie, name) for bookie in bookies])


def _scrape(bookie: Bookie, name: str) -> int:
    url = f"http://127.0.0.1:{bookie.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    found = re.search(rf"^quire_bookie_{name}_total (\S+)$", text, re.MULTILINE)
    return int(float(found[1])) if found else 0
