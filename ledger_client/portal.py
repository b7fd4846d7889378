"""A thread that runs trio, for callers without it.

The thread holds one resource, opened at its start and closed at its end. Each
call from outside becomes a task there, and the caller sleeps until it is done.
An interrupted caller (Ctrl-C) cancels its task and waits for it to wind up, so
that nothing goes on behind its back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from typing import Generic, ParamSpec, TypeAlias, TypeVar, cast

import trio

FORKED = (
    "this client was connected before the process was forked, and works only in the "
    "parent; call connect() again in the forked process"
)
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
P = ParamSpec("P")
Settle: TypeAlias = Callable[[T | None, BaseException | None], None]
"""Takes the result of a call, or its error."""


class Portal(Generic[R_co]):
    """A running trio loop in a thread of its own, around one resource."""

    def __init__(self, open_resource: Callable[[], AbstractAsyncContextManager[R_co]]) -> None:
        """Start the thread and wait for the resource. Raises as opening it does."""
        self._open_resource = open_resource
        self._opened: Future[R_co] = Future()
        self._process_id = os.getpid()
        self._thread = threading.Thread(
            target=trio.run, args=(self._serve,), name="ledger_client", daemon=True
        )
        self._thread.start()
        self.value = self._opened.result()

    @property
    def nursery(self) -> trio.Nursery:
        """For tasks that live as long as the portal; to be used in its thread."""
        return self._nursery

    @property
    def is_forked(self) -> bool:
        """True if this process is a fork: the thread stayed in the parent."""
        return os.getpid() != self._process_id

    def post(self, work: Callable[[], object]) -> None:
        """Call *work*, which must not fail, in the loop's thread soon, and do not wait for it.

        Raises:
            RuntimeError: the portal is closed, or this process is a fork of the one that has
                the thread.
        """
        if self.is_forked:
            raise RuntimeError(FORKED)
        try:
            self._token.run_sync_soon(work)
        except trio.RunFinishedError:
            raise RuntimeError("the client is closed") from None

    def spawn(self, work: Callable[[], Awaitable[T]], settle: Settle[T]) -> Callable[[], None]:
        """Run *work* as a task of the loop, then call *settle* there. Return a cancel function.

        *settle* is called once whatever happens, with a result or with an error. Raises as post().
        """
        scope = trio.CancelScope()
        self.post(partial(self._spawn, work, scope, settle))

        def cancel() -> None:
            with suppress(RuntimeError):  # closed: that cancels it too
                self.post(scope.cancel)

        return cancel

    def call(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run *work* in the loop and return what it returns, or raise what it raises.

        Raises:
            RuntimeError: the portal is closed, this is its own thread, or this process is a
                fork of the one that has the thread.
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
        """Call a plain function in the loop's thread. Raises as call()."""
        self.check_thread()
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(work(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # raised in the waiting thread
                result.set_exception(error)

        self.post(run)
        return result.result()

    def check_thread(self) -> None:
        """Raise where waiting for the loop would never end: in its own thread, and in a fork.

        Raises:
            RuntimeError: this is the loop's own thread, or a fork of the process that has it.
        """
        if self.is_forked:
            raise RuntimeError(FORKED)
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call from the thread that serves it")

    @contextmanager
    def hold(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter *manager* for the block, and leave it in the same task: it may have tasks itself.

        *manager* gets an error of the block unchanged, and an interruption as a cancellation.

        Raises as entering and leaving *manager* do.
        """
        held = Held(manager)
        try:
            value = self.call(self.start, held)
            try:
                yield value
            except Exception as error:
                if not self.is_forked:
                    trace = error.__traceback__
                    with suppress_same(error):
                        self.call(held.leave, error)
                    error.__traceback__ = trace
                raise
            if not self.is_forked:
                self.call(held.leave)
        except BaseException as error:
            # Also if the caller was interrupted while the block was entered or left.
            if not isinstance(error, Exception) and held.is_entered and not self.is_forked:
                self.call(held.cancel)
            raise

    async def start(self, held: Held[T]) -> T:
        """Enter *held* in a task of its own and return its value. Raises as entering does."""
        value: T = await self._nursery.start(held.run)
        return value

    def close(self) -> None:
        """Cancel the calls under way, close the resource, end the thread.

        In a forked process this does nothing: thread and resource belong to the parent.
        """
        if self.is_forked:
            return
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        try:
            async with self._open_resource() as value, trio.open_nursery() as self._nursery:
                try:
                    self._opened.set_result(value)
                    await self._stop.wait()
                finally:
                    self._stop.set()  # also after a crash: from here on, calls are refused
                self._nursery.cancel_scope.cancel()
        except Exception as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    def _spawn(
        self, work: Callable[[], Awaitable[T]], scope: trio.CancelScope, settle: Settle[T]
    ) -> None:
        if self._stop.is_set():
            settle(None, RuntimeError("the client is closed"))
        else:
            self._nursery.start_soon(_complete, work, scope, settle)


class Held(Generic[T]):
    """An async context manager held open in trio for another thread or an asyncio task.

    Attributes:
        is_entered: the block was entered, so leave() or cancel() must follow.
    """

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self.is_entered = False
        self._manager = manager
        self._scope = trio.CancelScope()
        self._left, self._ended = trio.Event(), trio.Event()
        self._error: Exception | None = None
        self._failure: Exception | None = None

    async def run(self, *, task_status: trio.TaskStatus[T]) -> None:
        """Enter the block and stay until leave() or cancel(). Raises as entering it does."""
        try:
            with self._scope:
                async with self._manager as value:
                    task_status.started(value)
                    self.is_entered = True
                    await self._left.wait()
                    if self._error is not None:
                        raise self._error  # noqa: TRY301  # into the block, where it happened
        except Exception as failure:
            if not self.is_entered:
                raise
            self._failure = failure
        finally:
            self._ended.set()

    async def leave(self, error: Exception | None = None) -> None:
        """Leave the block, with *error* if the caller's block failed. Raises as leaving it does."""
        self._error = error
        self._left.set()
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure

    async def cancel(self) -> None:
        """Leave the block at once. Its errors give way to the one that interrupted the caller."""
        self._scope.cancel()
        await self._ended.wait()


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
    """Suppress *error* itself; any other error replaces it."""
    try:
        yield
    except Exception as other:
        if other is not error:
            raise


async def _complete(
    work: Callable[[], Awaitable[T]], scope: trio.CancelScope, settle: Settle[T]
) -> None:
    """Report the outcome of *work* once; no error of it ends the loop."""
    try:
        with scope:
            value = await work()
    except trio.Cancelled:
        settle(None, RuntimeError("the client was closed during the call"))
        raise
    except BaseException as error:  # noqa: BLE001  # raised in the waiting thread
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
