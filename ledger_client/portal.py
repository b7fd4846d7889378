"""A thread that runs trio, for callers without it.

The thread holds one resource, opened at its start and closed at its end. Each
call from outside becomes a task there, and the caller sleeps until it is done.
An interrupted caller (Ctrl-C) cancels its task and waits for it to wind up, so
that nothing goes on behind its back.

The thread does not know its portal. So a portal that is dropped without close()
is noticed: it warns, and the resource is closed. What is open when the program
ends gets END_S to close, because the thread is a daemon and keeps no program
from ending.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, cast

import trio

from ledger_client.errors import ClientClosed
from ledger_client.opening import Held, Opened, is_cancelled, warn_unclosed

FORKED = (
    "this client was connected before the process was forked, and works only in the "
    "parent; call connect() again in the forked process"
)
END_S = 1.0
"""For closing what is open at the end of the program."""
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")
Settle: TypeAlias = Callable[[T | None, BaseException | None], None]
"""Takes the result of a call, or its error."""


class _Loop(Generic[T]):
    """The thread, and trio's loop in it.

    Attributes:
        opened: the resource, once it is open.
        blocks: the home of blocks that are entered and left from other threads.
    """

    blocks: Opened

    def __init__(self, open_resource: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self.opened: Future[T] = Future()
        self.process_id = os.getpid()
        self.thread = threading.Thread(
            target=trio.run, args=(self._serve,), name="ledger_client", daemon=True
        )
        self._open_resource = open_resource
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop, self._scope = trio.Event(), trio.CancelScope()
        self._is_stopped = False

    def start(self) -> None:
        """Start the thread."""
        _running.add(self)
        self.thread.start()

    def post(self, work: Callable[[], object]) -> None:
        """See Portal.post()."""
        if os.getpid() != self.process_id:
            raise ClientClosed(FORKED)
        assert self._token is not None, "it is open by now"
        try:
            self._token.run_sync_soon(work)
        except trio.RunFinishedError:
            raise ClientClosed from None

    def spawn(
        self, work: Callable[[], Awaitable[R]], scope: trio.CancelScope, settle: Settle[R]
    ) -> None:
        """Start *work*. To be called in the thread."""
        if self._stop.is_set():
            settle(None, ClientClosed())
        else:
            self.nursery.start_soon(_complete, work, scope, settle)

    def stop(self) -> None:
        """Cancel the calls under way and close the resource soon, from any thread."""
        self._is_stopped = True
        if self._token is not None:  # else the thread is starting, and will look
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._end)

    def drop(self) -> None:
        """Nobody has the portal any more, or the program ends: stop, and warn unless stopped."""
        _running.discard(self)
        if self._is_stopped or os.getpid() != self.process_id or not self.thread.is_alive():
            return
        self.stop()
        warn_unclosed("client")

    def _end(self) -> None:
        self._stop.set()
        if not self.opened.done():
            self._scope.cancel()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        try:
            with self._scope:
                if self._is_stopped:
                    self._scope.cancel()
                await self._hold()
        except Exception as error:
            if self.opened.done():
                raise
            self.opened.set_exception(error)
        finally:
            _running.discard(self)
            if not self.opened.done():
                self.opened.set_exception(ClientClosed())

    async def _hold(self) -> None:
        """Hold the resource open until stop()."""
        async with self._open_resource() as value, trio.open_nursery() as self.nursery:
            self.blocks = Opened(self.nursery)
            try:
                self.opened.set_result(value)
                del value
                await self._stop.wait()
            finally:
                self._stop.set()  # also after a crash: from here on, calls are refused
            self.nursery.cancel_scope.cancel()


_running: set[_Loop[Any]] = set()


@atexit.register
def _end_all() -> None:
    """Close what is open at the end of the program. Nothing waits longer than END_S."""
    until = time.monotonic() + END_S
    ending = list(_running)
    for loop in ending:
        loop.drop()
    for loop in ending:
        if loop.process_id == os.getpid():
            loop.thread.join(max(until - time.monotonic(), 0.0))


class Portal(Generic[R_co]):
    """A running trio loop in a thread of its own, around one resource."""

    def __init__(
        self,
        open_resource: Callable[[], AbstractAsyncContextManager[R_co]],
        *,
        waits: bool = True,
    ) -> None:
        """Start the thread. Wait for the resource, unless *waits* is false: `opened` has it then.

        Raises as opening it does.
        """
        self._loop: _Loop[R_co] = _Loop(open_resource)
        weakref.finalize(self, self._loop.drop).atexit = False
        try:
            self._loop.start()
            if waits:
                self.opened.result()
        except BaseException:  # interrupted, or it could not be opened
            self._loop.stop()
            raise

    @property
    def opened(self) -> Future[R_co]:
        """The resource, once it is open."""
        return self._loop.opened

    @property
    def value(self) -> R_co:
        """The resource."""
        return self._loop.opened.result()

    @property
    def thread(self) -> threading.Thread:
        """The thread that runs trio."""
        return self._loop.thread

    @property
    def nursery(self) -> trio.Nursery:
        """For tasks that live as long as the portal; to be used in its thread."""
        return self._loop.nursery

    @property
    def is_forked(self) -> bool:
        """True if this process is a fork: the thread stayed in the parent."""
        return os.getpid() != self._loop.process_id

    def post(self, work: Callable[[], object]) -> None:
        """Call *work*, which must not fail, in the loop's thread soon, and do not wait for it.

        Raises:
            ClientClosed: the portal is closed, or this process is a fork of the one that has
                the thread.
        """
        self._loop.post(work)

    def spawn(self, work: Callable[[], Awaitable[T]], settle: Settle[T]) -> Callable[[], None]:
        """Run *work* as a task of the loop, then call *settle* there. Return a cancel function.

        The task has the caller's context variables. *settle* is called once whatever happens, with
        a result or with an error. Raises as post().
        """
        scope, loop = trio.CancelScope(), self._loop
        loop.post(partial(copy_context().run, loop.spawn, work, scope, settle))

        def cancel() -> None:
            with suppress(ClientClosed):  # that cancels it too
                loop.post(scope.cancel)

        return cancel

    def call(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run *work* in the loop and return what it returns, or raise what it raises.

        Raises:
            ClientClosed: the portal is closed, or this process is a fork of the one that has
                the thread.
            RuntimeError: this is the loop's own thread.
        """
        self.check_thread()
        result: Future[T] = Future()
        cancel = self.spawn(partial(work, *args, **kwargs), settled(result))
        try:
            return result.result()
        except BaseException:
            if not result.done():  # the caller was interrupted, not the work
                cancel()
                _outlast(result)
            raise

    def call_sync(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function in the loop's thread, in the caller's context. Raises as call()."""
        self.check_thread()
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(work(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # raised in the waiting thread
                result.set_exception(error)

        self.post(partial(copy_context().run, run))
        return result.result()

    def check_thread(self) -> None:
        """Raise where waiting for the loop would never end: in its own thread, and in a fork.

        Raises:
            ClientClosed: this is a fork of the process that has the thread.
            RuntimeError: this is the loop's own thread.
        """
        if self.is_forked:
            raise ClientClosed(FORKED)
        if threading.current_thread() is self._loop.thread:
            raise RuntimeError("a blocking call from the thread that serves it")

    @contextmanager
    def hold(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter *manager* for the block, and leave it in the same task: it may have tasks itself.

        *manager* gets an error of the block unchanged, and an interruption as a cancellation.

        Raises as entering and leaving *manager* do.
        """
        block = PortalBlock(self, Held(manager, self._loop.blocks))
        value = block.enter()
        try:
            yield value
        except BaseException as error:
            block.leave(error)
            raise
        block.leave()

    def stop(self) -> None:
        """Begin to close, and do not wait for the end."""
        self._loop.stop()

    def close(self) -> None:
        """Cancel the calls under way, close the resource, end the thread.

        In a forked process this does nothing: thread and resource belong to the parent.
        """
        if self.is_forked:
            return
        self._loop.stop()
        self._loop.thread.join()


class PortalBlock(Generic[T]):
    """An async context manager that is entered and left from outside of the portal's thread."""

    def __init__(self, portal: Portal[object], held: Held[T]) -> None:
        self._portal = portal
        self._held = held

    def enter(self) -> T:
        """Enter the block. Interrupted, nothing stays open. Raises as entering does."""
        try:
            return self._portal.call(self._held.enter)
        except BaseException as error:
            self._stop_after(error)
            raise

    def close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call *close*, of what the block opened; not if that was left, or in a forked process.

        Interrupted, the block is left at once. Raises as *close* does.
        """
        if self._held.is_left or self._portal.is_forked:
            return
        try:
            self._portal.call(close)
        except BaseException as interrupt:
            self._stop_after(interrupt)
            raise

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the block, which gets *error* unchanged, and an interruption as a cancellation.

        It does nothing if the block was left, or this is a forked process. Raises another error
        than *error* if leaving raises one.
        """
        if self._held.is_left or self._portal.is_forked:
            return
        try:
            if error is None:
                self._portal.call(self._held.leave, is_block_over=True)
            elif isinstance(error, Exception):
                with suppress_same(error):
                    self._portal.call(self._held.leave, error)
            else:
                self._portal.call(self._held.cancel)
        except BaseException as interrupt:
            self._stop_after(interrupt)
            raise

    def _stop_after(self, error: BaseException) -> None:
        """Leave the block at once if the caller was interrupted while it entered or left it."""
        self._held.log_unseen(error)
        if isinstance(error, Exception) or not self._held.is_entered or self._portal.is_forked:
            return
        self._portal.call(self._held.cancel)


def close_when_dropped(owner: object, portal: Portal[object], held: Held[Any], what: str) -> None:
    """Cancel *held*, and warn, if *owner* becomes garbage while it is open."""
    weakref.finalize(owner, _drop, portal, held, what).atexit = False  # the client ends then


def _drop(portal: Portal[object], held: Held[Any], what: str) -> None:
    if held.is_over or portal.is_forked:
        return
    with suppress(ClientClosed):
        portal.post(held.abandon)
        warn_unclosed(what)


def settled(result: Future[T]) -> Settle[T]:
    """Return a function that settles *result*, from any thread."""

    def settle(value: T | None, error: BaseException | None) -> None:
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(cast("T", value))

    return settle


@contextmanager
def suppress_same(error: Exception) -> Iterator[None]:
    """Suppress *error* itself, whose traceback stays as it is; any other error replaces it."""
    trace = error.__traceback__
    try:
        yield
    except Exception as other:
        if other is not error:
            raise
    finally:
        error.__traceback__ = trace


async def _complete(
    work: Callable[[], Awaitable[T]], scope: trio.CancelScope, settle: Settle[T]
) -> None:
    """Report the outcome of *work* once; no error of it ends the loop."""
    try:
        with scope:
            value = await work()
    except BaseException as error:  # raised in the waiting thread
        if is_cancelled(error):  # perhaps in a group, by a nursery of the call
            settle(None, ClientClosed("the client was closed during the call; connect again"))
            raise
        settle(None, error)
        return
    if scope.cancelled_caught:
        settle(None, InterruptedError("the call was cancelled"))
    else:
        settle(value, None)


def _outlast(result: Future[T]) -> None:
    """Wait until cancelled work has ended, and ignore its result."""
    with suppress(KeyboardInterrupt):  # a second Ctrl-C: stop waiting
        result.exception()
