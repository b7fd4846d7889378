"""The memory that all connections together may hold, in four pools.

    received    adds that are not synced           held until the disk has them
    unfinished  incomplete frames                  held until their peer sends the rest
    unsent      responses that are not taken,      held until their peer reads them
                and calls until they are answered
    making      bounds of responses being made     held until they are made

A pool that is used up blocks only what fills that pool. So peers that read nothing, or stop in the
middle of a frame, delay no other's adds. One address may hold half of each pool. A connection that
holds at most SMALL_SIZE continues although the pool is used up: small frames and small
responses pass, larger ones wait for the pool. An incomplete frame may become an add, so a larger
one waits for *received*, too.

A peer without progress is closed after peer_timeout_s, and sooner while others wait for a pool of
which they hold nothing: if nothing is released for PRESSED_S, connections without progress for as
long are closed, those that hold most first. Their addresses then get an eighth of each pool for
PENALTY_S, so that reconnecting and repeating it delays only those addresses. A slow peer is kept
as long as it takes 256 KiB in PRESSED_S.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

PRESSED_S = 5.0
"""Wait for memory before connections without progress are closed."""
PENALTY_S = 60.0
SMALL_SIZE = 64 << 10
"""Bytes that a connection may hold of a pool that is used up."""
_SHARE, _PENALTY_SHARE = 1 / 2, 1 / 8

Pressed = Callable[["Pool", str | None], None]


class MemoryBudget:
    """The four pools, which together hold *bytes_max*.

    Attributes:
        received, unfinished, unsent, making: the pools.
        on_pressed: called with a pool for which a connection waits, and the address that used up
            its share, or None if the whole pool is used up.
    """

    def __init__(self, bytes_max: int) -> None:
        self._penalties: dict[str, float] = {}
        self.on_pressed: Pressed = _nobody
        self.received = Pool(self, bytes_max // 2)
        self.unfinished = Pool(self, bytes_max // 8)
        self.unsent = Pool(self, bytes_max // 4)
        self.making = Pool(self, bytes_max // 8)

    @property
    def held(self) -> int:
        """Bytes held at present, in all pools."""
        pools = (self.received, self.unfinished, self.unsent, self.making)
        return sum(pool.held for pool in pools)

    def punish(self, address: str) -> None:
        """Give *address* a small share for PENALTY_S."""
        now = trio.current_time()
        self._penalties = {each: until for each, until in self._penalties.items() if until > now}
        self._penalties[address] = now + PENALTY_S

    def share_of(self, address: str) -> float:
        """Return the share of a pool that *address* may hold, 0 to 1."""
        if not self._penalties:
            return _SHARE
        return _PENALTY_SHARE if self._penalties.get(address, 0) > trio.current_time() else _SHARE


class Pool:
    """Counts bytes held for peers, by their addresses.

    Limits are checked before a frame or response of any size is taken in, so one of them may
    exceed *bytes_max*.

    Attributes:
        held: bytes held at present.
    """

    def __init__(self, budget: MemoryBudget, bytes_max: int) -> None:
        self._budget = budget
        self._bytes_max = bytes_max
        self._shares: dict[str, int] = {}
        self._unfinished: dict[int, None] = {}
        self._waiting = trio.lowlevel.ParkingLot()
        self._press_at = 0.0
        self.held = 0

    def has_room(self, address: str) -> bool:
        """Return True if a peer at *address* may use more."""
        if self.held > self._bytes_max:
            return False
        mine = self._shares.get(address, 0)
        return mine == 0 or mine <= self._bytes_max * self._budget.share_of(address)

    def change(self, address: str, size: int) -> None:
        """Hold *size* bytes more for *address*, or fewer if it is negative."""
        if size == 0:
            return
        self.held += size
        mine = self._shares.get(address, 0) + size
        if mine:
            self._shares[address] = mine
        else:
            del self._shares[address]
        if size < 0 and self._waiting and self.held <= self._bytes_max:
            self._waiting.unpark_all()

    def mark_unfinished(self, token: int, unfinished: bool) -> None:
        """Record that a connection holds an incomplete frame, or no longer does.

        If every connection waited in the middle of a frame, no memory would ever be released.
        So the connection that began its frame first may always continue.
        """
        if unfinished:
            self._unfinished.setdefault(token)
        elif token in self._unfinished:
            del self._unfinished[token]
            self._waiting.unpark_all()

    def surplus(self, address: str | None) -> int:
        """Return bytes above the limit of the pool or of *address*; negative if below."""
        if address is None:
            return self.held - self._bytes_max
        share = int(self._bytes_max * self._budget.share_of(address))
        return self._shares.get(address, 0) - share

    async def room(self, address: str, token: int | None = None, *, may_press: bool = True) -> None:
        """Wait until a peer at *address* may use more.

        Args:
            address: the peer's address.
            token: the connection's token if it is in the middle of a frame.
            may_press: close other connections to get memory; False for a connection that holds
                memory itself.
        """
        while not self.has_room(address) and not self._is_first(token):
            with trio.move_on_after(PRESSED_S if may_press else math.inf):
                await self._waiting.park()
                continue
            self._press(address)

    def _press(self, address: str) -> None:
        now = trio.current_time()
        if self.has_room(address) or now < self._press_at:
            return
        self._press_at = now + PRESSED_S / 2
        self._budget.on_pressed(self, None if self.held > self._bytes_max else address)

    def _is_first(self, token: int | None) -> bool:
        return token is not None and next(iter(self._unfinished), None) == token


def _nobody(_pool: Pool, _address: str | None) -> None:
    """Do nothing: no callback was set."""
