"""Ledger ids that are used again, over the wire, with a metadata store to ask."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
import v2
from rig import MIB, Peer, settings
from running import ask, connected, known, running

from bookie.config import BookieConfig
from bookie.foreign import FREE_FROM
from bookie.incarnations import Incarnations
from bookie.inspection.ledgers import read_ledgers
from bookie.limbo import enter_limbo
from bookie.lost_records import fence_forgotten
from bookie.storage import Storage
from metadata import calls
from metadata.errors import MetadataUnavailable
from metadata.records import (
    Fragment,
    LedgerRecord,
    LedgerState,
    cookie_key,
    encode_password,
    encode_record,
    ledger_key,
)
from metadata.store import MetadataStore
from metadata.urls import open_store
from native import frame
from native.frame import Code

LEDGER, OLD, NEW = 7, 1111, 2222
ME = "b1"


def record(incarnation: int, **changed: object) -> bytes:
    made = LedgerRecord(
        LEDGER, 1, 1, 1, LedgerState.OPEN, [Fragment(0, [ME])], incarnation=incarnation
    )
    return encode_record(msgspec.structs.replace(made, **changed))


async def today(store: MetadataStore, incarnation: int) -> None:
    """The ledger was deleted if it was there, and made again."""
    await store.put(ledger_key(LEDGER), record(incarnation))


class Flaky:
    """A store that may be away, or hang."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.away = self.hangs = False
        self.gets = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def get(self, key: str) -> object:
        self.gets += 1
        if self.hangs:
            await trio.sleep_forever()
        if self.away:
            raise MetadataUnavailable("away")
        return await self._store.get(key)


class Here:
    """A bookie that runs, with the former ledger on it."""

    def __init__(self, peer: Peer, store: Flaky) -> None:
        self.peer = peer
        self.store: MetadataStore = store  # type: ignore[assignment]
        self.flaky = store

    async def says(self, incarnation: int) -> None:
        await self.peer.stream.send_all(frame.incarnation(LEDGER, incarnation))

    async def add(self, entry_id: int, payload: bytes = b"new") -> int:
        return (await self.peer.ask(v2.add(LEDGER, entry_id, payload))).code

    async def read(self, entry_id: int) -> tuple[int, bytes]:
        answer = await self.peer.ask(v2.read(LEDGER, entry_id))
        return answer.code, answer.body[32:]

    async def collect(self) -> calls.Reply:
        return await ask(self.peer, calls.CollectGarbage(major=True))

    async def forget(self, incarnation: int, *, dry_run: bool = False) -> calls.Reply:
        return await ask(self.peer, calls.ForgetUnknown(LEDGER, incarnation, dry_run))

    async def runs(self, incarnation: int) -> calls.Reply:
        return await ask(self.peer, calls.LedgerRuns(LEDGER, incarnation=incarnation))


@asynccontextmanager
async def bookie(config: BookieConfig) -> AsyncIterator[Here]:
    async with open_store(config.metadata) as store:
        flaky = Flaky(store)
        async with running(config, flaky) as ready, connected(ready.address) as peer:  # type: ignore[arg-type]
            yield Here(peer, flaky)


@asynccontextmanager
async def former(folder: Path, *, entries: int = 3) -> AsyncIterator[Here]:
    """Ledger 7 was written, fenced, deleted from the metadata; and made again."""
    async with bookie(config_in(folder)) as here:
        await today(here.store, OLD)
        await here.says(OLD)
        assert [await here.add(i, b"old") for i in range(entries)] == [0] * entries
        assert (await here.peer.ask(v2.read(LEDGER, -1, fence_key=v2.KEY))).code == 0
        await here.store.delete(ledger_key(LEDGER))
        await today(here.store, NEW)
        yield here


def set_back(data: Path, saved: Path) -> None:
    for leftover in data.parent.glob(data.name + "*"):
        leftover.unlink()
    shutil.copy(saved, data)


def config_in(folder: Path) -> BookieConfig:
    return settings(folder, bookie_id=ME)


async def assert_new(here: Here, entries: int) -> None:
    answers = [await here.read(i) for i in range(4)]
    assert answers == [(0, b"new")] * entries + [(Code.NO_ENTRY, b"")] * (4 - entries)


async def test_a_ledger_made_again_has_nothing_of_the_former(tmp_path: Path) -> None:
    """Neither its entries, nor its end, nor its fence; across flush, compaction, restarts."""
    async with former(tmp_path) as here:
        await here.says(NEW)
        fenced = await here.peer.ask(v2.read(LEDGER, -1))
        assert fenced.code == Code.NO_ENTRY, "recovery finds no end of the former"
        assert await here.add(0) == 0
        await assert_new(here, 1)
        assert isinstance(await here.collect(), calls.GarbageReport)
        await assert_new(here, 1)
    async with bookie(config_in(tmp_path)) as here:
        await assert_new(here, 1)
        await here.says(NEW)
        assert await here.add(1) == 0
        await assert_new(here, 2)


async def test_the_files_tell_of_the_ledger_of_today_alone(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    async with former(tmp_path) as here:
        await ask(here.peer, calls.FlushNow())
        await here.says(NEW)
        assert await here.add(0) == 0
        told = await ask(here.peer, calls.LedgerStates())
        assert told == calls.LedgerStatePage(
            [calls.LedgerOnBookie(LEDGER, last_entry=0, lac=-1, incarnation=NEW)]
        )
        files = read_ledgers(Path(config.journal_folder), Path(config.ledger_folder))
        assert (files.by_id[LEDGER].incarnation, files.by_id[LEDGER].unflushed) == (NEW, 1)
    facts = read_ledgers(Path(config.journal_folder), Path(config.ledger_folder)).by_id[LEDGER]
    assert (facts.incarnation, facts.entries, facts.last_entry) == (NEW, 1, 0)
    assert (facts.fenced, facts.deleted) == (False, False)


async def test_adds_that_come_with_the_news_wait_for_the_metadata(tmp_path: Path) -> None:
    async with former(tmp_path) as here:
        frames = frame.incarnation(LEDGER, NEW) + v2.add(LEDGER, 0, b"new") + v2.read(LEDGER, 0)
        assert (await here.peer.ask(frames)).code == 0
        assert (await here.peer.response()).code == 0
        await assert_new(here, 1)


async def test_whoever_means_the_former_ledger_hears_that_it_is_over(tmp_path: Path) -> None:
    async with former(tmp_path) as here:
        await here.says(NEW)
        assert await here.add(0) == 0
        await here.says(OLD)
        assert await here.read(0) == (Code.OTHER_LEDGER, b"")
        assert await here.add(1, b"old") == Code.OTHER_LEDGER
        reply = await here.runs(OLD)
        assert isinstance(reply, calls.Failure)
        await here.says(NEW)
        await assert_new(here, 1)


@pytest.mark.parametrize("doubt", ["away", "hangs", "no row", "no cookie", "a third"])
async def test_without_an_answer_nobody_gets_old_bytes_or_a_denial(
    tmp_path: Path, doubt: str
) -> None:
    async with former(tmp_path) as here:
        cookie = await here.store.get(cookie_key(ME))
        assert cookie is not None
        if doubt in ("away", "hangs"):
            setattr(here.flaky, doubt, True)
        elif doubt == "no row":
            await here.store.delete(ledger_key(LEDGER))
        elif doubt == "no cookie":
            await here.store.delete(cookie_key(ME))
        else:
            await today(here.store, 3333)
        await here.says(NEW)
        for entry_id in (0, 99, -1):
            assert await here.read(entry_id) == (Code.UNKNOWN_STATE, b"")
        assert await here.add(0) == Code.UNKNOWN_STATE
        assert isinstance(await here.runs(NEW), calls.Failure)
        here.flaky.away = here.flaky.hangs = False
        await today(here.store, NEW)
        if doubt == "no cookie":
            await here.store.put(cookie_key(ME), cookie.value)
        await here.says(NEW)  # as the client does when it asks again
        assert await here.add(0) == 0
        await assert_new(here, 1)


async def test_metadata_set_back_to_a_backup_issue_an_id_again(tmp_path: Path) -> None:
    """The bookie has newer entries of a ledger that the metadata never heard of."""
    data, saved = tmp_path / "metadata.db", tmp_path / "backup.db"
    config = config_in(tmp_path)
    async with bookie(config):
        pass  # its cookie is in the backup
    shutil.copy(data, saved)
    async with bookie(config) as here:
        await today(here.store, OLD)
        await here.says(OLD)
        assert [await here.add(i, b"old") for i in range(3)] == [0] * 3
    set_back(data, saved)
    async with bookie(config) as here:
        await today(here.store, NEW)
        await here.says(NEW)
        assert await here.read(0) == (Code.NO_ENTRY, b"")
        assert await here.add(0) == 0
        await assert_new(here, 1)


async def test_a_row_that_comes_back_with_its_incarnation_is_that_ledger(tmp_path: Path) -> None:
    async with bookie(config_in(tmp_path)) as here:
        await today(here.store, OLD)
        await here.says(OLD)
        assert await here.add(0) == 0
        await here.store.delete(ledger_key(LEDGER))
        await today(here.store, OLD)
        await here.says(OLD)
        assert await here.read(0) == (0, b"new")
        assert await here.add(1) == 0


async def test_garbage_collection_deletes_a_ledger_whose_id_is_anothers(tmp_path: Path) -> None:
    async with former(tmp_path) as here:
        report = await here.collect()
        assert isinstance(report, calls.GarbageReport)
        assert report.ledgers_deleted == 1
        assert (await here.read(0))[0] == Code.NO_LEDGER
        await here.says(NEW)
        assert await here.add(0) == 0, "its tombstone keeps the next ledger not away"
        await assert_new(here, 1)
        report = await here.collect()
        assert isinstance(report, calls.GarbageReport)
        assert report.ledgers_deleted == 0


async def test_repair_counts_no_entry_of_the_former_ledger(tmp_path: Path) -> None:
    async with former(tmp_path) as here:
        assert await here.runs(OLD) == calls.RunPage([(0, 2)])
        assert await here.runs(NEW) == calls.RunPage([])
        assert isinstance(await here.runs(OLD), calls.Failure)
        await here.says(NEW)
        assert await here.add(0) == 0
        assert await here.runs(NEW) == calls.RunPage([(0, 0)])
        assert await here.runs(0) == calls.RunPage([(0, 0)])


async def test_a_client_of_bookkeeper_that_knows_no_incarnation_goes_on(tmp_path: Path) -> None:
    async with bookie(config_in(tmp_path)) as here:
        await known(here.store, LEDGER)
        assert [await here.add(i, b"theirs") for i in range(3)] == [0] * 3
        assert await here.read(1) == (0, b"theirs")
        assert await here.add(1, b"theirs") == 0
        assert await here.add(1, b"other") == Code.BAD_REQUEST
        await ask(here.peer, calls.FlushNow())
        assert await here.add(1, b"theirs") == 0
        assert await here.add(1, b"other") == Code.BAD_REQUEST
        assert await here.read(1) == (0, b"theirs")
        wrong = v2.add(LEDGER, 3, key=v2.OTHER_KEY)
        assert (await here.peer.ask(wrong)).code == Code.UNAUTHORIZED


async def stored(here: Here) -> list[int]:
    page = await ask(here.peer, calls.LedgerStates())
    assert isinstance(page, calls.LedgerStatePage)
    return [each.ledger_id for each in page.ledgers]


async def test_who_says_nothing_creates_nothing_that_the_cluster_does_not_know(
    tmp_path: Path,
) -> None:
    """Ids that are yet to be issued stay clean: no entry, no fence, no other key."""
    async with bookie(config_in(tmp_path)) as here:
        for key in (v2.KEY, v2.OTHER_KEY):
            requests = [
                v2.add(LEDGER, 0, b"theirs", key=key),
                v2.add(LEDGER, 0, b"theirs", key=key, flags=v2.RECOVERY),
                v2.write_lac(LEDGER, 0, key=key),
                v2.read(LEDGER, -1, fence_key=key),
            ]
            codes = [(await here.peer.ask(each)).code for each in requests]
            assert codes == [Code.NO_LEDGER] * 4
        assert await stored(here) == []
        await today(here.store, NEW)
        await here.says(NEW)
        assert await here.read(0) == (Code.NO_LEDGER, b"")
        assert await here.add(0) == 0
        await assert_new(here, 1)


async def test_who_says_nothing_creates_a_ledger_of_the_cluster_as_what_it_is(
    tmp_path: Path,
) -> None:
    """BookKeeper's own client recovers one of ours: an entry, or a fence, on a further bookie."""
    async with bookie(config_in(tmp_path)) as here:
        await today(here.store, NEW)
        for key, code in ((v2.OTHER_KEY, Code.IO_ERROR), (v2.KEY, Code.NO_ENTRY)):
            assert (await here.peer.ask(v2.read(LEDGER, -1, fence_key=key))).code == code
        assert (await here.peer.ask(v2.add(LEDGER, 0, b"new", flags=v2.RECOVERY))).code == 0
        await here.says(NEW)
        assert await here.add(1) == Code.FENCED
        await assert_new(here, 1)


async def test_a_fence_of_who_says_nothing_gives_no_ledger_its_key(tmp_path: Path) -> None:
    """One whose id was used again has none until its own writer comes."""
    async with former(tmp_path) as here:
        await here.says(NEW)
        assert await here.read(0) == (Code.NO_ENTRY, b"")
        await here.says(0)
        fence = await here.peer.ask(v2.read(LEDGER, -1, fence_key=v2.OTHER_KEY))
        assert fence.code == Code.IO_ERROR
        await here.says(NEW)
        assert await here.add(0) == 0
        await assert_new(here, 1)


async def test_who_says_nothing_hears_of_no_unknown_state(tmp_path: Path) -> None:
    """BookKeeper's own client closes its connection at that code. Stored is a former ledger."""
    async with former(tmp_path) as here:
        await here.says(NEW)
        assert await here.read(0) == (Code.NO_ENTRY, b"")
        await here.says(0)
        await today(here.store, 3333)
        for request in (
            v2.add(LEDGER, 0),
            v2.write_lac(LEDGER, 0),
            v2.read(LEDGER, -1, fence_key=v2.KEY),
        ):
            assert (await here.peer.ask(request)).code == Code.IO_ERROR


async def test_a_fence_is_refused_where_the_cluster_has_no_such_ledger_any_more(
    tmp_path: Path,
) -> None:
    """Also on a bookie that lost the key, and could not refuse the read that is the answer."""
    async with former(tmp_path) as here:
        await here.says(NEW)
        assert await here.read(0) == (Code.NO_ENTRY, b"")
        await here.store.delete(ledger_key(LEDGER))
        await here.says(0)
        for key in (v2.KEY, v2.OTHER_KEY):
            fence = await here.peer.ask(v2.read(LEDGER, -1, fence_key=key))
            assert fence.code == Code.NO_LEDGER


async def test_a_fence_of_who_says_nothing_is_not_answered_from_a_deleted_ledger(
    tmp_path: Path,
) -> None:
    """The ledger of today would not be fenced, and its writer's entries be acknowledged."""
    async with former(tmp_path) as here:
        await here.collect()
        await here.says(0)
        fence = v2.read(LEDGER, -1, fence_key=v2.KEY)
        here.flaky.away = True
        assert (await here.peer.ask(fence)).code == Code.IO_ERROR
        here.flaky.away = False
        await today(here.store, 0)
        assert (await here.peer.ask(fence)).code == Code.IO_ERROR
        await here.store.delete(ledger_key(LEDGER))
        assert (await here.peer.ask(fence)).code == Code.NO_LEDGER
        await today(here.store, NEW)
        assert (await here.peer.ask(fence)).code == Code.NO_ENTRY
        await here.says(NEW)
        assert await here.add(0) == Code.FENCED


async def test_a_record_that_was_made_a_moment_ago_counts(tmp_path: Path) -> None:
    async with bookie(config_in(tmp_path)) as here:
        assert await here.add(0) == Code.NO_LEDGER
        await known(here.store, LEDGER)
        assert await here.add(0) == 0


async def test_the_metadata_are_asked_once_for_a_new_ledger(tmp_path: Path) -> None:
    async with bookie(config_in(tmp_path)) as here:
        await known(here.store, LEDGER)
        assert await here.add(0) == 0
        before = here.flaky.gets
        assert [await here.add(i) for i in range(1, 4)] == [0] * 3
        assert (await here.peer.ask(v2.read(LEDGER, -1, fence_key=v2.KEY))).code == 0
        assert here.flaky.gets == before


@pytest.mark.parametrize("doubt", ["away", "hangs"])
async def test_without_the_metadata_nobody_hears_that_there_is_no_ledger(
    tmp_path: Path, doubt: str
) -> None:
    async with bookie(config_in(tmp_path)) as here:
        setattr(here.flaky, doubt, True)
        assert await here.add(0) == Code.IO_ERROR
        fence = await here.peer.ask(v2.read(LEDGER, -1, fence_key=v2.KEY))
        assert fence.code == Code.IO_ERROR
        setattr(here.flaky, doubt, False)
        assert await stored(here) == []


async def test_ids_that_are_never_issued_are_free(tmp_path: Path) -> None:
    async with bookie(config_in(tmp_path)) as here:
        assert (await here.peer.ask(v2.add(FREE_FROM, 0))).code == 0
        assert (await here.peer.ask(v2.read(FREE_FROM + 1, -1, fence_key=v2.KEY))).code == 2
        assert (await here.peer.ask(v2.add(FREE_FROM - 1, 0))).code == Code.NO_LEDGER


async def test_where_bookkeeper_s_clients_create_ledgers_no_id_is_free(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    async with open_store(config.metadata) as store:
        await store.put(cookie_key(ME), b"{}")
        storage = await Storage.open(config)
        decides = Incarnations(storage.engine, storage.events, store, ME, is_shared=True)
        assert (await decides.newcomer(FREE_FROM)).code == Code.NO_LEDGER
        await known(store, FREE_FROM)
        assert (await decides.newcomer(FREE_FROM)).code == Code.OK
        await storage.stop()


async def test_a_stored_ledger_of_unknown_incarnation_is_not_served_as_that_of_today(
    tmp_path: Path,
) -> None:
    """Written before bookies asked, or what it was is lost. Repair counts none of its entries."""
    async with bookie(config_in(tmp_path)) as here:
        await known(here.store, LEDGER)
        assert await here.add(0, b"theirs") == 0
        await today(here.store, NEW)
        await here.says(NEW)
        assert await here.read(0) == (Code.UNKNOWN_STATE, b"")
        assert await here.add(0) == Code.UNKNOWN_STATE
        assert isinstance(await here.runs(NEW), calls.Failure)
        await here.says(0)
        assert await here.read(0) == (0, b"theirs")
        await here.store.delete(ledger_key(LEDGER))
        assert isinstance(await here.collect(), calls.GarbageReport)


async def test_a_deleted_ledger_of_unknown_incarnation_gives_way(tmp_path: Path) -> None:
    async with bookie(config_in(tmp_path)) as here:
        await known(here.store, LEDGER)
        assert await here.add(0, b"theirs") == 0
        await here.store.delete(ledger_key(LEDGER))
        await here.store.next_id("ledgers", LEDGER + 1)
        report = await here.collect()
        assert isinstance(report, calls.GarbageReport)
        assert report.ledgers_deleted == 1
        await today(here.store, NEW)
        await here.says(NEW)
        assert await here.add(0) == 0
        await assert_new(here, 1)


async def test_a_bookie_in_limbo_leaves_a_ledger_of_unknown_incarnation_as_it_is(
    tmp_path: Path,
) -> None:
    config = config_in(tmp_path)
    async with open_store(config.metadata) as store:
        storage = await Storage.open(config)
        storage.engine.fence(LEDGER, v2.OTHER_KEY)
        await store.put(ledger_key(LEDGER), record(NEW, password=encode_password(b"")))
        async with trio.open_nursery() as nursery:
            await nursery.start(storage.run)
            assert await fence_forgotten(storage, store, ME) == 1
            nursery.cancel_scope.cancel()
        await storage.stop()


async def test_a_bookie_in_limbo_fences_the_ledger_of_today(tmp_path: Path) -> None:
    """It has the former one, and may have fenced that of today before it lost its disk."""
    config = config_in(tmp_path)
    async with open_store(config.metadata) as store:
        storage = await Storage.open(config)
        storage.engine.fence(LEDGER, v2.KEY, OLD)
        await today(store, NEW)
        changed = record(NEW, state=LedgerState.CLOSED, password=encode_password(b""))
        await store.put(ledger_key(LEDGER), changed)
        enter_limbo(Path(config.ledger_folder), ())
        async with trio.open_nursery() as nursery:
            await nursery.start(storage.run)
            assert await fence_forgotten(storage, store, ME) == 1
            state = storage.engine.ledger(LEDGER)
            assert state is not None
            assert (state.incarnation, state.fenced) == (NEW, True)
            nursery.cancel_scope.cancel()
        await storage.stop()


async def test_a_memtable_that_is_full_delays_the_renewal(tmp_path: Path) -> None:
    """The entries of the former ledger are on their way to a log just then."""
    async with former(tmp_path) as here:
        await known(here.store, 8)
        filling = [v2.add(8, i, bytes(4 * MIB)) for i in range(4)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.peer.stream.send_all, b"".join(filling))
            for _ in filling:
                assert (await here.peer.response()).code == 0
        await here.says(NEW)
        assert await here.add(0) == 0
        await assert_new(here, 1)


async def test_a_bookie_in_limbo_forgets_what_it_cannot_identify(tmp_path: Path) -> None:
    """BK-11: once repair says that all is elsewhere. It is fenced still, and can be copied anew."""
    async with unidentified(tmp_path) as here:
        assert "unknown; ask again" in str(await here.runs(NEW))
        assert await here.forget(NEW, dry_run=True) == calls.Forgotten(True)
        assert await here.runs(0) == calls.RunPage([(0, 0)])
        assert await here.forget(NEW) == calls.Forgotten(True)
        assert await here.runs(NEW) == calls.RunPage([])
        assert await here.forget(NEW) == calls.Forgotten(False)
        await here.says(NEW)
        assert await here.add(3) == Code.FENCED
        assert (await here.peer.ask(v2.add(LEDGER, 0, b"new", flags=v2.RECOVERY))).code == 0
    async with bookie(config_in(tmp_path)) as here:
        assert await here.runs(NEW) == calls.RunPage([(0, 0)])
        assert await here.read(0) == (0, b"new")
        await here.says(NEW)
        assert await here.add(3) == Code.FENCED


@pytest.mark.parametrize(
    ("changed", "meant"),
    [({"state": LedgerState.OPEN}, NEW), ({}, OLD), ({}, 0), ({"incarnation": 0}, 0)],
    ids=["open", "another", "any", "undeclared"],
)
async def test_what_may_be_needed_is_not_forgotten(
    tmp_path: Path, changed: dict[str, object], meant: int
) -> None:
    async with unidentified(tmp_path) as here:
        await here.store.put(ledger_key(LEDGER), record(**(CLOSED | changed)))  # type: ignore[arg-type]
        assert "not known to be closed" in str(await here.forget(meant))
        here.flaky.away = True
        assert "not known to be closed" in str(await here.forget(NEW))
        here.flaky.away = False
        assert await here.runs(0) == calls.RunPage([(0, 0)])


async def test_a_bookie_that_lost_nothing_forgets_nothing(tmp_path: Path) -> None:
    async with unidentified(tmp_path, limbo=False) as here:
        assert "not in limbo" in str(await here.forget(NEW))
        assert await here.runs(0) == calls.RunPage([(0, 0)])


CLOSED: dict[str, object] = {
    "incarnation": NEW,
    "state": LedgerState.CLOSED,
    "last_entry": 0,
    "length": 3,
}


@asynccontextmanager
async def unidentified(folder: Path, *, limbo: bool = True) -> AsyncIterator[Here]:
    """A bookie in limbo that has an entry of a closed ledger, and not its incarnation."""
    config = config_in(folder)
    async with bookie(config) as here:
        await today(here.store, 0)
        assert await here.add(0, b"old") == 0
        await here.store.put(ledger_key(LEDGER), record(**CLOSED))  # type: ignore[arg-type]
    if limbo:
        enter_limbo(Path(config.ledger_folder), ())
    async with bookie(config) as here:
        yield here
