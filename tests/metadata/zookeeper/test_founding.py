"""Making a cluster at a path, beside others that do it at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from metadata.errors import MetadataBroken
from metadata.zookeeper import paths
from metadata.zookeeper.founding import FORMAT, find_cluster
from metadata.zookeeper.layout import Layout
from metadata.zookeeper.znodes import (
    Applied,
    Connection,
    Create,
    Folder,
    Node,
    Op,
    Reason,
    Refused,
    Stat,
)

STAT = Stat(*(0 for _ in Stat._fields))


class Nodes:
    """Nodes in memory; *meanwhile* come about between the first look and the second."""

    name = "zk://test/ledgers"

    def __init__(self, nodes: dict[str, bytes], meanwhile: dict[str, bytes]) -> None:
        self.nodes = nodes
        self.above: list[str] = []
        """the paths above that are clusters"""
        self._meanwhile = meanwhile

    async def get(self, wanted: Sequence[str], *, fresh: bool = False) -> list[Node | None]:
        assert fresh
        found = [(self.nodes[path], STAT) if path in self.nodes else None for path in wanted]
        self.nodes |= self._meanwhile
        return found

    async def children(self, folders: Sequence[str]) -> list[Folder | None]:
        assert folders == ["/"]
        return [(sorted({path.split("/")[1] for path in self.nodes} - {""}), STAT)]

    async def make_root(self) -> None:
        self.nodes.setdefault("/", b"")

    async def above_with(self, name: str) -> list[str]:
        return [above for above in self.above if name == "LAYOUT"]

    async def multi(self, ops: Sequence[Op]) -> Applied | Refused:
        created = {op.path: op.data for op in ops if isinstance(op, Create)}
        for index, path in enumerate(created):
            if path in self.nodes:
                return Refused(index, Reason.EXISTS)
        self.nodes |= created
        return list(created)


async def found(nodes: dict[str, bytes], **meanwhile: bytes) -> dict[str, bytes]:
    """Find or make the cluster, and return all nodes."""
    held = Nodes(dict(nodes), {f"/{name}": data for name, data in meanwhile.items()})
    await find_cluster(cast("Connection", held), create=True)
    return held.nodes


LAYOUT = Layout().nodes()["LAYOUT"]


async def test_an_empty_path_becomes_a_cluster_of_both_kinds() -> None:
    made = await found({})
    assert made["/LAYOUT"] == LAYOUT
    assert made[paths.ROOT] == FORMAT
    assert {"/available", "/available/readonly", "/cookies"} <= made.keys()


async def test_what_bookkeeper_made_is_completed() -> None:
    before = {"/": b"", "/LAYOUT": LAYOUT, "/available": b"", "/INSTANCEID": b"theirs"}
    made = await found(before)
    assert made.items() >= before.items()
    assert made[paths.ROOT] == FORMAT


async def test_a_cluster_that_another_process_makes_meanwhile_is_used() -> None:
    whole = {name.strip("/"): data for name, data in (await found({})).items() if name != "/"}
    assert await found({}, **whole) == {"/": b"", **{f"/{each}": whole[each] for each in whole}}


async def test_a_path_with_something_else_is_refused() -> None:
    with pytest.raises(MetadataBroken, match="holds something else"):
        await found({"/": b"", "/somebody": b"else"})


@pytest.mark.parametrize("create", [False, True])
async def test_a_path_within_another_cluster_is_refused(create: bool) -> None:
    """Its own programs, and BookKeeper's, would meet nodes there that they do not know."""
    held = Nodes({}, {})
    held.above = ["/quire"]
    with pytest.raises(MetadataBroken, match="is within the cluster at /quire"):
        await find_cluster(cast("Connection", held), create=create)
    assert held.nodes == {}


async def test_a_url_without_its_path_is_told_from_a_cluster_of_another_version() -> None:
    """At ZooKeeper's root, the path of a cluster may have the name that our node would have."""
    with pytest.raises(MetadataBroken, match="write its path behind the addresses"):
        await found({"/": b"", paths.ROOT: b""})
    with pytest.raises(MetadataBroken, match="of version 7, and this program knows 1"):
        await found({"/": b"", paths.ROOT: b"7"})


async def test_a_cluster_that_is_made_between_the_reads_of_its_nodes_is_used() -> None:
    """The layout was read just before, and the root of ours just after."""
    made = await found({"/": b"", paths.ROOT: FORMAT}, LAYOUT=LAYOUT)
    assert made["/LAYOUT"] == LAYOUT


async def test_what_to_do_below_a_cluster_at_the_root_is_told() -> None:
    held = Nodes({}, {})
    held.above = ["/"]
    with pytest.raises(MetadataBroken, match="leave the path out"):
        await find_cluster(cast("Connection", held), create=True)


async def test_a_layout_that_is_not_known_is_told_with_its_place() -> None:
    with pytest.raises(MetadataBroken, match=r"^zk://test/ledgers: LAYOUT is '2 flat'"):
        await found({"/": b"", "/LAYOUT": b"2 flat"})


async def test_a_cluster_without_a_layout_is_refused() -> None:
    with pytest.raises(MetadataBroken, match="LAYOUT is missing"):
        await found({"/": b"", paths.ROOT: FORMAT})
