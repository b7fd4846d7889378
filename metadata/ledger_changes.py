"""The records that changed since they were last asked for: a cursor in the change log.

Reading every ledger in each round costs as much as there are ledgers, however little happened. So a
round reads all of them once, and afterwards those that changed. Ask first and read then: a change
made meanwhile is in the next answer.
"""

from __future__ import annotations

from metadata.errors import BadRecord
from metadata.records import LEDGERS, parse_ledger_key
from metadata.store import MetadataStore


class KeyChanges:
    """A place in the change log of one store. It costs nothing while it is not asked."""

    def __init__(self, store: MetadataStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._revision: int | None = None

    async def take(self) -> set[str] | None:
        """Return the keys and leases under the prefix that changed since the last call.

        `None` means that any may have: at the first call, after forget(), or if the log does not
        reach back far enough. After MetadataError, the next call returns what this one would have.
        """
        since, keys = self._revision, set[str]()
        while True:
            found = await self._store.changes(self._prefix, since=since)
            if since is None or found.everything:
                self._revision = found.revision
                return None
            since, fresh = found.revision, set(found.keys) - keys
            keys |= fresh
            if not fresh:  # a long answer comes in parts
                self._revision = since
                return keys

    async def wait(self, wait_s: float) -> None:
        """Return once something changed since the last take(), or after *wait_s*.

        While somebody waits, the store notices leases that ran out. Raises MetadataError.
        """
        if self._revision is not None:
            await self._store.changes(self._prefix, since=self._revision, wait_s=wait_s)

    def forget(self) -> None:
        """Have the next call return `None`, as the caller lost track."""
        self._revision = None


class LedgerChanges:
    """The ledgers whose records changed, as KeyChanges returns keys."""

    def __init__(self, store: MetadataStore) -> None:
        self._keys = KeyChanges(store, LEDGERS)

    async def take(self) -> set[int] | None:
        """Return the ledgers created, changed or deleted since the last call.

        `None` as KeyChanges.take(). Keys that name no ledger are left out.
        """
        keys = await self._keys.take()
        if keys is None:
            return None
        return {each for key in keys if (each := _ledger_id(key)) is not None}

    def forget(self) -> None:
        """Have the next call return `None`, as the caller lost track."""
        self._keys.forget()


def _ledger_id(key: str) -> int | None:
    try:
        return parse_ledger_key(key)
    except BadRecord:
        return None
