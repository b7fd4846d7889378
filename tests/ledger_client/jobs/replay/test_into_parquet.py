"""Replays into Parquet files: complete ones only, on bookies in memory."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import trio
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client import Client
from ledger_client.errors import ReplayConflict
from ledger_client.jobs.replay import parquet_target, replay
from ledger_client.jobs.replay.log import ReplayProgress
from ledger_client.jobs.replay.options import ReplayOptions
from ledger_client.jobs.replay.parquet_target import load_manifest
from ledger_client.jobs.replay.replay import replay_into_parquet
from ledger_client.topics.messages import Message
from metadata.topics import RollPolicy

SOURCE = "shop/orders"
COUNT = 300


class Cut(Exception):
    """The process is gone."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "CHUNK_SIZE", 300)
    monkeypatch.setattr(parquet_target, "GROUP_ROWS", 25)


async def fill(client: Client, order: str = "none") -> list[Message]:
    await client.topics.create(SOURCE, order=order, roll=RollPolicy(entries=9))  # type: ignore[arg-type]
    async with client.producer(SOURCE, batch_messages=7) as producer:
        await producer.send_many(
            [None if i % 9 == 4 else b"%d" % i for i in range(COUNT)],
            keys=[None if i % 5 == 0 else b"k%d" % (i % 7) for i in range(COUNT)],
            event_times=[i // 2 for i in range(COUNT)],
            headers=[{"h": b"%d" % i} if i % 3 else None for i in range(COUNT)],
        )
    async with client.reader(SOURCE) as reader:
        return [message async for message in reader]


def rows(folder: Path) -> list[dict[str, Any]]:
    """All rows, in the order of the replay: as the names of the files order."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.parquet")):
        found += pq.read_table(path).to_pylist()
    assert len(found) == ds.dataset(folder).count_rows()  # what is hidden is passed over
    return found


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def expected(message: Message) -> dict[str, Any]:
    return {
        "topic": SOURCE,
        "partition": -1,
        "lane": 0,
        "ledger": message.id.ledger_id,
        "entry": message.id.entry_id,
        "batch_index": message.id.batch_index,
        "message_id": str(message.id),
        "version": message.version,
        "event_time": message.event_time,
        "key": message.key,
        "value": message.value,
    }


async def test_files_have_every_message_once_in_order_with_its_place(
    autojump_clock: MockClock, tmp_path: Path, small: None
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        there = await fill(client)
        report = await replay_into_parquet(
            client._context, [SOURCE], tmp_path, ReplayOptions(verify=True), file_size=500
        )
        found = rows(tmp_path)
        for row, message in zip(found, there, strict=True):
            assert row | expected(message) == row
            headers = {pair["key"]: pair["value"] for pair in row["headers"] or []}
            assert headers == dict(message.headers)
        names = files_in(tmp_path)
        assert names[0] == "_manifest.json"
        assert len(names) == len(report.parts) + 1 > 3
        assert report.messages == COUNT
        groups = pq.ParquetFile(tmp_path / names[1]).metadata
        assert all(groups.row_group(i).num_rows <= 25 for i in range(groups.num_row_groups))


@pytest.mark.parametrize("seed", range(4))
async def test_cut_short_it_goes_on_behind_its_last_complete_file(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    small: None,
    seed: int,
) -> None:
    """Also between the renaming of a file and its place in the manifest."""
    chance = random.Random(seed)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        there = await fill(client, "event-time")
        whole = await replay_into_parquet(
            client._context, [SOURCE], tmp_path / "whole", ReplayOptions()
        )

        def cut(progress: ReplayProgress) -> None:
            if chance.random() < 0.15:
                raise Cut

        saved = parquet_target.save_manifest

        def save(folder: Path, wanted: parquet_target.Manifest) -> None:
            if chance.random() < 0.3:
                raise Cut
            saved(folder, wanted)

        monkeypatch.setattr(parquet_target, "save_manifest", save)
        for _ in range(300):
            options = ReplayOptions(on_progress=cut, verify=True)
            try:
                report = await replay_into_parquet(
                    client._context, [SOURCE], tmp_path / "cut", options, file_size=200
                )
                break
            except Cut:
                continue
        assert (report.checksum, report.verified) == (whole.checksum, True)
        assert report.resumed > 0
        assert [row["message_id"] for row in rows(tmp_path / "cut")] == [str(m.id) for m in there]
        again = await replay_into_parquet(
            client._context, [SOURCE], tmp_path / "cut", ReplayOptions()
        )
        assert again.finished_before


async def test_a_folder_of_something_else_is_left_as_it_is(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        there = await fill(client)
        pq.write_table(pa.table({"a": [1]}), tmp_path / "mine.parquet")
        with pytest.raises(ReplayConflict, match=r"holds mine\.parquet"):
            await client.replay(SOURCE, tmp_path)
        (tmp_path / "mine.parquet").unlink()
        await client.replay(SOURCE, tmp_path, name="first")
        with pytest.raises(ReplayConflict, match="holds replay first"):
            await client.replay(SOURCE, tmp_path, name="second")
        await client.replay(SOURCE, tmp_path, name="second", restart=True)
        assert len(rows(tmp_path)) == len(there)
        (tmp_path / "_manifest.json").write_text("{}")
        with pytest.raises(ReplayConflict, match="no manifest of a replay"):
            await client.replay(SOURCE, tmp_path, name="third")


async def test_two_replays_never_write_into_one_folder_at_once(
    autojump_clock: MockClock, tmp_path: Path, small: None
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        there = await fill(client)
        refused: list[str] = []

        async def second() -> None:
            with pytest.raises(ReplayConflict, match="another replay writes into") as failure:
                await client.replay(SOURCE, tmp_path, name="second", restart=True)
            refused.append(str(failure.value))

        async with trio.open_nursery() as nursery:
            begun = trio.Event()

            def on_progress(progress: ReplayProgress) -> None:
                if not begun.is_set():
                    begun.set()
                    nursery.start_soon(second)

            options = ReplayOptions(on_progress=on_progress, name="first", speed=1e-6)
            await replay_into_parquet(client._context, [SOURCE], tmp_path, options, file_size=500)
        assert len(refused) == 1
        assert len(rows(tmp_path)) == len(there)


async def test_a_replay_is_done_only_while_its_files_are_there(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        there = await fill(client)
        await client.replay(SOURCE, tmp_path / "a")
        (tmp_path / "a" / "part-00000.parquet").unlink()
        with pytest.raises(ReplayConflict, match=r"part-00000\.parquet is not as"):
            await client.replay(SOURCE, tmp_path / "a")
        (tmp_path / "a" / "_manifest.json").unlink()
        (tmp_path / "a").rmdir()
        with pytest.raises(ReplayConflict, match="lacks the files"):
            await client.replay(SOURCE, tmp_path / "a")
        assert not (tmp_path / "a").exists()
        await client.replay(SOURCE, tmp_path / "a", restart=True)
        assert len(rows(tmp_path / "a")) == len(there)


async def test_a_replay_that_is_done_is_verified_when_that_is_asked_for(
    autojump_clock: MockClock, tmp_path: Path, small: None
) -> None:
    """And no file is changed. Damage is told wherever it is in what was sent."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client)
        verified = ReplayOptions(verify=True)
        await replay_into_parquet(
            client._context, [SOURCE], tmp_path, ReplayOptions(), file_size=500
        )
        names = files_in(tmp_path)
        again = await replay_into_parquet(client._context, [SOURCE], tmp_path, verified)
        assert (again.verified, again.finished_before) == (True, True)
        assert files_in(tmp_path) == names
        first = tmp_path / "part-00000.parquet"
        kept = first.read_bytes()
        intact = 0
        for place in range(0, len(kept), 409):
            first.write_bytes(kept[:place] + bytes([kept[place] ^ 0x81]) + kept[place + 1 :])
            try:  # bytes of other columns, such as the entry's, may be anything
                again = await replay_into_parquet(client._context, [SOURCE], tmp_path, verified)
                intact += 1
            except ReplayConflict as failure:
                assert re.search(r"part-00000\.parquet[^\n]*$", str(failure))
        assert intact < len(kept) / 409 / 2


async def test_a_restart_removes_the_file_that_a_killed_run_had_not_named(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small: None
) -> None:
    saved, count = parquet_target.save_manifest, 0

    def save(folder: Path, wanted: parquet_target.Manifest) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise Cut
        saved(folder, wanted)

    async with memory_cluster(3) as cluster, cluster.client() as client:
        there = await fill(client)
        monkeypatch.setattr(parquet_target, "save_manifest", save)
        with pytest.raises(Cut):
            await replay_into_parquet(
                client._context, [SOURCE], tmp_path, ReplayOptions(), file_size=500
            )
        assert (tmp_path / "part-00002.parquet").exists()
        await client.replay(SOURCE, tmp_path, restart=True)
        assert len(rows(tmp_path)) == len(there)


@pytest.mark.parametrize(
    "name",
    [
        "../precious",
        "{precious}",
        "precious.parquet",
        "part-00001.parquet",
        "part-00000.parquet/../../precious",
        "part-00000.parquet\x00",
        "",
        ".",
    ],
)
async def test_a_restart_removes_nothing_that_no_replay_made(
    autojump_clock: MockClock, tmp_path: Path, name: str
) -> None:
    """A manifest is a file that anybody may have written: its names are not believed."""
    folder, precious = tmp_path / "files", tmp_path / "precious"
    precious.write_text("kept")
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client)
        await client.replay(SOURCE, folder, name="first")
        (folder / "precious.parquet").write_text("kept")
        found = load_manifest(folder, SOURCE)
        assert found is not None
        bad = msgspec.structs.replace(found.files[0], name=name.format(precious=precious))
        forged = msgspec.structs.replace(found, files=[bad])
        parquet_target.save_manifest(folder, forged)
        there = files_in(folder)
        with pytest.raises(ReplayConflict, match=r"a replay's file 0 is part-00000\.parquet"):
            await client.replay(SOURCE, folder, name="second", restart=True)
        assert (precious.read_text(), files_in(folder)) == ("kept", there)


@pytest.mark.parametrize("name", ["part-00000.parquet", "part-00001.parquet"])
async def test_a_restart_removes_nothing_where_a_link_or_folder_stands_for_a_file(
    autojump_clock: MockClock, tmp_path: Path, name: str
) -> None:
    folder, precious = tmp_path / "files", tmp_path / "precious"
    precious.write_text("kept")
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client)
        await client.replay(SOURCE, folder, name="first")
        for stand_in in ("link", "folder"):
            (folder / name).unlink(missing_ok=True)
            if stand_in == "link":
                (folder / name).symlink_to(precious)
            else:
                (folder / name).mkdir()
            there = files_in(folder)
            with pytest.raises(ReplayConflict, match="no regular file"):
                await client.replay(SOURCE, folder, name="second", restart=True)
            assert (precious.read_text(), files_in(folder)) == ("kept", there)


async def test_a_manifest_is_not_written_through_a_link(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    folder, precious = tmp_path / "files", tmp_path / "precious"
    precious.write_text("kept")
    folder.mkdir()
    (folder / parquet_target.TEMPORARY).symlink_to(precious)
    async with memory_cluster(3) as cluster, cluster.client() as client:
        there = await fill(client)
        await client.replay(SOURCE, folder)
        assert len(rows(folder)) == len(there)
    assert precious.read_text() == "kept"


async def test_files_that_are_gone_or_damaged_are_told(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small: None
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await fill(client)

        def cut(progress: ReplayProgress) -> None:
            if progress.messages > 200:
                raise Cut

        with pytest.raises(Cut):
            await replay_into_parquet(
                client._context, [SOURCE], tmp_path, ReplayOptions(on_progress=cut), file_size=300
            )
        first = tmp_path / "part-00000.parquet"
        kept = first.read_bytes()
        first.write_bytes(kept[:-1])
        with pytest.raises(ReplayConflict, match=r"part-00000\.parquet is not as"):
            await client.replay(SOURCE, tmp_path)
        first.write_bytes(kept)
        found = load_manifest(tmp_path, SOURCE)
        assert found is not None
        assert not found.complete
        one, other = (tmp_path / file.name for file in found.files[:2])
        one.write_bytes(other.read_bytes())
        files = list(found.files)
        files[0] = parquet_target.File("part-00000.parquet", *_fields(files[0], one.stat().st_size))
        parquet_target.save_manifest(tmp_path, _with(found, files))
        with pytest.raises(ReplayConflict, match=r"part-00000\.parquet"):
            await client.replay(SOURCE, tmp_path, verify=True)


def _fields(file: parquet_target.File, size: int) -> tuple[int, int, int, int]:
    return file.rows, size, file.total, file.chain


def _with(
    found: parquet_target.Manifest, files: list[parquet_target.File]
) -> parquet_target.Manifest:
    return parquet_target.Manifest(
        replay=found.replay,
        run=found.run,
        files=files,
        whole=found.whole,
        bytes=found.bytes,
        reached=found.reached,
    )
