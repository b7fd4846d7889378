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
from typing import Generic, TypeVar

import trio

R = TypeVar("R")
T = TypeVar("T")


class ClientForked(RuntimeError):
    """The process was forked after the client connected, and the thread stayed in the parent."""

    def __init__(self) -> None:
        super().__init__(
            "this client was connected before the process was forked, and works only in the "
            "parent; call ledger_client.blocking.connect() in the forked process"
        )


class Portal(Generic[R]):
    """A running trio loop in a thread of its own, around one resource."""

    def __init__(self, open_resource: Callable[[], AbstractAsyncContextManager[R]]) -> None:
        """Start the thread and wait for the resource. Raises what opening raises."""
        self._open_resource = open_resource
        self._opened: Future[R] = Future()
        self._process_id = os.getpid()
        self._thread = threading.Thread(
            target=trio.run, args=(self._serve,), name="ledger_client", daemon=True
        )
        self._thread.start()
        self.value = self._opened.result()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork, so that the thread is in another one."""
        return os.getpid() != self._process_id

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run *work* in the loop and return what it returns, or raise what it raises.

        Raises:
            ClientForked: this process is a fork of the one that has the thread.
            RuntimeError: the portal is closed, or this is its own thread.
        """
        if self.is_forked:
            raise ClientForked
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call from the thread that serves it")
        scope = trio.CancelScope()
        result: Future[T] = Future()
        try:
            self._token.run_sync_soon(self._spawn, work, scope, result)
        except trio.RunFinishedError:
            raise RuntimeError("the client is closed") from None
        try:
            return result.result()
        except BaseException:
            if not result.done():  # the caller was interrupted, not the work
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(scope.cancel)
                _outlast(result)
            raise

    @contextmanager
    def hold(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter *manager* for the block, and leave it in the same task: it may have tasks itself.

        An error of the block, or an interruption, leaves it as a cancellation does.

        Raises what entering and leaving *manager* raise.
        """
        held = _Held(manager)
        value: T = self.call(partial(self._nursery.start, held.run))
        try:
            yield value
        except BaseException:
            if not self.is_forked:
                self.call(held.cancel)
            raise
        if not self.is_forked:
            self.call(held.leave)

    def close(self) -> None:
        """Cancel the calls under way, close the resource, end the thread.

        In a forked process this does nothing: all of that is the parent's.
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
                self._opened.set_result(value)
                await self._stop.wait()
                self._nursery.cancel_scope.cancel()
        except Exception as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    def _spawn(
        self, work: Callable[[], Awaitable[T]], scope: trio.CancelScope, result: Future[T]
    ) -> None:
        if self._stop.is_set():
            result.set_exception(RuntimeError("the client is closed"))
        else:
            self._nursery.start_soon(_complete, work, scope, result)


class _Held(Generic[T]):
    """A block of trio's that another thread is in."""

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._manager = manager
        self._scope = trio.CancelScope()
        self._left, self._ended = trio.Event(), trio.Event()
        self._failure: Exception | None = None

    async def run(self, *, task_status: trio.TaskStatus[T]) -> None:
        """Be in the block until it is to be left. Raises what entering it raises."""
        entered = False
        try:
            with self._scope:
                async with self._manager as value:
                    entered = True
                    task_status.started(value)
                    await self._left.wait()
        except Exception as failure:
            if not entered:
                raise
            self._failure = failure
        finally:
            self._ended.set()

    async def leave(self) -> None:
        """Leave the block. Raises what that raises."""
        self._left.set()
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure

    async def cancel(self) -> None:
        """Leave the block at once; there is another error to tell."""
        self._scope.cancel()
        await self._ended.wait()


async def _complete(
    work: Callable[[], Awaitable[T]], scope: trio.CancelScope, result: Future[T]
) -> None:
    """Bring what becomes of *work* to the waiting thread; let no error end the loop."""
    try:
        with scope:
            result.set_result(await work())
    except trio.Cancelled:
        result.set_exception(RuntimeError("the client was closed during the call"))
        raise
    except BaseException as error:  # noqa: BLE001  # it belongs to the thread that waits
        result.set_exception(error)
    if not result.done():
        result.set_exception(InterruptedError("the call was cancelled"))


def _outlast(result: Future[T]) -> None:
    """Wait until cancelled work has wound up, whatever becomes of it."""
    with suppress(KeyboardInterrupt):  # a second Ctrl-C: stop waiting
        result.exception()
