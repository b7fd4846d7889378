"""A ZooKeeper session through kazoo, for tasks of trio.

kazoo works in threads of its own. A result crosses to trio by a token, and nothing else of trio is
touched from there:

    task ──► kazoo's queue ──► its thread ──► socket
      ▲                            │
      └── event ◄── run_sync_soon ◄┘

A result that nobody waits for any more is dropped. kazoo connects again by itself when the
connection is lost, to whichever server answers. Changes that were under way fail at once, since
they may have been made; reads are asked again.

What refuses the first attempts for good, such as a wrong password, ends the connection. Later it
only warns: an ensemble that is started anew, perhaps with other users, must not need that of
its clients. Where kazoo itself gives up, another client of kazoo's takes its place.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic, Protocol, TypeVar, cast

import kazoo.exceptions
import trio
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from metadata.address import Address
from metadata.errors import AccessDenied, MetadataBroken, MetadataError, MetadataUnavailable
from metadata.zookeeper.attempts import Attempts, Failure, tls_context
from metadata.zookeeper.url import ZooKeeperUrl
from metadata.zookeeper.waiting import wait_for_sockets
from metadata.zookeeper.znodes import (
    Applied,
    Create,
    Folder,
    Node,
    Op,
    Reason,
    Refused,
    Remove,
    Set,
    Stat,
)

CLOSE_S = 2.0
REVIVE_S = 1.0
"""After so long another client of kazoo's takes the place of one that gave up."""
AGAIN_S = 0.05
"""A read whose connection was lost is asked again after so long, once there is another."""
TOGETHER_MAX = 500
"""Reads that are under way at a time for one call."""
SILENT_PART = 4
"""A server that answers nothing for this part of the session is left for another one."""
LOGINS_MAX = 3
"""A ZooKeeper that closes so many connections during the login has no logins."""
NUDGE_S = 0.25
"""A call without an answer for so long is followed by another one, and so on.

A ZooKeeper from 3.6.0 to 3.8.0 may rest with a request before it, until another one comes
(ZOOKEEPER-4537).
"""
_REASONS: dict[type[Exception], Reason] = {
    kazoo.exceptions.NoNodeError: Reason.NO_NODE,
    kazoo.exceptions.NodeExistsError: Reason.EXISTS,
    kazoo.exceptions.BadVersionError: Reason.BAD_VERSION,
    kazoo.exceptions.NotEmptyError: Reason.NOT_EMPTY,
}
_GONE = (
    kazoo.exceptions.ConnectionLoss,
    kazoo.exceptions.ConnectionClosedError,
    kazoo.exceptions.SessionExpiredError,
    kazoo.exceptions.SessionMovedError,
    kazoo.exceptions.OperationTimeoutError,
)
_LOGIN_WANTED = kazoo.exceptions.SessionClosedRequireSaslError
_DENIED = (
    kazoo.exceptions.AuthFailedError,
    kazoo.exceptions.NoAuthError,
    kazoo.exceptions.InvalidACLError,
    _LOGIN_WANTED,
)
_PASSED_OVER = (kazoo.exceptions.RolledBackError, kazoo.exceptions.RuntimeInconsistency)
_log = logging.getLogger(__name__)
T = TypeVar("T")
Result = TypeVar("Result", covariant=True)


class _AsyncResult(Protocol[Result]):
    """What kazoo's calls return."""

    def rawlink(self, callback: Callable[[_AsyncResult[Result]], None]) -> None: ...
    def get_nowait(self) -> Result: ...


class _Reply(Generic[T]):
    """A call that is under way."""

    __slots__ = ("arrived", "asked_at", "error", "is_led", "name", "value")

    def __init__(self, name: str, *, is_led: bool) -> None:
        self.name = name
        self.is_led = is_led
        """the leader answers it, and not the server alone"""
        self.asked_at = trio.current_time()
        self.arrived = trio.Event()
        self.value: T | None = None
        self.error: Exception | None = None

    def settle(self, value: T | None, error: Exception | None) -> None:
        if not self.arrived.is_set():
            self.value, self.error = value, error
            self.arrived.set()

    async def result(self) -> T | None:
        """Return what the call brought, or None for a node that does not exist."""
        await self.arrived.wait()
        error = self.error
        if error is None:
            return self.value
        if isinstance(error, kazoo.exceptions.NoNodeError):
            return None
        if isinstance(error, MetadataError):
            raise type(error)(error.message) from error
        if isinstance(error, _GONE):
            raise MetadataUnavailable(f"{self.name}: ZooKeeper's connection was lost") from error
        if isinstance(error, _DENIED):
            raise AccessDenied(f"{self.name}: ZooKeeper refuses access") from error
        if isinstance(error, kazoo.exceptions.NodeExistsError) or not isinstance(
            error, kazoo.exceptions.ZookeeperError
        ):
            raise error
        raise MetadataBroken(f"{self.name}: {type(error).__name__} {error}") from error


class KazooConnection:
    """The Connection of znodes.py to the ensemble at *url*."""

    def __init__(self, url: ZooKeeperUrl, *, session_timeout_s: float) -> None:
        """Begin to connect. Call aclose() in the end. Raises BadAddress for files of no use."""
        tls_context(url)
        self.name = str(url)
        self.session_timeout_s = session_timeout_s
        self.session_id = 0
        self.is_connected = False
        self.heard_at = -session_timeout_s
        self._wanted_s = session_timeout_s
        self._answered_at = -session_timeout_s
        self._nudged_at = -session_timeout_s
        self._token = trio.lowlevel.current_trio_token()
        self._under_way: set[_Reply[object]] = set()
        self._news = trio.Event()
        self._failure: MetadataError | None = None
        self._sync: _Reply[object] | None = None
        self._url = url
        self._root = url.path
        self._served = False
        self._reasons: dict[Address, str] = {}
        """why the last attempt at each ZooKeeper failed, since there was a connection"""
        self._logins: Counter[Address] = Counter()
        """how often each closed the connection during the login"""
        self._refusing: set[Address] = set()
        """ZooKeepers that refuse each attempt"""
        self._client = self._start()

    def _start(self) -> KazooClient:
        handler = SequentialThreadingHandler()
        attempts = Attempts(
            self._url,
            handler.create_connection,
            on_failure=lambda failure: self._post(lambda: self._note_failure(failure)),
            on_session=lambda life_s: self._post(lambda: self._note_life(life_s)),
        )
        handler.create_connection = attempts.connect
        handler.select = wait_for_sockets
        self._attempts = attempts
        retry = KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=1.0)
        retry.retry_exceptions = (Exception,)  # any other would end kazoo's thread
        client = KazooClient(
            **self._url.kazoo_options(),
            default_acl=CREATOR_ALL_ACL if self._url.only_creator else OPEN_ACL_UNSAFE,
            timeout=self._wanted_s,
            connection_retry=retry,
            handler=handler,
            logger=attempts,
        )
        client.add_listener(lambda state: self._take_state(client, state))
        client.start_async()
        return client

    # --- the connection --------------------------------------------------------------

    @property
    def reason(self) -> str:
        """Why it is not connected, as far as that is known."""
        return "; ".join(self._reasons.values())

    async def connected(self) -> None:
        """As Connection.connected."""
        while not self.is_connected:
            self._raise_failure()
            await self._news.wait()

    async def aclose(self) -> None:
        """End the session: its ephemeral nodes vanish. Later calls raise MetadataUnavailable."""
        self._fail(MetadataUnavailable(f"{self.name}: the store is closed"))
        with trio.move_on_after(CLOSE_S) as scope:
            scope.shield = True
            await trio.to_thread.run_sync(_stop, self._client, abandon_on_cancel=True)

    def _take_state(self, client: KazooClient, state: str) -> None:
        """Bring a state to trio. kazoo calls this in its thread."""
        found = client.client_id
        session_id = found[0] if found else 0
        gave_up = client.client_state in ("AUTH_FAILED", "CLOSED")
        self._post(lambda: self._set_state(client, state, session_id, gave_up=gave_up))

    def _set_state(
        self, client: KazooClient, state: str, session_id: int, *, gave_up: bool
    ) -> None:
        if client is not self._client or self._failure is not None:
            return
        self.is_connected = state == KazooState.CONNECTED
        if self.is_connected:
            self.session_id = session_id
        elif state == KazooState.LOST:
            self.session_id = 0
        if not self.is_connected:
            self._drop(MetadataUnavailable(f"{self.name}: ZooKeeper's connection was lost"))
        self._spread()
        if gave_up:
            again = threading.Timer(REVIVE_S, lambda: self._post(lambda: self._revive(client)))
            again.daemon = True
            again.start()

    def _revive(self, former: KazooClient) -> None:
        """Let another client take the place of *former*, with a session of its own."""
        if former is self._client and self._failure is None:
            self._client = self._start()
            threading.Thread(target=_stop, args=[former], daemon=True).start()

    def _note_failure(self, failure: Failure) -> None:
        """An attempt to connect failed, or a connection was lost."""
        if self._served and not self._reasons:  # one line for each time that it is away
            _log.warning("%s: %s", self.name, failure.reason)
        self._reasons[failure.where] = failure.reason
        if failure.is_final:
            self._refusing.add(failure.where)
        if failure.in_login and not (failure.is_login or self._served):
            self._note_closed_login(failure.where)
        if self._served:
            return
        if failure.is_login or self._refusing.issuperset(self._url.addresses):
            self._fail(AccessDenied(f"{self.name}: {self._reasons[failure.where]}"))

    def _note_closed_login(self, where: Address) -> None:
        """One that is being stopped closes it, too, but not so often."""
        assert self._url.login is not None
        self._logins[where] += 1
        if self._logins[where] >= LOGINS_MAX:
            user = self._url.login.user
            self._reasons[where] = (
                f"{where} closes the connection whenever user {user!r} logs in; "
                "has it logins (SASL DIGEST-MD5)?"
            )
            self._refusing.add(where)

    def _note_life(self, life_s: float) -> None:
        """The ensemble lets a session live *life_s*."""
        if life_s < self._wanted_s and life_s != self.session_timeout_s:
            _log.warning(
                "%s: its sessions live %g s, and %g s are wanted; raise maxSessionTimeout",
                *(self.name, life_s, self._wanted_s),
            )
        self.session_timeout_s = life_s

    def _fail(self, failure: MetadataError) -> None:
        self._failure = self._failure or failure
        self.is_connected = False
        self.session_id = 0
        self._drop(failure)
        self._spread()

    def _drop(self, error: Exception) -> None:
        self._sync = None
        for reply in self._under_way:
            reply.settle(None, error)
        self._under_way.clear()

    def _spread(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)

    # --- calls -----------------------------------------------------------------------

    async def get(self, paths: Sequence[str], *, fresh: bool = False) -> list[Node | None]:
        """As Connection.get."""
        found = await self._read(
            paths, lambda path: self._client.get_async(self._at(path)), fresh=fresh
        )
        return [None if each is None else (each[0], self._stat(each[1])) for each in found]

    async def stat(
        self, paths: Sequence[str], *, fresh: bool = False, watch: Callable[[], None] | None = None
    ) -> list[Stat | None]:
        """As Connection.stat."""
        watcher = self._watcher(watch)
        found = await self._read(
            paths,
            lambda path: self._client.exists_async(self._at(path), watch=watcher),
            fresh=fresh,
        )
        return [None if each is None else self._stat(each) for each in found]

    async def children(
        self, paths: Sequence[str], *, fresh: bool = False, watch: Callable[[], None] | None = None
    ) -> list[Folder | None]:
        """As Connection.children."""
        watcher = self._watcher(watch)
        found = await self._read(
            paths,
            lambda path: self._client.get_children_async(
                self._at(path), watch=watcher, include_data=True
            ),
            fresh=fresh,
        )
        return [None if each is None else (each[0], self._stat(each[1])) for each in found]

    async def multi(self, ops: Sequence[Op]) -> Applied | Refused:
        """As Connection.multi."""
        await self.connected()
        transaction = self._client.transaction()
        for op in ops:
            path = self._at(op.path)
            match op:
                case Create(_, data, ephemeral, sequence):
                    transaction.create(path, data, ephemeral=ephemeral, sequence=sequence)
                case Set(_, data, version):
                    transaction.set_data(path, data, version)
                case Remove(_, version):
                    transaction.delete(path, version)
                case _:
                    transaction.check(path, op.version)
        reply = self._begin(transaction.commit_async, is_led=True)
        try:
            results = await self._answer(reply)
        except MetadataUnavailable as lost:
            raise MetadataUnavailable(lost.message, outcome_unknown=True) from lost
        outcome = _outcome(results or ())
        if isinstance(outcome, Refused):
            if isinstance((results or ())[outcome.place], _DENIED):
                where = ops[outcome.place].path
                raise AccessDenied(f"{self.name}: ZooKeeper refuses a change of {where}")
            return outcome
        return [self._result(result) for result in outcome]

    async def make_root(self) -> None:
        """As Connection.make_root."""
        for at in range(1, len(self._root) + 1):
            if self._root[at : at + 1] in ("", "/"):
                await self.connected()
                reply = self._begin(partial(self._client.create_async, self._root[:at]))
                with suppress(kazoo.exceptions.NodeExistsError):
                    await self._answer(reply)

    async def above_with(self, name: str) -> list[str]:
        """As Connection.above_with."""
        above = [self._root[:at] for at, letter in enumerate(self._root) if letter == "/"]
        nodes = [f"{path}/{name}" for path in above]
        found = await self._read(nodes, self._client.exists_async, fresh=True)
        return [path or "/" for path, stat in zip(above, found, strict=True) if stat is not None]

    def _at(self, path: str) -> str:
        """Return where ZooKeeper has the node that the driver calls *path*."""
        return f"{self._root}{path}" if path != "/" or not self._root else self._root

    async def _read(
        self, paths: Sequence[str], call: Callable[[str], _AsyncResult[T]], *, fresh: bool
    ) -> list[T | None]:
        while True:
            await self.connected()
            try:
                return await self._read_once(paths, call, fresh=fresh)
            except MetadataUnavailable:
                self._raise_failure()
            await trio.sleep(AGAIN_S)  # kazoo may know of the loss before we do

    async def _read_once(
        self, paths: Sequence[str], call: Callable[[str], _AsyncResult[T]], *, fresh: bool
    ) -> list[T | None]:
        found: list[T | None] = []
        synced = self._begin_sync() if fresh else None
        for start in range(0, len(paths), TOGETHER_MAX):
            self._raise_failure()
            # The server takes requests in order, so what follows the sync is read after it.
            replies = [
                self._begin(partial(call, path)) for path in paths[start : start + TOGETHER_MAX]
            ]
            if synced is not None:
                await self._answer(synced)
                synced = None
            for reply in reversed(replies):  # the last one comes after all others
                await self._wait_for(reply)
            found += [await reply.result() for reply in replies]
        return found

    async def _answer(self, reply: _Reply[T]) -> T | None:
        await self._wait_for(reply)
        return await reply.result()

    async def _wait_for(self, reply: _Reply[T]) -> None:
        """Wait for *reply*, and hang up if the server answers nothing at all.

        kazoo sends a ping, whose answer it waits for, only while it sends nothing else.
        """
        silence_s = self.session_timeout_s / SILENT_PART
        while not reply.arrived.is_set():
            heard_at = max(reply.asked_at, self._answered_at)
            with trio.move_on_at(
                min(heard_at + silence_s, max(heard_at, self._nudged_at) + NUDGE_S)
            ):
                await reply.arrived.wait()
            if reply.arrived.is_set():
                return
            now, heard_at = trio.current_time(), max(reply.asked_at, self._answered_at)
            if now >= heard_at + silence_s:
                self._answered_at = now
                self._attempts.hang_up()
            elif now >= max(heard_at, self._nudged_at) + NUDGE_S:
                self._nudge(now)

    def _nudge(self, now: float) -> None:
        """Ask the server something, so that it looks at what it was asked before."""
        self._nudged_at = now
        if self.is_connected:
            self._client.exists_async(self._root or "/")

    def _begin_sync(self) -> _Reply[object]:
        """Ask the server to catch up; calls of one turn of the loop share it."""
        if self._sync is None:
            self._sync = self._begin(
                partial(self._client.sync_async, self._root or "/"), is_led=True
            )
            self._token.run_sync_soon(self._forget_sync)
        return self._sync

    def _forget_sync(self) -> None:
        self._sync = None

    def _begin(self, call: Callable[[], _AsyncResult[T]], *, is_led: bool = False) -> _Reply[T]:
        reply: _Reply[T] = _Reply(self.name, is_led=is_led)
        self._under_way.add(cast("_Reply[object]", reply))
        call().rawlink(lambda result: self._take_result(reply, result))
        return reply

    def _take_result(self, reply: _Reply[T], result: _AsyncResult[T]) -> None:
        """Bring a result to trio. kazoo calls this in its thread."""
        value: T | None = None
        error: Exception | None = None
        try:
            value = result.get_nowait()
        except Exception as raised:  # noqa: BLE001 - for the task that waits
            error = raised
        self._post(lambda: self._arrive(reply, value, error))

    def _arrive(self, reply: _Reply[T], value: T | None, error: Exception | None) -> None:
        self._answered_at = trio.current_time()
        if isinstance(error, _LOGIN_WANTED) and not self._served:
            self._fail(AccessDenied(f"{self.name}: ZooKeeper wants a login: zk://USER@HOST/path"))
        elif not isinstance(error, (*_GONE, *_DENIED)):
            if reply.is_led:  # its session lives from no earlier than when it was asked
                self.heard_at = max(self.heard_at, reply.asked_at)
            self._served = True
            self._reasons.clear()
            self._refusing.clear()
        self._under_way.discard(cast("_Reply[object]", reply))
        reply.settle(value, error)

    def _result(self, result: object) -> str | Stat | None:
        if isinstance(result, str):
            return result.removeprefix(self._root)
        return self._stat(result) if isinstance(result, ZnodeStat) else None

    def _stat(self, found: ZnodeStat) -> Stat:
        return Stat(
            created=found.czxid,
            modified=found.mzxid,
            modified_ms=found.mtime,
            created_ms=found.ctime,
            version=found.version,
            children_version=found.cversion,
            owner=found.ephemeralOwner,
            children=found.numChildren,
        )

    def _watcher(self, watch: Callable[[], None] | None) -> Callable[[object], None] | None:
        if watch is None:
            return None
        return lambda _event: self._post(watch)

    def _post(self, call: Callable[[], None]) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call)


def _outcome(results: Sequence[object]) -> Sequence[object] | Refused:
    """Return what became of a multi: kazoo raises nothing, but puts errors among the results."""
    for index, result in enumerate(results):
        if isinstance(result, Exception) and not isinstance(result, _PASSED_OVER):
            return Refused(index, _REASONS.get(type(result), Reason.OTHER))
    if any(isinstance(result, Exception) for result in results):
        return Refused(0, Reason.OTHER)
    return results


def _stop(client: KazooClient) -> None:
    """End the client and its session. Blocks for as long as its threads take."""
    with suppress(OSError, kazoo.exceptions.KazooException):
        client.stop()
        client.close()
