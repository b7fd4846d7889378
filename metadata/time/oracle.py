"""The oracle's decisions: which timestamps are next, and when they may be handed out.

    clock ──► look() ──► the end of a window to store ──► stored() ──► look()
                                                            │
    count ──► allocate() ──► the last timestamp of a range, below the stored window

There is no task, clock or store here. Three numbers are all that counts:

    physical_ms < saved_ms      always, once a window is stored
    physical_ms                 never goes back
    saved_ms                    never goes back, and is in the store before it counts here

A timestamp is issued below the stored window only, and the next oracle begins above the window that
it finds. So timestamps never repeat or go back, whatever clocks do. The clock only decides how fast
they rise: one that is behind is waited for, while the logical part counts; one that is ahead is
followed. The rules and their numbers are those of TiKV's PD and of Milvus.
"""

from __future__ import annotations

from metadata.time.timestamps import PER_MS, PHYSICAL_MAX, compose

WINDOW_MS = 3000
"""How far ahead the window is stored; at least as long as the lease lives."""
LOOK_MS = 50
"""Between two looks at the clock."""
GUARD_MS = 1
"""A clock that is no further ahead is not followed; a window that ends so soon is renewed."""
JUMP_MS = 3 * LOOK_MS
"""A clock that is ahead by more than this has jumped, or the oracle was held up."""
RESET_MS_MAX = 24 * 3600 * 1000
"""A reset by hand moves time forward by no more than this."""
CLOCK_MAX_MS = PHYSICAL_MAX - 2 * RESET_MS_MAX
"""A clock beyond this is not believed: in the year 4199 timestamps end."""
HALF = PER_MS // 2


class Oracle:
    """Decides for one term, which begins with the window *saved_ms* that the last one left.

    Attributes:
        physical_ms: milliseconds since 1970 of the timestamps that are issued now.
        saved_ms: the end of the stored window. No timestamp has this physical part or a later one.
        lag_ms: how far the clock was ahead at the last look; negative if it was behind.
        jumps: looks that followed it by more than JUMP_MS.
        rests: it has reached the end of its window, and nobody asked since that was stored.
    """

    def __init__(self, saved_ms: int, now_ms: int, *, window_ms: int = WINDOW_MS) -> None:
        """Begin above *saved_ms*, which is 0 if there never was a window."""
        self.saved_ms = saved_ms
        self.physical_ms = max(min(now_ms, CLOCK_MAX_MS), 0)
        if self.physical_ms - saved_ms < GUARD_MS:
            self.physical_ms = saved_ms + GUARD_MS
        self.lag_ms = 0
        self.jumps = 0
        self._window_ms = window_ms
        self._issued = 0
        """timestamps issued in this millisecond"""
        self._steps = 0
        """milliseconds by which time was moved on without the clock, since the last look"""
        self._is_used = True
        """something was issued since the window was stored"""
        self.rests = False

    def look(self, now_ms: int, *, is_wanted: bool = False) -> int | None:
        """Follow the clock. Call it every LOOK_MS, and with *is_wanted* before an allocation.

        An oracle that nobody asked since its window was stored rests at the end of the window, so
        that it stores nothing, and needs no looks, until one is wanted or something is allocated.

        Returns:
            The end of the window that must be stored before time can move on, or None. Once it is
            stored, call stored() and look again.
        """
        self._steps = 0
        self.lag_ms = now_ms - self.physical_ms
        following = self._following(now_ms)
        if self.saved_ms - following > GUARD_MS:
            self.jumps += self.lag_ms > JUMP_MS and not self.rests
            self.rests = False
            self._move(following)
            return None
        if is_wanted or self._is_used:
            return following + self._window_ms
        self.rests = True
        return None

    def stored(self, saved_ms: int) -> None:
        """Note that the window up to *saved_ms* is in the store."""
        self.saved_ms = max(self.saved_ms, saved_ms)
        self._is_used = False

    def is_late(self, now_ms: int) -> bool:
        """True if the oracle has not followed the clock for long, or has no window yet."""
        return not self._has_window or min(now_ms, CLOCK_MAX_MS) - self.physical_ms > JUMP_MS

    def allocate(self, count: int, now_ms: int) -> int | None:
        """Take *count* timestamps of one millisecond, and return the LAST of them.

        None means that the logical part is used up, and that time cannot move on within the
        stored window before the next look. Raises ValueError if *count* is not within 1 to PER_MS.
        """
        if not 1 <= count <= PER_MS:
            raise ValueError(f"{count} timestamps at once; it may be 1 to {PER_MS}")
        self._is_used = True
        if not self._has_window:
            return None
        if self._issued + count > PER_MS and not self._step(now_ms):
            return None
        self._issued += count
        return compose(self.physical_ms, self._issued - 1)

    def reset_window(self, to_ms: int) -> int:
        """Return the end of the window to store before reset().

        Raises:
            ValueError: *to_ms* is not later than now, or more than RESET_MS_MAX later.
        """
        ahead_ms = to_ms - self.physical_ms
        if ahead_ms <= 0:
            raise ValueError(f"time only moves forward, and is {-ahead_ms} ms past that already")
        if ahead_ms > RESET_MS_MAX or to_ms > CLOCK_MAX_MS:
            raise ValueError(
                f"that is {ahead_ms / 3_600_000:.1f} h ahead of the cluster's time; "
                f"it may be {RESET_MS_MAX // 3_600_000} h at most"
            )
        return to_ms + self._window_ms

    def reset(self, to_ms: int) -> None:
        """Move time forward to *to_ms*, once its window is stored."""
        assert self.saved_ms - to_ms > GUARD_MS
        self._move(to_ms)

    @property
    def _has_window(self) -> bool:
        return self.physical_ms < self.saved_ms

    def _following(self, now_ms: int) -> int:
        """Return the physical part that follows at a look; it may be the present one."""
        now_ms = min(now_ms, CLOCK_MAX_MS)
        if now_ms - self.physical_ms > GUARD_MS:
            return now_ms
        return self.physical_ms + (self._issued > HALF)

    def _step(self, now_ms: int) -> bool:
        """Move on within the stored window, as the logical part is used up; False if it cannot.

        It is no reason to store another window: that would outrun the clock. For the same reason
        time moves on by no more than LOOK_MS without the clock until the next look.
        """
        following = min(now_ms, CLOCK_MAX_MS)
        if following - self.physical_ms <= GUARD_MS:
            if self._steps >= LOOK_MS:
                return False
            self._steps += 1
            following = self.physical_ms + 1
        if self.saved_ms - following <= GUARD_MS:
            return False
        self._move(following)
        return True

    def _move(self, physical_ms: int) -> None:
        if physical_ms > self.physical_ms:
            self.physical_ms = physical_ms
            self._issued = 0
