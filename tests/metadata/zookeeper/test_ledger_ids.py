"""Ids of ledgers, which clients of two kinds take from the same folders."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from metadata.zookeeper.ledger_ids import NUMBER_MAX, LedgerIds

LONG = "idgen-long/HOB-"


class Numbers:
    """Folders that number their nodes, as ZooKeeper does until 2^31 - 1."""

    def __init__(self, **folders: int) -> None:
        self.folders = dict(folders)
        self.taken = 0

    async def children(self, folder: str) -> Iterable[str] | None:
        inside = [path.split("/") for path in self.folders if path.split("/")[0] == folder]
        return [path[1] for path in inside if len(path) > 1] if inside else None

    async def numbered(self, folder: str) -> int:
        return self.folders.get(folder, 0)

    async def create(self, folder: str) -> None:
        self.folders.setdefault(folder, 0)

    async def take(self, folder: str, count: int) -> int:
        self.taken += count
        first = self.folders.get(folder, 0)
        self.folders[folder] = min(first + count, NUMBER_MAX + 1)
        return first


async def test_ids_are_the_numbers_that_bookkeeper_takes() -> None:
    nodes = Numbers()
    ids = LedgerIds(nodes)
    assert [await ids.next(count) for count in (1, 3, 1)] == [1, 2, 5]
    assert nodes.folders == {"idgen": 6}
    assert await ids.following() == 6


async def test_id_0_is_skipped_for_a_run_of_ids_too() -> None:
    assert await LedgerIds(Numbers()).next(10) == 10


async def test_long_ids_follow_when_the_short_ones_have_run_out() -> None:
    nodes = Numbers(idgen=NUMBER_MAX - 1)
    ids = LedgerIds(nodes)
    assert await ids.next(1) == NUMBER_MAX - 1
    assert await ids.next(2) == 1 << 32
    assert await ids.next(1) == (1 << 32) + 2
    assert await ids.following() == (1 << 32) + 3
    assert LONG + "0000000001" in nodes.folders


async def test_the_next_folder_of_long_ids_follows_a_full_one() -> None:
    nodes = Numbers(**{LONG + "0000000007": NUMBER_MAX, "idgen": 5})
    ids = LedgerIds(nodes)
    assert await ids.next(1) == (7 << 32) + NUMBER_MAX
    assert await ids.next(1) == 8 << 32


async def test_a_folder_that_another_client_went_on_to_is_used() -> None:
    nodes = Numbers(idgen=NUMBER_MAX)
    ids = LedgerIds(nodes)
    assert await ids.next(1) == NUMBER_MAX
    nodes.folders |= {LONG + "0000000001": NUMBER_MAX + 1, LONG + "0000000002": 4}
    assert await ids.next(1) == (2 << 32) + 4


async def test_an_empty_folder_of_long_ids_means_that_they_began() -> None:
    assert await LedgerIds(Numbers(**{"idgen-long": 0})).next(1) == 1 << 32


@pytest.mark.parametrize(
    "following", [1, 2, 7000, 30_000, NUMBER_MAX, 1 << 31, (1 << 32) - 1, 1 << 32, (5 << 32) + 9]
)
async def test_ids_continue_above_those_of_another_store(following: int) -> None:
    nodes = Numbers(idgen=3)
    ids = LedgerIds(nodes)
    await ids.raise_to(following)
    await ids.raise_to(following)
    assert nodes.taken < 20_000
    assert await ids.following() >= following
    assert await ids.next(1) >= following
    assert await LedgerIds(nodes).next(1) > following
