"""The memory that all connections together may hold, in four pools.

    received    adds that are not synced        held as long as the disk takes
    unfinished  frames that are not whole       held as long as their peer likes
    unsent      answers that are not taken,     held as long as their peer likes
                and calls until they are answered
    making      bounds of answers being made    held until they are made

A pool that is spent stops only what fills that pool. So peers that read nothing, or stop in
the middle of a frame, hold up nobody's adds. Of each pool one address has half, which leaves
the other half to everybody else. A connection that holds no more than SMALL_SIZE goes on
although the pool is spent: small frames are taken in, small answers are put. What is larger
waits for the pool.

A peer that stands still is closed after peer_timeout_s. It has less time while others wait
for a pool and hold nothing of it: when nothing came free for PRESSED_S, those that stood still
as long are closed, the largest hoards first. Their addresses then have an eighth of each pool
for PENALTY_S, so that coming back and doing it again holds up nobody but those addresses. A
slow peer is kept as long as it takes 256 KiB in PRESSED_S.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

PRESSED_S = 5.0
"""How long somebody waits for room before those that stand still are closed."""
PENALTY_S = 60.0
SMALL_SIZE = 64 << 10
"""What a connection may hold of a pool that is spent: it is no hoard."""
_SHARE, _PENALTY_SHARE = 1 / 2, 1 / 8

Pressed = Callable[["Pool", str | None], None]


class Budget:
    """The four pools, which together hold *bytes_max*.

    Attributes:
        received, unfinished, unsent, making: the pools.
        on_pressed: called with a pool somebody waits for, and the address that spent its share
            of it, or None when the pool is spent as a whole.
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
        """Return which part of a pool *address* may hold."""
        if not self._penalties:
            return _SHARE
        return _PENALTY_SHARE if self._penalties.get(address, 0) > trio.current_time() else _SHARE


class Pool:
    """Counts bytes held for peers, by their addresses.

    The limits are checked before something is taken in, whatever its size: *bytes_max* may be
    exceeded by one frame or answer.

    Attributes:
        held: bytes held at present.
    """

    def __init__(self, budget: Budget, bytes_max: int) -> None:
        self._budget = budget
        self._bytes_max = bytes_max
        self._shares: dict[str, int] = {}
        self._unfinished: dict[int, None] = {}
        self._waiting = trio.lowlevel.ParkingLot()
        self._press_at = 0.0
        self.held = 0

    def has_room(self, address: str) -> bool:
        """Whether a peer at *address* may bring more."""
        if self.held > self._bytes_max:
            return False
        mine = self._shares.get(address, 0)
        return mine == 0 or mine <= self._bytes_max * self._budget.share_of(address)

    def change(self, address: str, size: int) -> None:
        """Hold *size* bytes more for *address*; less when it is negative."""
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
        """Note that a connection holds a part of a frame, or does so no longer.

        If every connection stopped in the middle of a frame, none would ever be given back;
        so the connection that began its frame first may always go on.
        """
        if unfinished:
            self._unfinished.setdefault(token)
        elif token in self._unfinished:
            del self._unfinished[token]
            self._waiting.unpark_all()

    def surplus(self, address: str | None) -> int:
        """Bytes by which the pool, or the share of *address*, is overdrawn; below 0: by none."""
        if address is None:
            return self.held - self._bytes_max
        share = int(self._bytes_max * self._budget.share_of(address))
        return self._shares.get(address, 0) - share

    async def room(self, address: str, token: int | None = None, *, may_press: bool = True) -> None:
        """Wait until a peer at *address* may bring more.

        Args:
            address: of the peer.
            token: of a connection in the middle of a frame.
            may_press: whether others are closed for it; not for one that hoards itself.
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
    """Nobody listens yet."""
