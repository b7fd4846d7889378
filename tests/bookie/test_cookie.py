from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from bookie import cookie_file
from bookie.config import BookieConfig, load_config
from bookie.cookie import adopt_folders, check_cookie
from bookie.cookie_file import (
    Cookie,
    CookieRefused,
    read_cookie,
)
from metadata.errors import MetadataBroken
from metadata.moving import MARK
from metadata.records import (
    COOKIES,
    INSTANCE,
    CookieRecord,
    cookie_key,
    decode_cookie,
    encode_record,
)
from metadata.sqlite import SqliteStore
from metadata.store import MetadataStore, Page


class CutOff(Exception):
    """Stands for a crash."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    opened = await SqliteStore.open(tmp_path / "metadata.db")
    yield opened
    await opened.aclose()


@pytest.fixture
def config(tmp_path: Path) -> BookieConfig:
    return config_of(tmp_path / "data", "bookie-1")


def config_of(folder: Path, bookie_id: str = "") -> BookieConfig:
    return load_config(None, {"data_folder": str(folder), "bookie_id": bookie_id})


def folders_of(config: BookieConfig) -> tuple[Path, Path]:
    return Path(config.journal_folder), Path(config.ledger_folder)


def rewrite(folder: Path, **changes: object) -> None:
    changed = msgspec.structs.replace(read_cookie(folder), **changes)
    (folder / "cookie.json").write_bytes(msgspec.json.encode(changed))


async def test_a_new_bookie_gets_one_cookie_in_three_places(
    config: BookieConfig, store: MetadataStore
) -> None:
    record = await check_cookie(config, store)
    journal, ledgers = (read_cookie(folder) for folder in folders_of(config))
    assert (journal.role, ledgers.role) == ("journal", "ledgers")
    assert journal.complete
    assert ledgers.complete
    assert journal.record == ledgers.record == record
    found = await store.get(cookie_key("bookie-1"))
    assert found is not None
    assert decode_cookie(cookie_key("bookie-1"), found.value) == record


async def test_a_bookie_starts_again_as_itself(config: BookieConfig, store: MetadataStore) -> None:
    assert await check_cookie(config, store) == await check_cookie(config, store)


async def test_a_bookie_without_a_name_is_given_one_and_keeps_it(
    tmp_path: Path, store: MetadataStore
) -> None:
    config = config_of(tmp_path / "data")
    record = await check_cookie(config, store)
    assert record.bookie_id.startswith("bookie-")
    assert (await check_cookie(config, store)).bookie_id == record.bookie_id


async def test_bookies_of_a_cluster_share_its_id(tmp_path: Path, store: MetadataStore) -> None:
    one = await check_cookie(config_of(tmp_path / "1", "one"), store)
    two = await check_cookie(config_of(tmp_path / "2", "two"), store)
    assert one.instance_id == two.instance_id
    assert one.cookie_id != two.cookie_id


async def test_empty_folders_may_be_there_already(
    config: BookieConfig, store: MetadataStore
) -> None:
    for folder in folders_of(config):
        folder.mkdir(parents=True)
        (folder / "lock").touch()
        (folder / "lost+found").mkdir()
    await check_cookie(config, store)


# --- a crash while a bookie is made -------------------------------------------------------


class Steps:
    """Cuts the making of a bookie off before or after its nth lasting step."""

    def __init__(self, store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.cut_at = -1.0
        write_file = cookie_file._write_file
        put = store.put

        def write(folder: Path, cookie: Cookie) -> None:
            self._step(lambda: write_file(folder, cookie))

        async def put_step(key: str, value: bytes, *, expected: int | None = None) -> int:
            before, self.count = self.count, self.count + 1
            if self.cut_at == before:
                raise CutOff
            version = await put(key, value, expected=expected)
            if self.cut_at == before + 0.5:
                raise CutOff
            return version

        monkeypatch.setattr(cookie_file, "_write_file", write)
        monkeypatch.setattr(store, "put", put_step)

    def _step(self, work: Callable[[], None]) -> None:
        before, self.count = self.count, self.count + 1
        if self.cut_at == before:
            raise CutOff
        work()
        if self.cut_at == before + 0.5:
            raise CutOff


@pytest.mark.parametrize("cut_at", [half / 2 for half in range(12)])
async def test_making_a_bookie_goes_on_after_a_crash_at_any_step(
    config: BookieConfig, store: MetadataStore, monkeypatch: pytest.MonkeyPatch, cut_at: float
) -> None:
    steps = Steps(store, monkeypatch)
    steps.cut_at = cut_at
    with pytest.raises(CutOff):
        await check_cookie(config, store)
    steps.cut_at = -1
    record = await check_cookie(config, store)
    assert await check_cookie(config, store) == record
    assert all(read_cookie(folder).complete for folder in folders_of(config))


async def test_making_a_bookie_takes_six_steps(
    config: BookieConfig, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(store, monkeypatch)
    await check_cookie(config, store)
    assert steps.count == 6


async def test_a_file_half_written_is_not_seen(config: BookieConfig, store: MetadataStore) -> None:
    journal, _ = folders_of(config)
    journal.mkdir(parents=True)
    (journal / "cookie.json.new").write_bytes(b'{"bookie')
    await check_cookie(config, store)


async def test_a_bookie_half_made_for_one_cluster_may_join_another(
    tmp_path: Path, config: BookieConfig, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(store, monkeypatch)
    steps.cut_at = 3
    with pytest.raises(CutOff):
        await check_cookie(config, store)
    steps.cut_at = -1
    other = await SqliteStore.open(tmp_path / "other.db")
    record = await check_cookie(config, other)
    instance = await other.get(INSTANCE)
    await other.aclose()
    assert instance is not None
    assert record.instance_id == instance.value.decode()


# --- what is refused -----------------------------------------------------------------------


async def test_no_bookie_starts_on_half_of_an_import(
    config: BookieConfig, store: MetadataStore
) -> None:
    await store.put(MARK, b"")
    with pytest.raises(MetadataBroken, match="half of an import"):
        await check_cookie(config, store)
    with pytest.raises(MetadataBroken, match="half of an import"):
        await adopt_folders(config, store)
    assert [key for key, _ in await store.list("")] == [MARK]


async def refusal(config: BookieConfig, store: MetadataStore) -> CookieRefused:
    before = {path: path.read_bytes() for path in all_files(config)}
    with pytest.raises(CookieRefused) as refused:
        await check_cookie(config, store)
    assert {path: path.read_bytes() for path in all_files(config)} == before
    assert "\n" not in str(refused.value)
    return refused.value


def all_files(config: BookieConfig) -> list[Path]:
    return [path for path in Path(config.data_folder).rglob("*") if path.is_file()]


@pytest.mark.parametrize("which", [0, 1])
async def test_one_folder_emptied_is_refused(
    config: BookieConfig, store: MetadataStore, which: int
) -> None:
    """BK-20: what it answered would not be true any more."""
    await check_cookie(config, store)
    folder = folders_of(config)[which]
    (folder / "cookie.json").unlink()
    refused = await refusal(config, store)
    assert refused.fault == "emptied"
    assert str(folder) in str(refused)


@pytest.mark.parametrize("which", [0, 1])
async def test_one_folder_missing_is_refused(
    config: BookieConfig, store: MetadataStore, which: int
) -> None:
    await check_cookie(config, store)
    shutil.rmtree(folders_of(config)[which])
    assert (await refusal(config, store)).fault == "emptied"


@pytest.mark.parametrize("named", [True, False])
async def test_both_folders_emptied_is_refused(
    tmp_path: Path, store: MetadataStore, named: bool
) -> None:
    """BK-20: the metadata remembers that there were data."""
    config = config_of(tmp_path / "data", "bookie-1" if named else "")
    record = await check_cookie(config, store)
    shutil.rmtree(config.data_folder)
    refused = await refusal(config, store)
    assert refused.fault == "emptied"
    assert record.bookie_id in str(refused)


@pytest.mark.parametrize("which", [0, 1])
async def test_a_folder_with_files_but_no_cookie_is_refused(
    config: BookieConfig, store: MetadataStore, which: int
) -> None:
    folder = folders_of(config)[which]
    folder.mkdir(parents=True)
    (folder / "holiday.jpg").touch()
    assert (await refusal(config, store)).fault == "foreign"


async def test_folders_of_two_bookies_are_refused(tmp_path: Path, store: MetadataStore) -> None:
    one, two = config_of(tmp_path / "1", "one"), config_of(tmp_path / "2", "two")
    await check_cookie(one, store)
    await check_cookie(two, store)
    mixed = msgspec.structs.replace(one, ledger_folder=two.ledger_folder, bookie_id="")
    refused = await refusal(mixed, store)
    assert refused.fault == "foreign"
    assert "one and two" in str(refused)


async def test_swapped_folders_are_refused(config: BookieConfig, store: MetadataStore) -> None:
    await check_cookie(config, store)
    swapped = msgspec.structs.replace(
        config, journal_folder=config.ledger_folder, ledger_folder=config.journal_folder
    )
    assert "swap" in str(await refusal(swapped, store))


async def test_the_data_of_another_bookie_is_refused(
    config: BookieConfig, store: MetadataStore
) -> None:
    """BK-20: a disk in the wrong machine."""
    await check_cookie(config, store)
    other = msgspec.structs.replace(config, bookie_id="bookie-2")
    assert "bookie-1, not of bookie-2" in str(await refusal(other, store))


async def test_a_store_that_does_not_know_the_bookie_is_refused(
    tmp_path: Path, config: BookieConfig, store: MetadataStore
) -> None:
    await check_cookie(config, store)
    other = await SqliteStore.open(tmp_path / "other.db")
    refused = await refusal(config, other)
    await other.aclose()
    assert refused.fault == "unknown"
    assert "--metadata" in str(refused)


async def test_data_from_before_a_format_is_refused(
    config: BookieConfig, store: MetadataStore
) -> None:
    await check_cookie(config, store)
    for folder in folders_of(config):
        rewrite(folder, cookie_id="0" * 32)
    assert (await refusal(config, store)).fault == "unknown"


@pytest.mark.parametrize("instance", [None, b"of another cluster", b"\xff"])
async def test_a_store_of_another_cluster_is_refused_by_its_instance(
    config: BookieConfig, store: MetadataStore, instance: bytes | None
) -> None:
    await check_cookie(config, store)
    if instance is None:
        await store.delete(INSTANCE)
    else:
        await store.put(INSTANCE, instance)
    refused = await refusal(config, store)
    assert (refused.fault, refused.place) == ("unknown", INSTANCE)
    with pytest.raises(CookieRefused):
        await adopt_folders(config, store)
    found = await store.get(INSTANCE)
    assert (found and found.value) == instance


@pytest.mark.parametrize("instance", [None, b""])
async def test_no_new_bookie_gives_a_cluster_another_id(
    tmp_path: Path, store: MetadataStore, instance: bytes | None
) -> None:
    """All others would be refused from then on."""
    mine, new = (
        msgspec.structs.replace(config_of(tmp_path / name, name), metadata="zk://host-1:2181/quire")
        for name in ("one", "two")
    )
    record = await check_cookie(mine, store)
    if instance is None:
        await store.delete(INSTANCE)
    else:
        await store.put(INSTANCE, instance)
    for config in (mine, new):
        refused = await refusal(config, store)
        assert (refused.fault, refused.place) == ("unknown", INSTANCE)
        assert "is missing" in str(refused)
        assert record.instance_id in str(refused)
    await store.put(INSTANCE, record.instance_id.encode())
    assert await check_cookie(mine, store) == record
    assert (await check_cookie(new, store)).instance_id == record.instance_id


async def test_an_empty_id_without_bookies_is_filled(
    config: BookieConfig, store: MetadataStore
) -> None:
    await store.put(INSTANCE, b"")
    record = await check_cookie(config, store)
    assert record.instance_id
    assert await check_cookie(config, store) == record


async def test_cookies_without_an_id_are_of_no_cluster(
    config: BookieConfig, store: MetadataStore
) -> None:
    """BookKeeper wrote them before clusters had ids; one that cannot be read is none either."""
    config = msgspec.structs.replace(config, metadata="zk://host-1:2181/quire")
    theirs = CookieRecord("theirs", "", "/j", "/l", "c")
    await store.put(cookie_key("theirs"), encode_record(theirs))
    await store.put(cookie_key("torn"), b"{")
    assert (await check_cookie(config, store)).instance_id


async def test_a_name_that_is_taken_while_a_bookie_is_made_is_refused(
    tmp_path: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = config_of(tmp_path / "1", "same"), config_of(tmp_path / "2", "same")
    steps = Steps(store, monkeypatch)
    steps.cut_at = 3
    with pytest.raises(CutOff):
        await check_cookie(first, store)
    steps.cut_at = -1
    await check_cookie(second, store)
    refused = await refusal(first, store)
    assert refused.fault == "unknown"


async def test_a_damaged_cookie_is_refused(config: BookieConfig, store: MetadataStore) -> None:
    await check_cookie(config, store)
    path = folders_of(config)[0] / "cookie.json"
    content = path.read_bytes()
    for size in (0, 1, len(content) // 2, len(content) - 3):
        path.write_bytes(content[:size])
        assert str(path) in str(await refusal(config, store))


# --- moved folders ---------------------------------------------------------------------------


def moved(config: BookieConfig, folder: Path) -> BookieConfig:
    shutil.move(config.data_folder, folder)
    return config_of(folder, config.bookie_id)


async def test_moved_folders_are_refused_until_adopted(
    tmp_path: Path, config: BookieConfig, store: MetadataStore
) -> None:
    record = await check_cookie(config, store)
    there = moved(config, tmp_path / "there")
    refused = await refusal(there, store)
    assert refused.fault == "moved"
    assert "format --moved" in str(refused)
    adopted = await adopt_folders(there, store)
    assert adopted.cookie_id == record.cookie_id
    assert await check_cookie(there, store) == adopted


async def test_a_copy_left_behind_refuses_once_the_other_was_adopted(
    tmp_path: Path, config: BookieConfig, store: MetadataStore
) -> None:
    await check_cookie(config, store)
    shutil.copytree(config.data_folder, tmp_path / "there")
    await adopt_folders(config_of(tmp_path / "there"), store)
    assert (await refusal(config, store)).fault == "moved"


async def test_adoption_goes_on_after_a_crash(
    tmp_path: Path, config: BookieConfig, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_cookie(config, store)
    there = moved(config, tmp_path / "there")
    for cut_at in (0.5, 1, 1.5, 2, 2.5):
        with monkeypatch.context() as patch:
            steps = Steps(store, patch)
            steps.cut_at = cut_at
            with pytest.raises(CutOff):
                await adopt_folders(there, store)
    await adopt_folders(there, store)
    await check_cookie(there, store)


async def test_a_link_to_the_folder_is_no_move(
    tmp_path: Path, config: BookieConfig, store: MetadataStore
) -> None:
    await check_cookie(config, store)
    (tmp_path / "link").symlink_to(config.data_folder)
    await check_cookie(config_of(tmp_path / "link"), store)


async def test_nothing_can_be_adopted_where_no_bookie_is(
    config: BookieConfig, store: MetadataStore
) -> None:
    with pytest.raises(CookieRefused, match="no cookie here"):
        await adopt_folders(config, store)


async def test_hosts_may_have_the_same_folders(
    config: BookieConfig, store: MetadataStore, tmp_path: Path
) -> None:
    await check_cookie(config, store)
    for folder in folders_of(config):
        shutil.rmtree(folder)
    unnamed = msgspec.structs.replace(config, bookie_id="")
    with pytest.raises(CookieRefused, match="bookie-1 had its data"):
        await check_cookie(unnamed, store)
    elsewhere = msgspec.structs.replace(unnamed, metadata="zk://host-1:2181/quire")
    assert (await check_cookie(elsewhere, store)).bookie_id != "bookie-1"
    named = msgspec.structs.replace(elsewhere, bookie_id="bookie-1")
    for folder in folders_of(config):
        shutil.rmtree(folder)
    with pytest.raises(CookieRefused, match="bookie-1 had its data"):
        await check_cookie(named, store)


async def test_the_first_of_two_new_bookies_gives_the_cluster_its_id(
    tmp_path: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the other one looks for bookies of a cluster whose id was lost."""
    one, two = (
        msgspec.structs.replace(config_of(tmp_path / name, name), metadata="zk://host-1:2181/quire")
        for name in ("one", "two")
    )
    listed = store.list

    async def late(prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        if not after and prefix == COOKIES and (await store.get(INSTANCE)) is None:
            monkeypatch.undo()
            await check_cookie(one, store)
        return await listed(prefix, after=after, limit=limit)

    monkeypatch.setattr(store, "list", late)
    second = await check_cookie(two, store)
    assert second.instance_id == (await check_cookie(one, store)).instance_id
