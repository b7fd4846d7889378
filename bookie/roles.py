"""The roles that a bookie hosts, started when it serves and kept running.

They are a guest: whatever happens to them, the bookie goes on storing entries.
"""

from __future__ import annotations

import logging
from typing import NoReturn

import trio

from bookie.host import Host, Roles

RESTART_S = 5.0

_log = logging.getLogger(__name__)


async def keep_roles(host: Host, roles: Roles) -> NoReturn:
    """Run *roles* until cancelled; start them again RESTART_S after they ended."""
    while True:
        try:
            await roles(host)
        except* Exception:  # noqa: BLE001 - a bug in a guest must not take entries away
            _log.exception("the roles of this bookie failed; they start again in %g s", RESTART_S)
        host.figures.restarts += 1
        await trio.sleep(RESTART_S)
