from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
import trio
from leases import grant

from ledger_client.__main__ import quire
from ledger_client.commands.outcome import conclude
from ledger_client.commands.tables import age, count, size
from metadata.errors import MetadataUnavailable
from metadata.outcome import Exit
from metadata.records import (
    COORDINATOR,
    RACKS,
    BookieRecord,
    CookieRecord,
    Leader,
    RackReport,
    UnderReplicated,
    bookie_lease,
    cookie_key,
    encode_record,
    underreplicated_key,
)
from metadata.urls import open_store


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The metadata of a bookie and thirty ledgers that want repair."""
    url = f"sqlite://{tmp_path}/metadata.db"

    async def fill() -> None:
        async with open_store(url) as store:
            record = BookieRecord("b[1]", "host:3181", 3 << 30, 2 << 30, ledgers_size=1 << 20)
            cookie = CookieRecord("b[1]", "i", "/journal", "/ledgers", "c")
            await store.put(cookie_key("b[1]"), encode_record(cookie))
            await grant(store, bookie_lease("b[1]"), "x", ttl_s=60, value=encode_record(record))
            for ledger_id in range(30):
                mark = UnderReplicated(ledger_id, "bookie lost", 1, ["b2"], size=1 << 20)
                await store.put(underreplicated_key(ledger_id), encode_record(mark))

    trio.run(fill)
    return url


def test_the_tables_name_bookies_and_ledgers(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert conclude(quire, ["cluster", "status", "--cluster", url]) == Exit.DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "leader: none at the moment"
    assert "b[1]    writable  host:3181  1.0 MiB  2.0 GiB  3.0 GiB        0 B" in "\n".join(lines)
    assert "under-replicated: 30 ledgers, 30.0 MiB to copy; 0 repairs under way" in lines
    assert sum("bookie lost: b2" in line for line in lines) == 20
    assert lines[-1] == "and 10 ledgers more"


def test_a_lost_bookie_above_whole_ledgers_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"

    async def lose_one() -> None:
        async with open_store(url) as store:
            for name in ("b1", "b2"):
                cookie = CookieRecord(name, "i", "/journal", "/ledgers", "c")
                await store.put(cookie_key(name), encode_record(cookie))
            record = BookieRecord("b1", "host:3181", 3 << 30, 2 << 30)
            await grant(store, bookie_lease("b1"), "x", ttl_s=60, value=encode_record(record))

    async def elect() -> None:
        async with open_store(url) as store:
            leader = Leader("b1", "host:3181", await store.now_ms())
            await grant(store, COORDINATOR, "x", ttl_s=60, value=encode_record(leader))

    trio.run(lose_one)
    assert conclude(quire, ["cluster", "status", "--cluster", url]) == Exit.DONE
    out = capsys.readouterr().out
    assert "lost: b2; what it held is copied once there is a leader" in out
    assert "all ledgers have all their copies" not in out, "nobody looks for missing ones"

    trio.run(elect)
    assert conclude(quire, ["cluster", "status", "--cluster", url]) == Exit.DONE
    out = " ".join(capsys.readouterr().out.split())
    assert "lost: b2, and no ledger waits for a copy. Either all ledgers have all their " in out
    assert "or the leader still waits for it to come back" in out
    assert "`bookie decommission b2` checks the copies and forgets it" in out


def test_json_has_all_of_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert conclude(quire, ["cluster", "status", "--cluster", url, "--json"]) == Exit.DONE
    told = json.loads(capsys.readouterr().out)
    assert told["bookies"][0]["state"] == "writable"
    assert len(told["underreplicated"]) == 30
    assert told["underreplicated"][3]["mark"]["ledger_id"] == 3
    assert told["underreplicated"][3]["waits_for"] == "waiting for a worker"


def test_racks_and_what_violates_them_are_shown(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def state() -> None:
        async with open_store(url) as store:
            record = BookieRecord("b2", "host:3182", 1, 1, rack="r7")
            await grant(store, bookie_lease("b2"), "y", ttl_s=60, value=encode_record(record))
            now_ms = await store.now_ms()
            report = RackReport(now_ms, ledgers=9, violating=3, fragments=4, examples=[5, 6])
            await store.put(RACKS, encode_record(report))

    assert conclude(quire, ["cluster", "status", "--cluster", url]) == Exit.DONE
    assert "rack" not in capsys.readouterr().out, "nobody states one"
    trio.run(state)
    assert conclude(quire, ["cluster", "status", "--cluster", url]) == Exit.DONE
    out = capsys.readouterr().out
    assert "b2      decommissioned  host:3182  r7" in out
    assert "b[1]    writable        host:3181  -" in out
    assert "on fewer racks than could be: 3 ledgers (4 fragments), counted " in out
    assert " ago: 5, 6, ...\n" in out
    assert conclude(quire, ["cluster", "status", "--cluster", url, "--json"]) == Exit.DONE
    told = json.loads(capsys.readouterr().out)
    assert [bookie["rack"] for bookie in told["bookies"]] == ["r7", ""]
    assert told["racks"]["violating"] == 3


def test_versions_are_shown_where_they_differ(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def update() -> None:
        async with open_store(url) as store:
            record = BookieRecord("b2", "host:3182", 1, 1, version="1.2.3")
            await grant(store, bookie_lease("b2"), "y", ttl_s=60, value=encode_record(record))

    assert conclude(quire, ["cluster", "status", "--cluster", url]) == Exit.DONE
    assert "version" not in capsys.readouterr().out
    trio.run(update)
    assert conclude(quire, ["cluster", "status", "--cluster", url]) == Exit.DONE
    out = capsys.readouterr().out
    assert "b2      decommissioned  host:3182  1.2.3" in out
    assert "b[1]    writable        host:3181  -" in out


def test_an_address_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert conclude(quire, ["cluster", "status", "--cluster", "nonsense"]) == Exit.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("quire: ")


def test_a_store_that_is_away_is_a_cluster_out_of_reach(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def ask() -> None:
        raise MetadataUnavailable("nobody answers")

    assert conclude(ask, []) == Exit.UNREACHABLE
    assert "nobody answers; check --cluster, and that its bookies" in capsys.readouterr().err


def test_quantities_read_as_people_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 200_000.0)
    assert [size(n) for n in (0, 1023, 1536, 5 << 40)] == ["0 B", "1023 B", "1.5 KiB", "5.0 TiB"]
    assert [count(1, "entry"), count(2000, "entry")] == ["1 entry", "2,000 entries"]
    assert [count(1, "key"), count(2, "key"), count(2, "byte")] == ["1 key", "2 keys", "2 bytes"]
    assert [age(1000 * s) for s in (199_990, 199_000, 190_000, 0)] == [
        "10 s",
        "16 min",
        "2 h",
        "2 d",
    ]
