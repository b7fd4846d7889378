"""Opening something for a block, or without one until close().

    async with client.producer("shop/orders") as producer:  # held by this task
        ...

    producer = await client.producer("shop/orders")  # held by a task of its own
    ...
    await producer.close()

A client, a producer or a reader has tasks, and in trio a task belongs to a nursery. Without a
block, a task of its own enters the resource, waits for close() and leaves it. That task needs a
home, too:

- what a client opens lives in the client's nursery, and is closed with the client;
- the client itself lives in a system task, because trio has no other task that outlives its
  parent.

An error in a system task would crash the whole run. So the task that holds the client raises
nothing: its failure is kept, close() raises it, and later calls raise ClientClosed from it. Trio
cancels system tasks when the main task ends. So a client that was forgotten does not keep the run
from ending: it is left as a cancelled block is, with a ResourceWarning.
"""

from __future__ import annotations

import contextvars
import logging
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

import trio

from ledger_client.errors import ClientClosed, Gap, NotOpen

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Openable:
    """Base of the classes that Opening opens. close() ends what no block does."""

    _held: Held[Any] | None = None
    """the task that holds it, if it was opened without a block"""


class Home(Protocol):
    """Where the tasks live that hold something open."""

    def start(self, held: Held[Any]) -> None:
        """Start the task. Raises ClientClosed if it is too late for that."""

    def note_open(self, held: Held[Any], value: object) -> None:
        """Note that *value* goes to the caller."""

    def note_end(self, held: Held[Any]) -> None:
        """Note that the task ends, with held.failure if it failed; again once that was taken."""


class Held(Generic[T]):
    """A context manager that a task of its own holds open.

    Attributes:
        is_entered: it was entered, so leave() or cancel() must follow.
        is_block_over: the caller had a block of its own, which has ended without an error.
        failure: the error or cancellation that ended it, until leave() raises it.
    """

    def __init__(self, manager: AbstractAsyncContextManager[T], home: Home) -> None:
        self.is_entered = self.is_block_over = False
        self.failure: BaseException | None = None
        self._manager = manager
        self._home = home
        self._value: list[T] = []
        self._scope = trio.CancelScope()
        self._begun, self._left, self._ended = trio.Event(), trio.Event(), trio.Event()
        self._error: Exception | None = None
        self._task: trio.lowlevel.Task | None = None
        self._is_abandoned = False
        self._raised: Gap | None = None

    async def enter(self) -> T:
        """Enter the block in a task of its own, and return its value.

        Cancelled, nothing stays open. Raises as entering does, and ClientClosed.
        """
        self._home.start(self)
        try:
            await self._begun.wait()
        except BaseException:
            await self.cancel()
            raise
        if not self.is_entered:
            self._raise_failure()
        value = self._value.pop()  # the task keeps no reference to what the caller may drop
        if self.is_over:  # the client was closed before this task ran again
            self._raise_failure()
        if isinstance(value, Openable):
            value._held = self
        self._home.note_open(self, value)
        return value

    async def leave(self, error: Exception | None = None, *, is_block_over: bool = False) -> None:
        """Leave the block, with *error* if the caller's block failed; harmless if it was left.

        *is_block_over*: the caller's own block has ended, with *error* or without.

        Cancelled, it is left as a cancelled block is. Raises as leaving it does.
        """
        was_over = self._is_abandoned or self._ended.is_set()
        if not self._left.is_set():
            self._error = error
            self.is_block_over = is_block_over and error is None
            self._left.set()
        try:
            await self._ended.wait()
        except trio.Cancelled:
            if not self._is_inside():  # else it is the leaving that cancels this task
                await self.cancel()
            raise
        if self.failure is not None:
            self._raise_failure()
        if self._is_abandoned and not was_over:
            raise ClientClosed(
                "another close() was cancelled: messages without an answer may or may not be kept"
            )

    async def cancel(self) -> None:
        """Leave the block at once, even if this task is cancelled, and ignore its errors.

        In a task of the block itself, which ends before the block does, wait for nothing.
        """
        self.abandon()
        if self._is_inside():
            return
        with trio.CancelScope(shield=True):
            await self._ended.wait()
        _log_gap(self._take_failure())

    def abandon(self) -> None:
        """Cancel the block, and do not wait for its end. To be called in trio's thread."""
        self._is_abandoned = True
        self._scope.cancel()

    @property
    def is_over(self) -> bool:
        """True once it was left or cancelled, or the block has ended by itself."""
        return self._left.is_set() or self._is_abandoned or self._ended.is_set()

    @property
    def is_left(self) -> bool:
        """True once the block has ended, and no error of it waits for leave()."""
        return self._ended.is_set() and self.failure is None

    async def run(self) -> None:
        """Hold the block open. For the home to start."""
        self._task = trio.lowlevel.current_task()
        try:
            with self._scope:
                async with self._manager as value:
                    self._value.append(value)
                    del value
                    self.is_entered = True
                    self._begun.set()
                    await self._left.wait()
                    if self._error is not None:
                        raise self._error  # noqa: TRY301  # into the block, where it happened
        except BaseException as failure:  # noqa: BLE001  # raised by enter() or leave()
            self.failure = failure
            _pass_on_interrupt(failure)
        finally:
            self._home.note_end(self)
            self._begun.set()
            self._ended.set()

    def _is_inside(self) -> bool:
        """True if the current task is one of the block's: the one that holds it, or below it."""
        task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        while task is not None and task is not self._task:
            task = None if task.parent_nursery is None else task.parent_nursery.parent_task
        return task is not None

    def _take_failure(self) -> BaseException | None:
        """Return what ended the block, which nobody else gets then."""
        failure, self.failure = self.failure, None
        self._home.note_end(self)
        return failure

    def log_unseen(self, error: BaseException) -> None:
        """Log a gap that leave() raised if the caller gets *error* in its place."""
        if self._raised is not error:
            _log_gap(self._raised)
            self._raised = None

    def _raise_failure(self) -> NoReturn:
        failure = self._take_failure()
        self._raised = failure if isinstance(failure, Gap) else None
        if isinstance(failure, Exception):
            raise failure
        # A cancellation that was not asked for here: that of the home.
        raise ClientClosed("the client was closed meanwhile; connect again") from None


def _log_gap(failure: BaseException | None) -> None:
    """Log what is never silent: messages are missing, and nobody gets the error that says so."""
    if isinstance(failure, Gap):
        _log.warning("%s; nobody saw it, as what led to it was cancelled", failure)


def is_cancelled(failure: BaseException | None) -> bool:
    """True if *failure* is a cancellation, and nothing else."""
    if failure is None:
        return False
    return BaseExceptionGroup("", [failure]).split(trio.Cancelled)[1] is None


def _pass_on_interrupt(failure: BaseException) -> None:
    """Let the main task have a Ctrl-C that hit a background task: trio delivers it there."""
    if BaseExceptionGroup("", [failure]).subgroup(KeyboardInterrupt) is None:
        return
    if threading.current_thread() is threading.main_thread():
        with suppress(KeyboardInterrupt):  # by another handler, as PySpark's; it would end trio
            signal.raise_signal(signal.SIGINT)


class Opened:
    """``async with Opened(nursery)``: what a client opened without a block, held in *nursery*.

    At the end of this block all of it is closed, the latest first. After an error it is cancelled.

    Attributes:
        is_closed: the client is closed, or is being closed.
        owner: returns the client, which is not garbage while something is open.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.is_closed = False
        self.owner: Callable[[], object] = _nobody
        self._nursery = nursery
        self._held: dict[Held[Any], object] = {}

    def start(self, held: Held[Any]) -> None:
        """Hold something open in a task of the nursery. Raises ClientClosed."""
        if self.is_closed:
            raise ClientClosed
        self._held[held] = self.owner()
        try:
            self._nursery.start_soon(held.run)
        except RuntimeError:  # the nursery has ended
            del self._held[held]
            raise ClientClosed from None

    def note_open(self, held: Held[Any], value: object) -> None:
        """Let go of nothing when *value* is dropped: tasks of the nursery use it."""

    def note_end(self, held: Held[Any]) -> None:
        """Forget what is closed, but keep what crashed: the next close() raises that."""
        has_crashed = isinstance(held.failure, Exception) and held.is_entered
        if held.is_over or not has_crashed:
            self._held.pop(held, None)

    async def close(self) -> None:
        """Open nothing more, close all, the latest first, and cancel what is still opening.

        Raises the first error of closing, or of what crashed before, once all is closed.
        Cancelled, it cancels the others.
        """
        self.is_closed = True
        failure: Exception | None = None
        for held in reversed(list(self._held)):
            try:
                await (held.leave() if held.is_entered else held.cancel())
            except Exception as found:  # noqa: BLE001  # raised below, after all others
                failure = failure or found
            except BaseException:
                await self.cancel()
                raise
        if failure is not None:
            raise failure

    async def cancel(self) -> None:
        """Open nothing more, and cancel all, the latest first."""
        self.is_closed = True
        for held in reversed(list(self._held)):  # one that this task is part of ends later
            await held.cancel()

    async def __aenter__(self) -> Opened:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self.close()
        finally:
            await self.cancel()


class SystemTasks:
    """The home of clients: system tasks of trio's run.

    Args:
        what: is held; named in the warning.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def start(self, held: Held[Any]) -> None:
        """Hold something open until the end of the run, at the latest. Raises RuntimeError."""
        check_trio()
        trio.lowlevel.spawn_system_task(held.run, context=contextvars.copy_context())

    def note_open(self, held: Held[Any], value: object) -> None:
        """Warn, and cancel *held*, if *value* becomes garbage while it is open."""
        token = trio.lowlevel.current_trio_token()
        weakref.finalize(value, _drop, token, held, self._what).atexit = False

    def note_end(self, held: Held[Any]) -> None:
        """Warn if the run ended first."""
        if held.is_entered and not held.is_over and is_cancelled(held.failure):
            warn_unclosed(self._what)


def check_trio() -> None:
    """Raise RuntimeError, with a sentence about what to use, if trio does not run."""
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "ledger_client runs on trio; use ledger_client.aio with asyncio, and "
            "ledger_client.blocking without an event loop"
        )


class _Unclosed:
    """Warns as garbage: if warnings are errors, the error has nobody else to go to."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __del__(self) -> None:
        warnings.warn(
            f"the {self._what} was not closed: call its close(), or open it for a block",
            ResourceWarning,
            stacklevel=2,
        )


def warn_unclosed(what: str) -> None:
    """Warn that something was dropped without close(). Raises nothing."""
    _Unclosed(what)


def _drop(token: trio.lowlevel.TrioToken, held: Held[Any], what: str) -> None:
    if held.is_over:
        return
    with suppress(trio.RunFinishedError):
        token.run_sync_soon(held.abandon)
        warn_unclosed(what)


def _nobody() -> None:
    """Return the owner of what no client opened."""


# --- what is not open yet ----------------------------------------------------------------


class Unopened:
    """Refuses to be used as if it were open, with a sentence about what is missing.

    Args:
        what: it will be, a noun.
        call: what users write to get one.
    """

    def __init__(self, *, what: str, call: str) -> None:
        self._what = what
        self._call = call
        self._is_used = False

    def _use(self) -> None:
        """Open it, once only. Raises NotOpen."""
        if self._is_used:
            raise NotOpen(f"this {self._what} was opened before; call {self._call} again")
        self._is_used = True

    def _refuse(self, *_: object) -> NoReturn:
        raise NotOpen.yet(self._what, self._call)

    if not TYPE_CHECKING:  # or every attribute would pass for one

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            self._refuse()

        __enter__ = __exit__ = __iter__ = __aiter__ = __anext__ = _refuse


class Opening(Unopened, Generic[T]):
    """Something that is not open yet. Enter it with ``async with``, or ``await`` it.

    ``async with`` closes it at the end of the block. What ``await`` returns is open until its
    close(), or until the client's.
    """

    def __init__(
        self, manager: AbstractAsyncContextManager[T], home: Home, *, what: str, call: str
    ) -> None:
        super().__init__(what=what, call=call)
        self._manager = manager
        self._home = home

    def hold(self) -> Held[T]:
        """Return what holds it in a task of its own once it is entered. Raises NotOpen."""
        self._use()
        return Held(self._manager, self._home)

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    async def _open(self) -> T:
        return await self.hold().enter()

    async def __aenter__(self) -> T:
        self._use()
        return await self._manager.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, trace)
