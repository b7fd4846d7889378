"""The harness sees what all stores of a SQLite file do, as it sees what is done in memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import virtual
from leases import grant
from metadata_file import MetadataFile
from network import Network
from simulation import simulate
from troubles import SQLITE

from metadata.errors import VersionConflict
from metadata.store import ABSENT, Delete, Put, Versioned

SEED = 7
"""has the trouble, and no other"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[MetadataFile]:
    network = Network(random.Random(1), delay_max_s=0.01, split_share=0.0)
    with closing(MetadataFile(tmp_path / "m.sqlite", ["b1"], network, Counter())) as file:
        yield file


def test_each_change_of_any_process_is_seen_once(file: MetadataFile) -> None:
    seen: list[tuple[str, bytes | None]] = []
    file.on_change = lambda key, found: seen.append((key, found and found.value))

    async def change() -> Versioned | None:
        async with file.at_bookie() as one, file.at_bookie() as other:
            await one.put("b", b"1")
            await other.transact([Put("a", b"2"), Put("b", b"3"), Put("b", b"4")])
            with pytest.raises(VersionConflict):
                await one.put("a", b"5", expected=ABSENT)
            await grant(one, "lease", "me", ttl_s=5.0)
            await other.transact([Delete("a")])
        return await file.observer.get("b")

    found = virtual.run(1, change)
    version = file.change("c", b"6")
    assert seen == [("b", b"1"), ("a", b"2"), ("b", b"4"), ("a", None), ("c", b"6")]
    assert file.values == {"b": found, "c": Versioned(b"6", version)}


def test_what_is_set_back_is_lost_and_its_ids_are_given_out_again(file: MetadataFile) -> None:
    async def set_back() -> int:
        assert await file.observer.next_id("ids", 3) == 1
        for number in (1, 2, 3):
            file.change(f"row/{number}", b"x")
        file.set_back(["row/2", "row/3"], "ids", 2)
        assert await file.observer.get("row/2") is None
        return await file.observer.next_id("ids")

    assert virtual.run(1, set_back) == 2
    assert list(file.values) == ["row/1"]


def test_clients_of_such_a_seed_ask_bookies() -> None:
    outcome = simulate(SEED)
    assert outcome.plan.troubles.kinds == [SQLITE]
    assert outcome.happened[SQLITE] > 0
    assert not outcome.violations
