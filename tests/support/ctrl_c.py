"""A Ctrl-C at the moment that a test names."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c_when(wait: Callable[[], object]) -> Iterator[None]:
    """Interrupt the block, which is this thread's, once *wait*, called in another, returns.

    Python may notice a signal that comes just before a wait only after it, so it is sent again.
    """
    interrupted, is_over = threading.get_ident(), threading.Event()

    def interrupt() -> None:
        wait()
        while not is_over.is_set():
            signal.pthread_kill(interrupted, signal.SIGINT)
            is_over.wait(10)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    try:
        yield
    finally:
        is_over.set()
        interrupter.join()
