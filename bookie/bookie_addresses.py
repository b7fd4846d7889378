"""The addresses from which the cluster's bookies connect, as far as they can be known.

They are looked up when a connection limit is reached, not before: registrations name each
bookie's host, and the resolver its addresses. A bookie that connects from another address of its
host counts as a client.
"""

from __future__ import annotations

import logging
from typing import NoReturn

import trio

from bookie.listeners import network_of
from metadata.address import parse_address
from metadata.errors import BadAddress, MetadataError
from metadata.registrations import list_registrations
from metadata.store import MetadataStore

_log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Time between two looks, at least."""
_RESOLVE_S = 2.0


class BookieAddresses:
    """The addresses of the registered bookies, in the form of listeners.peer_address()."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._known: set[str] = set()
        self._wanted = trio.Event()

    def has(self, address: str) -> bool:
        """Return True if a bookie is known there; otherwise have the addresses looked up."""
        if address in self._known:
            return True
        self._wanted.set()
        return False

    async def run(self) -> NoReturn:
        """Look the addresses up when they are wanted. Without the store, the last ones stay."""
        while True:
            await self._wanted.wait()
            try:
                await self._look()
            except MetadataError as error:
                _log.debug("the addresses of other bookies cannot be looked up: %s", error)
            await trio.sleep(LOOK_S)
            self._wanted = trio.Event()

    async def _look(self) -> None:
        found: set[str] = set()
        for bookie in (await list_registrations(self._store)).bookies:
            with trio.move_on_after(_RESOLVE_S):
                found |= await _addresses_of(bookie.address)
        self._known = found


async def _addresses_of(address: str) -> set[str]:
    """Return what the host of *address* resolves to; nothing if it does not."""
    try:
        place = parse_address(address)
        resolved = await trio.socket.getaddrinfo(place.host, place.port)
        return {network_of(str(where[0])) for *_, where in resolved}
    except (BadAddress, OSError, ValueError):
        return set()
