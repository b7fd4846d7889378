"""Makes the nodes of a new cluster, or finds that the path holds one that we understand.

A path that does not exist or is empty becomes a cluster; one that BookKeeper's own tools have
made is completed by our nodes. Anything else is left alone.
"""

from __future__ import annotations

from metadata.errors import MetadataBroken, MetadataUnavailable
from metadata.zookeeper import paths
from metadata.zookeeper.layout import LAYOUT, Layout
from metadata.zookeeper.znodes import Connection, Create, Reason, Refused

FORMAT = b"1"
_OF_ZOOKEEPER = "zookeeper"


async def find_cluster(connection: Connection, *, create: bool) -> Layout:
    """Return the layout of the cluster; with *create*, make the nodes that it lacks.

    Raises:
        MetadataBroken: there is no cluster and none may be made, or one of another version.
        MetadataUnavailable: no connection.
    """
    has_looked_again = False
    while True:
        layout, ours, top = await connection.get(["/" + LAYOUT, paths.ROOT, "/"], fresh=True)
        try:
            found = Layout.parse(layout[0]) if layout else None
        except MetadataBroken as wrong:
            raise MetadataBroken(f"{connection.name}: {wrong.message}") from wrong
        if ours is not None:
            if not ours[0]:  # somebody else's node, such as the path of a cluster
                raise MetadataBroken(
                    f"{connection.name} holds no cluster, but something at {paths.ROOT}: if that "
                    "is the cluster, write its path behind the addresses"
                )
            if ours[0] != FORMAT:
                raise MetadataBroken(
                    f"{connection.name}: {paths.ROOT} is of version "
                    f"{ours[0][:20].decode(errors='replace')}, and this program knows "
                    f"{FORMAT.decode()}"
                )
            if found is not None:
                return found
            if has_looked_again:
                raise MetadataBroken(f"{connection.name}: {LAYOUT} is missing beside {paths.ROOT}")
            has_looked_again = True  # another process may have made both between these reads
            continue
        await _check_path(connection, create=create, is_begun=found is not None)
        if top is None:
            await connection.make_root()
        await _make(connection, has_layout=found is not None)


async def _check_path(connection: Connection, *, create: bool, is_begun: bool) -> None:
    """Raise MetadataBroken unless a cluster may be made at the path, or completed."""
    if not is_begun:
        await _refuse_nested(connection)
    if not create:
        raise MetadataBroken(
            f"{connection.name} holds no cluster: check the path; a new bookie makes one"
        )
    if not is_begun:
        await _refuse_foreign(connection)


async def _refuse_foreign(connection: Connection) -> None:
    (top,) = await connection.children(["/"])
    names = sorted(set(top[0] if top else ()) - {_OF_ZOOKEEPER})
    # With a layout, another process has made the cluster just now.
    if names and LAYOUT not in names:
        raise MetadataBroken(
            f"{connection.name} holds something else ({', '.join(names[:3])}), so nothing was "
            "changed; name an empty path, or the zkLedgersRootPath of a cluster"
        )


async def _refuse_nested(connection: Connection) -> None:
    """Refuse a path within another cluster, whose programs would meet nodes they do not know."""
    if above := await connection.above_with(LAYOUT):
        instead = "name that path, or an empty one beside it"
        if above[-1] == "/":
            instead = "leave the path out to use that one"
        raise MetadataBroken(
            f"{connection.name} is within the cluster at {above[-1]}, so nothing was changed; "
            f"{instead}"
        )


async def _make(connection: Connection, *, has_layout: bool) -> None:
    """Create all nodes at once, or none, because another process was faster."""
    nodes = {} if has_layout else {f"/{name}": data for name, data in Layout().nodes().items()}
    nodes |= {paths.ROOT: FORMAT, **dict.fromkeys(paths.FOLDERS, b"")}
    nodes |= {paths.LOG: b"", f"{paths.LOG}/0": b""}
    try:
        outcome = await connection.multi([Create(path, data) for path, data in nodes.items()])
    except MetadataUnavailable:
        return  # it is looked for again
    if isinstance(outcome, Refused) and outcome.reason is not Reason.EXISTS:
        reason = outcome.reason.value
        raise MetadataBroken(f"{connection.name} cannot be made a cluster: {reason}")
