"""The data that must survive a power cut, and bookies that start on what is left."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import trio
from disk_worker import config_of, payload
from never_twice import check_end, never_twice
from power_cut import Disk, Kind, Record, environment, read

from bookie.limbo import in_limbo
from bookie.storage import Storage
from ledger_client.wire.stores import open_store
from metadata.records import ledger_key
from native.engine import Request

WORKER = Path(__file__).with_name("disk_worker.py")
LIFE_S = 120
Image = Callable[[Path], None]
_NAMING = {Kind.CREATE, Kind.RENAME, Kind.UNLINK, Kind.MKDIR, Kind.LINK}
_HEADER_SIZE = 32  # of a stored entry, digest.h


class Promised:
    """The promises in a record's notes."""

    def __init__(self) -> None:
        self.kept: set[tuple[int, int]] = set()
        self.fenced: set[int] = set()
        self.values: dict[str, str] = {}
        self.issued = 0
        self._forgotten: set[int] = set()

    def hear(self, record: Record) -> None:
        """Go on by one record."""
        said = json.loads(record.data) if record.kind is Kind.NOTE else {}
        if "kept" in said:
            self.kept.add((said["kept"][0], said["kept"][1]))
        elif "fenced" in said:
            self.fenced.add(said["fenced"])
        elif "put" in said:
            self.values[said["put"][0]] = said["put"][1]
        elif "issued" in said:
            assert said["issued"] > self.issued, "an id was issued twice"
            self.issued = said["issued"]
        elif "forget" in said:
            self._forget(said["forget"])

    def _forget(self, ledger_id: int) -> None:
        self.kept = {place for place in self.kept if place[0] != ledger_id}
        self.fenced.discard(ledger_id)
        self._forgotten.add(ledger_id)
        self.values = {
            key: value for key, value in self.values.items() if key != ledger_key(ledger_id)
        }

    async def check(self, folder: Path) -> None:
        """Assert that a bookie that starts in *folder* has all of it, and no damage."""
        with never_twice():
            await self._check(folder)

    async def _check(self, folder: Path) -> None:
        config = config_of(folder)
        storage = await Storage.open(config, threaded=False)
        try:
            assert storage.recovery.damages == 0
            assert storage.engine.store.stats().damaged == 0
            assert not in_limbo(folder / "ledgers")
            for place in sorted(self.kept):
                self._read(storage, *place)
            for ledger_id in self.fenced:
                state = storage.engine.ledger(ledger_id)
                assert state is not None, ledger_id
                assert state.fenced, ledger_id
            assert storage.engine.store.stats().damaged == 0
        finally:
            await storage.stop()
        await self._check_metadata(config.metadata)

    def _read(self, storage: Storage, ledger_id: int, entry_id: int) -> None:
        frame = storage.engine.answer(
            Request(2, ledger_id=ledger_id, entry_id=entry_id), use_disk=True, size_max=1 << 20
        )
        assert frame is not None
        code = int.from_bytes(frame[8:12], "big")
        assert code == 0, (ledger_id, entry_id, code)
        assert frame[28 + _HEADER_SIZE :] == payload(ledger_id, entry_id), (ledger_id, entry_id)

    async def _check_metadata(self, url: str) -> None:
        async with open_store(url) as store:
            for key, value in self.values.items():
                found = await store.get(key)
                assert found is not None, key
                assert found.value.decode() == value
            assert await store.next_id("ledgers") > self.issued


def live(root: Path, trace: Path, seed: int, *, kill: int = 0) -> None:
    """Run the worker below *root*, to its end or until it kills itself after *kill* records."""
    variables = environment(root, trace)
    if kill:
        variables["QUIRE_DISK_KILL"] = str(kill)
    done = subprocess.run(
        [sys.executable, str(WORKER), str(root), str(trace), str(seed)],
        env=variables,
        timeout=LIFE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    check_end(done.returncode, done.stderr)
    assert done.returncode == 0 or (kill and done.returncode == -9), done.stderr[-4000:]


def images(disk: Disk, at: int, seed: int, records: list[Record]) -> Iterator[Image]:
    """Yield disks that a cut after record *at* may leave: extremes of renames, and random ones."""
    near = {each.kind for each in records[at - 1 : at + 1]}
    if near & _NAMING:
        yield partial(disk.image, chance=None)
        yield partial(disk.image, chance=None, names_of=disk.folders)
        yield partial(disk.image, chance=None, names_of=disk.folders, last_only=True)
        for folder in disk.folders:
            yield partial(disk.image, chance=None, names_of=(".", folder))
    yield partial(disk.image, chance=random.Random(f"{seed} {at}"))


def check_cuts(
    trace: Path, *, seed: int, share: float, first: int = 0, start: Path | None = None
) -> int:
    """Cut the power behind records of *trace*, and check what is left.

    Args:
        trace: the record of one life or several.
        seed: chooses the places and what is lost.
        share: of the places behind which something else might be lost; four times as many
            of those where a name changes.
        first: cut only behind this many records.
        start: what the disk held before the first record.

    Returns:
        How many images of the disk were checked.
    """
    records = read(trace)
    chance = random.Random(seed)
    disk, promised, checked = Disk(start), Promised(), 0
    for at, record in enumerate(records, 1):
        disk.apply(record)
        promised.hear(record)
        naming = record.kind in _NAMING
        quiet = record.kind in (Kind.READ, Kind.DROP)
        if quiet or chance.random() >= share * (4 if naming else 1) or at < first:
            continue
        for image in images(disk, at, seed, records):
            check_image(
                image, promised, f"power cut behind record {at}, {record.kind}; seed {seed}"
            )
            checked += 1
    return checked


def check_image(image: Image, promised: Promised, where: str) -> None:
    """Start a bookie on an image of the disk. Raises what is wrong, saying *where*."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        image(Path(folder, "image"))
        try:
            trio.run(promised.check, Path(folder, "image"))
        except Exception as wrong:
            wrong.add_note(where)
            raise
