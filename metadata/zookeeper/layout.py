r"""The layout of BookKeeper's nodes: which keys of ours lie where its clients look for them.

Paths are below the store's own, which is BookKeeper's zkLedgersRootPath:

    key or lease          node                          written by
    --------------------  ----------------------------  -------------------------------------------
    -                     LAYOUT                        whoever makes the cluster
    instance              INSTANCEID                    the first bookie; or initnewcluster
    ledgers/<20 digits>   00/0000/L0001                 any client; ids below 2^31 - 1
                          000/0000/0021/4748/L3647      ids from there on
    counter "ledgers"     idgen, idgen-long             any client: ledger_ids.py
    cookies/<bookie id>   cookies/<bookie id>           bookies
    bookies/<bookie id>   available/<bookie id>         the bookie's session, beside the lease
      if it is read-only  available/readonly/<id>

All other keys are ours alone and lie elsewhere. BookKeeper's clients skip what is not called like
one of these nodes, and ``underreplication``, ``disableHealthCheck`` and the like are never touched
here. Values change their form on the way: bookies.py, ledger_metadata.py. What cannot be decoded
reaches the caller as a value that no decoder of metadata/records.py accepts, and that says why;
nothing can be written over it but by its version.

Facts: LedgerLayout.java, StringUtils.java and *LedgerManager.java of BookKeeper 4.18.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple

from metadata.errors import BadRecord, MetadataBroken
from metadata.records import (
    BOOKIES,
    COOKIES,
    INSTANCE,
    LEDGERS,
    UNREADABLE,
    decode_bookie,
    decode_cookie,
    decode_ledger,
    encode_record,
    ledger_key,
    parse_ledger_key,
)
from metadata.store import INTEGER_MAX
from metadata.zookeeper import bookies, ledger_metadata

LAYOUT = "LAYOUT"
INSTANCE_NODE = "INSTANCEID"
AVAILABLE = "available"
READ_ONLY = "available/readonly"
COOKIE_FOLDER = "cookies"

_HIERARCHICAL = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
_LONG = "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory"
_FORMAT_VERSION = 2
_FACTORY_VERSION = 1

_SHORT_MAX = (1 << 31) - 2
"""The last id of 2-4-4 digits."""
_SHORT_WIDTHS, _LONG_WIDTHS = (2, 4, 4), (3, 4, 4, 4, 4)
_BOOKIE_ID = re.compile(r"[a-zA-Z0-9:-_.\-]+")

Children = Callable[[str], Awaitable[Iterable[str]]]
"""Returns the names under a folder, none if it does not exist."""


class _Step(NamedTuple):
    """A node under a folder, and the first and last key that lie in it or below it."""

    path: str
    first: str
    last: str
    is_value: bool


class Layout:
    """Where BookKeeper's nodes lie, in a cluster of one of its two hierarchical layouts.

    Args:
        long: every ledger lies at 3-4-4-4-4 digits (LongHierarchicalLedgerManagerFactory).
    """

    def __init__(self, *, long: bool = False) -> None:
        self._long = long

    @classmethod
    def parse(cls, data: bytes) -> Layout:
        """Return the layout that a LAYOUT node names.

        Raises:
            MetadataBroken: a layout that this version does not know.
        """
        names = {_layout(name): name == _LONG for name in (_HIERARCHICAL, _LONG)}
        found = data.strip()
        if found not in names:
            said = found[:120].decode(errors="replace").replace("\n", " ")
            raise MetadataBroken(
                f"{LAYOUT} is {said!a}; only the hierarchical layouts of BookKeeper, version "
                f"{_FACTORY_VERSION}, can be used, so nothing was changed"
            )
        return cls(long=names[found])

    def nodes(self) -> dict[str, bytes]:
        """Return the nodes of a new cluster and their data, parents first, without the root."""
        return {
            AVAILABLE: b"",
            READ_ONLY: b"",
            COOKIE_FOLDER: b"",
            LAYOUT: _layout(_LONG if self._long else _HIERARCHICAL),
        }

    # --- keys and nodes ----------------------------------------------------------------

    def path(self, key: str) -> str | None:
        """Return the node of *key*, or None if it is ours alone."""
        if key == INSTANCE:
            return INSTANCE_NODE
        if key.startswith(COOKIES):
            bookie_id = key.removeprefix(COOKIES)
            return f"{COOKIE_FOLDER}/{bookie_id}" if _is_bookie_id(bookie_id) else None
        if key.startswith(LEDGERS):
            try:
                ledger_id = parse_ledger_key(key)
            except BadRecord:
                return None
            return self._ledger_path(ledger_id) if ledger_id <= INTEGER_MAX else None
        return None

    def _ledger_path(self, ledger_id: int) -> str:
        short = ledger_id <= _SHORT_MAX and not self._long
        widths = _SHORT_WIDTHS if short else _LONG_WIDTHS
        digits = f"{ledger_id:0{sum(widths)}d}"
        parts, at = [], 0
        for width in widths:
            parts.append(digits[at : at + width])
            at += width
        return "/".join([*parts[:-1], "L" + parts[-1]])

    def encode(self, key: str, value: bytes) -> bytes:
        """Return *value* of *key* as its node holds it.

        Raises:
            BadRecord: not a record of that key, so it cannot be written.
        """
        if key.startswith(LEDGERS):
            record = decode_ledger(key, value)
            if ledger_key(record.ledger_id) != key:
                raise BadRecord(f"{key} cannot hold ledger {record.ledger_id}")
            return ledger_metadata.encode_metadata(record)
        if key.startswith(COOKIES):
            return bookies.encode_cookie(decode_cookie(key, value))
        return value

    def decode(self, key: str, data: bytes, *, created_ms: int) -> bytes:
        """Return the value of *key* that a node holds; never fails.

        Args:
            key: the key of the node.
            data: what the node holds.
            created_ms: when the node was created.
        """
        try:
            if key.startswith(LEDGERS):
                ledger_id = parse_ledger_key(key)
                return encode_record(
                    ledger_metadata.decode_metadata(ledger_id, data, node_created_ms=created_ms)
                )
            if key.startswith(COOKIES):
                return encode_record(bookies.decode_cookie(data))
        except BadRecord as wrong:
            return UNREADABLE + str(wrong).encode()
        return data

    # --- registrations -----------------------------------------------------------------

    def registration(self, lease: str, value: bytes) -> dict[str, bytes]:
        """Return the ephemeral node, if any, that belongs beside *lease* with *value*.

        A bookie that takes no new entries is registered as read-only, as BookKeeper knows it.
        A value that is no bookie's is not registered.

        Raises:
            BadRecord: the bookie's id or address cannot be registered there.
        """
        if not lease.startswith(BOOKIES):
            return {}
        try:
            record = decode_bookie(lease, value)
        except BadRecord:
            return {}
        if not _is_bookie_id(record.bookie_id):
            raise BadRecord(f"BookKeeper allows no bookie of the name {record.bookie_id!r}")
        refuses = record.read_only or record.draining or record.stalled or record.limbo
        folder = READ_ONLY if refuses else AVAILABLE
        return {f"{folder}/{record.bookie_id}": bookies.encode_service(record)}

    def registrations(self, lease: str) -> tuple[str, ...]:
        """Return every node that may exist beside *lease*, of this session or an earlier one."""
        bookie_id = lease.removeprefix(BOOKIES)
        if not lease.startswith(BOOKIES) or not _is_bookie_id(bookie_id):
            return ()
        return f"{AVAILABLE}/{bookie_id}", f"{READ_ONLY}/{bookie_id}"

    # --- listing -----------------------------------------------------------------------

    async def listing(
        self, prefix: str, after: str, children: Children
    ) -> AsyncGenerator[tuple[str, str]]:
        """Yield keys under *prefix* and above *after* that have nodes, in order, with the nodes.

        A folder is listed only if it may hold such a key. A node may be gone once it is read.
        """
        for folder in (COOKIE_FOLDER, None, ""):
            if folder is None:
                if _may_hold(_Step(INSTANCE_NODE, INSTANCE, INSTANCE, True), prefix, after):
                    yield INSTANCE, INSTANCE_NODE
                continue
            reach = _COOKIE_REACH if folder else _LEDGER_REACH
            if _may_hold(reach, prefix, after):
                async with aclosing(self._walk(folder, prefix, after, children)) as walk:
                    async for found in walk:
                        yield found

    async def _walk(
        self, folder: str, prefix: str, after: str, children: Children
    ) -> AsyncGenerator[tuple[str, str]]:
        names = _from_there(await children(folder), folder, self.path(after) or "")
        for name in sorted(names, key=_by_name if folder == COOKIE_FOLDER else _by_number):
            step = self._step(folder, name)
            if step is None or not _may_hold(step, prefix, after):
                continue
            if step.is_value:
                yield step.first, step.path
                continue
            async with aclosing(self._walk(step.path, prefix, after, children)) as walk:
                async for found in walk:
                    yield found

    def _step(self, folder: str, name: str) -> _Step | None:
        """Return what the node *name* under *folder* is, or None for a foreign one."""
        path = f"{folder}/{name}" if folder else name
        if folder == COOKIE_FOLDER:
            key = COOKIES + name
            return _Step(path, key, key, True) if self.path(key) == path else None
        parts = path.split("/")
        is_short = len(parts[0]) == _SHORT_WIDTHS[0]
        widths = _SHORT_WIDTHS if is_short else _LONG_WIDTHS
        is_value = len(parts) == len(widths)
        digits = "".join(parts[:-1]) + parts[-1].removeprefix("L" if is_value else "")
        missing = sum(widths) - len(digits)
        if not digits.isascii() or not digits.isdigit() or len(parts) > len(widths):
            return None
        first, last = int(digits + "0" * missing), int(digits + "9" * missing)
        last = min(last, _SHORT_MAX if is_short else INTEGER_MAX)
        if not is_short and not self._long:
            first = max(first, _SHORT_MAX + 1)
        step = _Step(path, ledger_key(first), ledger_key(last), is_value)
        if first > last or self._ledger_path(first).split("/")[: len(parts)] != parts:
            return None
        return step


_COOKIE_REACH = _Step(COOKIE_FOLDER, COOKIES, COOKIES + "\U0010ffff", False)
_LEDGER_REACH = _Step("", ledger_key(0), ledger_key(INTEGER_MAX), False)


def _may_hold(step: _Step, prefix: str, after: str) -> bool:
    """Return False if no key in *step* is under *prefix* and above *after*."""
    return step.last > after and step.first[: len(prefix)] <= prefix <= step.last[: len(prefix)]


def _by_name(name: str) -> tuple[int, str]:
    return 0, name


def _by_number(name: str) -> tuple[int, str]:
    """Numbers of one length are in order; the shorter ones are of smaller ids."""
    return len(name), name


def _from_there(names: Iterable[str], folder: str, after: str) -> Iterable[str]:
    """Return the *names* in *folder* that do not lie wholly before the node *after*.

    Nodes of one length are in the order of their keys, so that a page does not look again at all
    that came before it in its folder.
    """
    above = f"{folder}/" if folder else ""
    if not after.startswith(above):
        return names
    next_one = after[len(above) :].partition("/")[0]
    return [name for name in names if len(name) != len(next_one) or name >= next_one]


def _layout(factory: str) -> bytes:
    return f"{_FORMAT_VERSION}\n{factory}:{_FACTORY_VERSION}".encode()


def _is_bookie_id(text: str) -> bool:
    """Return True for a name that BookKeeper takes as a bookie's and ZooKeeper as a node's."""
    return (
        bool(_BOOKIE_ID.fullmatch(text)) and text.lower() != "readonly" and text not in (".", "..")
    )
