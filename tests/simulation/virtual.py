"""One world in one thread: virtual time, one order of tasks, no threads, no chance.

    trio's clock        MockClock, jumps to the next deadline when nothing can run
    order of tasks      from the seed, and none of frozen machines
    time.time_ns        the virtual clock, and what the machine's own is off; time.time too
    time.monotonic      stands still, and so do time.perf_counter, and the clocks that tell how
                        long the host slept
    to_thread.run_sync  inline, after as long as the machine's disk takes
    secrets, random     from the seed, and uuid4() too
    process and host    of one name: what tells them to others is as long everywhere

What is patched is patched for the block, in this process.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import random
import secrets
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import trio
import trio.testing
from machines import FROZEN, MACHINE, machine_of
from replaced import replaced

SLOW_S_MAX = 0.1
"""For what is done off the loop, when it is slow."""
NEVER_S = 999999999.0
"""for a clock that moves only when nothing else does"""
PROCESS_ID = 5000
HOST = os.uname_result(("Linux", "host", "6.1", "#1", "x86_64"))
EPOCH_NS = 1_800_000_000 * 10**9
T = TypeVar("T")


class Order(random.Random):
    """Decides, in place of trio's own, in which order tasks run that can run now."""

    def shuffle(self, batch: Any) -> None:  # noqa: ANN401 - as random.Random has it
        if FROZEN:
            batch[:] = [task for task in batch if not _is_held(task)]
        if self.random() < 0.5:
            batch.reverse()
        if len(batch) > 2 and self.random() < 0.3:
            super().shuffle(batch)


def _is_held(task: trio.lowlevel.Task) -> bool:
    machine = machine_of(task)
    if machine is None or not machine.frozen:
        return False
    machine.hold(task)
    return True


class Seeded(random.Random):
    """A source of randomness that takes its seed from the world, unless it is given one."""

    world = random.Random()

    def __init__(self, seed: int | str | None = None) -> None:
        super().__init__(self.world.random() if seed is None else seed)


def run(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """Run *main* in a world of its own and return what it returns."""
    with _patched(seed):
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# The loop asks for the time several times in each of its passes, of which a simulation has
# hundreds of thousands. A MockClock adds to it what passed outside, which is nothing here, and
# counts all tasks and files before each leap.


def _current_time(clock: trio.testing.MockClock) -> float:
    return clock._virtual_base


def _sleep_time(clock: trio.testing.MockClock, deadline: float) -> float:
    return 0 if deadline <= clock._virtual_base else NEVER_S


def _leap(clock: trio.testing.MockClock) -> None:
    deadline = trio._core._run.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline()
    leap_s = deadline - clock._virtual_base
    if 0 < leap_s < math.inf:
        clock._virtual_base += leap_s  # its last bit may differ from the deadline's


@contextmanager
def _patched(seed: int) -> Iterator[None]:
    chance, ids = random.Random(f"secrets {seed}"), random.Random(f"ids {seed}")
    core = trio._core._run
    collecting, level = gc.isenabled(), logging.root.manager.disable
    before = random.getstate()
    random.seed(f"random {seed}")
    Seeded.world.seed(f"seeds {seed}")
    gc.disable()  # finalizers run at the same place in every run of a seed
    logging.disable(logging.CRITICAL)
    try:
        with (
            replaced(core, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
            replaced(core, "_r", Order(f"order {seed}")),
            replaced(trio.testing.MockClock, "current_time", _current_time),
            replaced(trio.testing.MockClock, "deadline_to_sleep_time", _sleep_time),
            replaced(trio.testing.MockClock, "_autojump", _leap),
            replaced(trio.to_thread, "run_sync", run_inline),
            replaced(trio._path, "run_sync", run_inline),
            replaced(time, "time_ns", time_ns),
            replaced(time, "time", lambda: time_ns() / 1e9),
            replaced(time, "monotonic", lambda: 0.0),
            # The client tells by it whether trio's clock is real: the two never go together here,
            # however slow the host is.
            replaced(time, "perf_counter", lambda: 0.0),
            replaced(time, "clock_gettime", lambda _clock: 0.0),
            replaced(os, "getpid", lambda: PROCESS_ID),
            replaced(os, "uname", lambda: HOST),
            replaced(socket, "gethostname", lambda: HOST.nodename),
            replaced(uuid, "uuid4", lambda: uuid.UUID(bytes=ids.randbytes(16), version=4)),
            replaced(random, "Random", Seeded),
            replaced(secrets, "token_hex", lambda size=32: chance.randbytes(size).hex()),
            replaced(secrets, "token_bytes", lambda size=32: chance.randbytes(size)),
        ):
            yield
    finally:
        FROZEN.clear()
        random.setstate(before)
        logging.disable(level)
        if collecting:
            gc.enable()


def time_ns() -> int:
    """Return the wall clock of the machine that the calling task runs on."""
    machine = MACHINE.get()
    now_ns = round(trio.current_time() * 1e9)
    if machine is None or not (machine.clock_ms or machine.clock_drift):
        return EPOCH_NS + now_ns
    machine.misled += 1
    return EPOCH_NS + round(now_ns * (1 + machine.clock_drift)) + machine.clock_ms * 1_000_000


async def run_inline(
    work: Callable[..., T], *args: object, abandon_on_cancel: bool = False, **_: object
) -> T:
    """Do what a worker thread would do, after a while; nothing on a dead machine.

    As with a thread, who is cancelled waits until it is done.
    """
    machine = MACHINE.get()
    with trio.CancelScope(shield=not abandon_on_cancel):
        if machine is not None and machine.chance.random() < machine.slow_share:
            await trio.sleep(machine.chance.uniform(0, SLOW_S_MAX))
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
    if machine is not None:
        machine.check_alive()
    return work(*args)
