from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
import trio
from command import Command

from metadata.archive import Archive, Spool
from metadata.outcome import Exit
from metadata.sqlite import SqliteStore


def url(path: Path) -> str:
    return f"sqlite://{path}"


@pytest.fixture
def old(tmp_path: Path) -> str:
    """The store of a stopped cluster with 40 keys."""

    async def fill() -> None:
        store = await SqliteStore.open(tmp_path / "old.db")
        await store.put("instance", b"5f5f")
        for number in range(39):
            await store.put(f"k/{number:03d}", b'"secret"')
        await store.next_id("ledgers", 8)
        await store.aclose()

    trio.run(fill)
    return url(tmp_path / "old.db")


@pytest.fixture
def house(command: Command, old: str, tmp_path: Path) -> Path:
    path = tmp_path / "house.jsonl"
    assert command("metadata", "export", path, "--metadata", old).code == Exit.DONE
    return path


def test_a_cluster_moves_to_another_store(
    command: Command, old: str, house: Path, tmp_path: Path
) -> None:
    new = url(tmp_path / "new.db")
    told = command("metadata", "import", house, "--metadata", new)
    assert (told.code, told.out) == (0, "imported 40 keys and 1 counter of cluster 5f5f\n")
    assert house.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new.db").stat().st_mode & 0o777 == 0o600
    again = tmp_path / "again.jsonl"
    assert command("metadata", "export", again, "--metadata", new).code == Exit.DONE
    assert again.read_bytes().splitlines()[1:-1] == house.read_bytes().splitlines()[1:-1]


def test_reports_are_json_too(command: Command, old: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    (out,) = command("metadata", "export", path, "--metadata", old, "--json").json
    assert (out["cluster"], out["keys"], out["consistent"], out["leases"]) == ("5f5f", 40, True, 0)
    assert out["counters"] == {"ledgers": 9}
    new = url(tmp_path / "new.db")
    (taken,) = command("metadata", "import", path, "--metadata", new, "--json").json
    assert (taken["keys"], taken["resumed_at"], taken["sha256"]) == (40, 0, out["sha256"])


def test_a_dash_is_standard_output_and_input(
    command: Command,
    old: str,
    house: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = command("metadata", "export", "-", "--metadata", old)
    data = house.read_bytes()
    assert told.out.encode().splitlines()[1:-1] == data.splitlines()[1:-1]
    assert (told.code, told.err) == (0, "exported 40 keys and 1 counter of cluster 5f5f\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    new = url(tmp_path / "new.db")
    assert command("metadata", "import", "-", "--metadata", new).code == Exit.DONE
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data[:-1])))
    told = command("metadata", "import", "-", "--metadata", url(tmp_path / "other.db"))
    assert told.code == Exit.FAILED
    assert "standard input is refused at line 42: the file is cut off" in told.err


def test_a_damaged_file_changes_nothing(
    command: Command, old: str, house: Path, tmp_path: Path
) -> None:
    data = bytearray(house.read_bytes())
    data[len(data) // 2] ^= 1
    house.write_bytes(data)
    told = command("metadata", "import", house, "--metadata", url(tmp_path / "new.db"))
    assert told.code == Exit.FAILED
    assert told.err.startswith(f"bookie: {house} is refused at line ")
    assert told.err.count("\n") == 1
    assert not (tmp_path / "new.db").exists()


def test_an_archive_not_of_one_moment_needs_force(
    command: Command, house: Path, tmp_path: Path
) -> None:
    with house.open("rb") as file:
        archive = Archive(file, "house")
        spool, to = Spool(io.BytesIO()), io.BytesIO()
        for line in archive.lines():
            spool.add(line)
        spool.finish(msgspec.structs.replace(archive.header, consistent=False), to)
    house.write_bytes(to.getvalue())
    new = url(tmp_path / "new.db")
    told = command("metadata", "import", house, "--metadata", new)
    assert told.code == Exit.FAILED
    assert "is not of one moment" in told.err
    assert command("metadata", "import", house, "--metadata", new, "--force").code == Exit.DONE


def test_what_cannot_be_named_is_refused_in_one_line(
    command: Command, old: str, house: Path, tmp_path: Path
) -> None:
    missing = url(tmp_path / "missing.db")
    told = command("metadata", "export", tmp_path / "x", "--metadata", missing)
    assert (told.code, told.err) == (1, f"bookie: there is no metadata store at {missing}\n")
    assert not (tmp_path / "missing.db").exists()
    assert not (tmp_path / "x").exists()
    told = command("metadata", "export", tmp_path / "x", "--metadata", "bookie://u:secret@h:1")
    assert told.code == Exit.USAGE
    assert "name their store" in told.err
    assert "secret" not in told.err
    told = command("metadata", "export", "/dev/null", "--metadata", old)
    assert told.code == Exit.FAILED
    assert "no regular file" in told.err
    told = command("metadata", "import", tmp_path / "none", "--metadata", old)
    assert told.code == Exit.FAILED
    assert command("metadata", "export", tmp_path / "x").code == Exit.USAGE


def test_a_store_that_is_not_empty_stays_as_it_is(command: Command, old: str, house: Path) -> None:
    told = command("metadata", "import", house, "--metadata", old)
    assert told.code == Exit.FAILED
    assert told.err == (
        "bookie: the store is not empty: it has the key instance; name a file or a path that "
        "does not exist yet\n"
    )


# --- check ---------------------------------------------------------------------------------


def test_a_check_shows_what_is_wrong_and_counts_it(
    command: Command, old: str, tmp_path: Path
) -> None:
    told = command("metadata", "check", "--metadata", old)
    assert told.code == Exit.DONE
    assert "foreign: k/000: quire keeps nothing under such a key\n" in told.out
    assert told.out.endswith("checked 40 records: 0 broken, 0 leftovers, 39 foreign\n")

    async def spoil() -> None:
        store = await SqliteStore.open(tmp_path / "old.db")
        await store.put("topics/shop/a", b"{")
        await store.aclose()

    trio.run(spoil)
    told = command("metadata", "check", "--metadata", old, "--json")
    assert told.code == Exit.FAILED
    findings = {line["key"]: line["severity"] for line in told.json[:-1]}
    assert findings["topics/shop/a"] == "broken"
    assert told.json[-1] == {
        "records": 41,
        "consistent": True,
        "broken": 1,
        "leftover": 0,
        "foreign": 39,
    }
