from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import rig
from leases import grant

from bookie.config import BookieConfig
from bookie.cookie import check_cookie
from bookie.cookie_file import CookieRefused, read_cookie
from bookie.limbo import in_limbo
from bookie.succession import succeed
from metadata.errors import MetadataUnavailable
from metadata.records import BookieRecord, CookieRecord, bookie_lease, encode_record
from metadata.sqlite import SqliteStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    yield store
    await store.aclose()


@pytest.fixture
def config(tmp_path: Path) -> BookieConfig:
    return rig.settings(tmp_path, bookie_id="b1")


def lose(config: BookieConfig) -> None:
    for folder in (config.journal_folder, config.ledger_folder):
        shutil.rmtree(folder)


def write_thesis(config: BookieConfig) -> None:
    Path(config.journal_folder).mkdir()
    (Path(config.journal_folder) / "thesis.odt").write_text("three years")


async def lost(config: BookieConfig, store: SqliteStore) -> CookieRecord:
    """Make a bookie, and let its disks be gone; return what it was."""
    record = await check_cookie(config, store)
    lose(config)
    return record


async def test_it_goes_on_under_its_name_and_in_limbo(
    config: BookieConfig, store: SqliteStore
) -> None:
    before = await lost(config, store)
    with pytest.raises(CookieRefused, match="bookie replace"):
        await check_cookie(config, store)
    after = await succeed(config, store)
    assert after.bookie_id == before.bookie_id
    assert after.cookie_id != before.cookie_id
    assert in_limbo(Path(config.ledger_folder))
    assert await check_cookie(config, store) == after


async def test_the_folders_tell_the_name(tmp_path: Path, store: SqliteStore) -> None:
    nameless = rig.settings(tmp_path)
    before = await lost(nameless, store)
    assert (await succeed(nameless, store)).bookie_id == before.bookie_id


async def test_other_folders_need_a_name(
    tmp_path: Path, config: BookieConfig, store: SqliteStore
) -> None:
    await lost(config, store)
    with pytest.raises(CookieRefused) as refused:
        await succeed(rig.settings(tmp_path / "new"), store)
    assert refused.value.fault == "unknown"
    elsewhere = rig.settings(tmp_path / "new", bookie_id="b1")
    assert (await succeed(elsewhere, store)).ledger_folder == elsewhere.ledger_folder


async def test_the_old_disks_are_refused_afterwards(
    tmp_path: Path, config: BookieConfig, store: SqliteStore
) -> None:
    await check_cookie(config, store)
    await succeed(rig.settings(tmp_path / "new", bookie_id="b1"), store)
    with pytest.raises(CookieRefused) as refused:
        await check_cookie(config, store)
    assert refused.value.fault == "unknown"


async def test_folders_with_anything_in_them_are_left_alone(
    config: BookieConfig, store: SqliteStore
) -> None:
    await check_cookie(config, store)
    with pytest.raises(CookieRefused, match="holds bookie b1 already"):
        await succeed(config, store)
    lose(config)
    write_thesis(config)
    with pytest.raises(CookieRefused, match="holds files"):
        await succeed(config, store)
    assert not in_limbo(Path(config.ledger_folder))


async def test_a_bookie_that_serves_is_not_lost(config: BookieConfig, store: SqliteStore) -> None:
    await lost(config, store)
    serving = encode_record(BookieRecord("b1", "host:3181", 1, 1))
    lease = await grant(store, bookie_lease("b1"), "x", ttl_s=60, value=serving)
    with pytest.raises(CookieRefused, match="host:3181") as refused:
        await succeed(config, store)
    assert refused.value.fault == "serving"
    await store.release(lease)
    await succeed(config, store)


class Breaking:
    """A store whose changes fail, before or after they are made."""

    def __init__(self, store: SqliteStore, *, made: bool) -> None:
        self._store = store
        self._made = made

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        if self._made:
            await self._store.put(key, value, expected=expected)
        raise MetadataUnavailable("gone", outcome_unknown=True)


@pytest.mark.parametrize("made", [False, True])
async def test_a_try_that_was_cut_off_is_repeated(
    config: BookieConfig, store: SqliteStore, made: bool
) -> None:
    await lost(config, store)
    with pytest.raises(MetadataUnavailable):
        await succeed(config, Breaking(store, made=made))  # type: ignore[arg-type]  # by __getattr__
    assert in_limbo(Path(config.ledger_folder))
    if not made:
        with pytest.raises(CookieRefused) as refused:
            await check_cookie(config, store)
        assert refused.value.fault == "unknown"
    after = await succeed(config, store)
    assert read_cookie(Path(config.journal_folder)).complete
    assert await check_cookie(config, store) == after
