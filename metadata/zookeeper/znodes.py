"""What can be asked of ZooKeeper, and how it answers: the seam between the driver and kazoo.

The driver uses a Connection of these few calls. connection.py makes them through kazoo, tests
through an ensemble in memory whose connections break where a schedule says.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

ANY = -1
"""As the version of a check: the node need only exist."""


class Stat(NamedTuple):
    """What ZooKeeper keeps of a node beside its data. Zxids number all changes in their order."""

    created: int
    """zxid of the change that made the node"""
    modified: int
    """zxid of the last change of its data"""
    modified_ms: int
    """wall clock of the leader then"""
    created_ms: int
    """wall clock of the leader when it was made"""
    version: int
    """changes of its data since it was made"""
    children_version: int
    """nodes that were created in it, twice, less its children"""
    owner: int
    """ZooKeeper session of an ephemeral node, 0 for others"""
    children: int


class Create(NamedTuple):
    """Create *path*; fails if it exists. With *sequence*, ZooKeeper completes the name."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class Set(NamedTuple):
    """Set the data of *path*, which must exist and have *version*."""

    path: str
    data: bytes
    version: int = ANY


class Remove(NamedTuple):
    """Delete *path*, which must exist, have *version* and no children."""

    path: str
    version: int = ANY


class Verify(NamedTuple):
    """Fail unless *path* exists and has *version*."""

    path: str
    version: int = ANY


Op = Create | Set | Remove | Verify


class Reason(enum.Enum):
    """Why an op failed."""

    NO_NODE = "no such node"
    EXISTS = "the node exists"
    BAD_VERSION = "the node has another version"
    NOT_EMPTY = "the node has children"
    OTHER = "ZooKeeper refuses it"


class Refused(NamedTuple):
    """Nothing was changed, because the op at *place* failed."""

    place: int
    reason: Reason


Applied = list[str | Stat | None]
"""For each op its result: the path of Create, the Stat after Set, None for others."""
Node = tuple[bytes, Stat]
Folder = tuple[list[str], Stat]


def entries_made(folder: Stat) -> int:
    """Return how many nodes were ever made in *folder*: the number of the next sequential one.

    ZooKeeper shows twice the creations less the children as the version of children.
    """
    return (folder.children_version + folder.children) // 2


class Connection(Protocol):
    """A ZooKeeper session. All calls may raise MetadataUnavailable.

    Calls are made and answered in order. While there is no connection they wait for one, and reads
    that lose theirs are asked again, so each caller sets a deadline.
    """

    name: str
    """for messages"""

    @property
    def session_id(self) -> int:
        """Id of the ZooKeeper session; 0 before the first and while it is over."""

    @property
    def session_timeout_s(self) -> float:
        """Life of the ZooKeeper session without a sign of it."""

    @property
    def is_connected(self) -> bool:
        """True while there is a connection."""

    @property
    def heard_at(self) -> float:
        """When a call was made that the leader answered last, by trio's clock.

        These are changes and fresh reads. A server answers the others by itself, although it may
        have heard nothing of the leader, nor the leader of this session, for a while.
        """

    async def connected(self) -> None:
        """Wait for a connection. Raises MetadataUnavailable if there will never be one."""

    async def get(self, paths: Sequence[str], *, fresh: bool = False) -> list[Node | None]:
        """Return data and Stat of each node; None if it does not exist.

        *fresh*: as they are once the call began, whichever server answers.
        """

    async def stat(
        self, paths: Sequence[str], *, fresh: bool = False, watch: Callable[[], None] | None = None
    ) -> list[Stat | None]:
        """Return the Stat of each node; None if it does not exist.

        *watch* is called at the next change of one of them, or when the connection is lost.
        """

    async def children(
        self, paths: Sequence[str], *, fresh: bool = False, watch: Callable[[], None] | None = None
    ) -> list[Folder | None]:
        """Return the names in each folder, with its Stat; None if it does not exist."""

    async def make_root(self) -> None:
        """Create the node of the URL's own path, and those above it, as far as they are missing.

        All other paths are below it.
        """

    async def above_with(self, name: str) -> list[str]:
        """Return the paths above the URL's own that have a node *name*, the shortest first."""

    async def aclose(self) -> None:
        """End the session: its ephemeral nodes vanish. Later calls raise MetadataUnavailable."""

    async def multi(self, ops: Sequence[Op]) -> Applied | Refused:
        """Do all of *ops*, or none.

        Raises:
            MetadataUnavailable: with outcome_unknown, once it was sent.
        """
