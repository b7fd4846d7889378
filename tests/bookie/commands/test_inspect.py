from __future__ import annotations

from pathlib import Path

import pytest
import rig
import v2
from command import ENTRIES, FLUSHED, LEDGER, Command, damage

from bookie.lock import hold_folders
from metadata.outcome import Exit


def test_inspect_mark_shows_the_checkpoint(command: Command, data: Path) -> None:
    told = command("inspect", "mark", "--data", data, "--json")
    assert told.code == Exit.DONE
    mark = told.json[0]["mark"]
    assert isinstance(mark, dict)
    assert mark["log_id"] == 1
    assert "log end" in command("inspect", "mark", "--data", data).out


def test_inspect_mark_fails_when_its_journal_is_gone(command: Command, data: Path) -> None:
    for path in data.glob("journal/*.journal"):
        path.unlink()
    told = command("inspect", "mark", "--data", data)
    assert told.code == Exit.FAILED
    assert "rebuild-index" in told.err


def test_inspect_mark_fails_when_it_is_damaged(command: Command, data: Path) -> None:
    path = data / "ledgers/lastMark"
    path.write_bytes(path.read_bytes()[:-3])
    told = command("inspect", "mark", "--data", data)
    assert told.code == Exit.FAILED
    assert str(path) in told.err


def test_inspect_journal_lists_files_and_records(command: Command, data: Path) -> None:
    (row,) = command("inspect", "journal", "--data", data, "--json").json[-1:]
    assert row["needed"] is True
    told = command("inspect", "journal", f"{row['id']:x}", "--data", data, "--json")
    kinds = [line.get("kind") for line in told.json]
    assert kinds.count("entry") == ENTRIES
    assert kinds.count("fence") == 1
    assert "end" in told.json[-1]


def test_inspect_journal_tells_of_damage_with_its_offset(command: Command, data: Path) -> None:
    (path,) = data.glob("journal/*.journal")
    lines = command("inspect", "journal", path.name, "--data", data, "--json").json
    victim = next(line for line in lines if line.get("entry_id") == 3)
    content = bytearray(path.read_bytes())
    content[int(str(victim["offset"])) + 20] ^= 1
    path.write_bytes(content)
    told = command("inspect", "journal", path.name, "--data", data)
    assert told.code == Exit.FAILED
    assert f"damaged: {path} at offset {victim['offset']}" in told.err
    assert str(ENTRIES - 1) in told.out  # what lies behind it is shown


def test_inspect_log_lists_files_and_records(command: Command, data: Path) -> None:
    assert [row["id"] for row in command("inspect", "log", "--data", data, "--json").json] == [1]
    told = command("inspect", "log", "1", "--data", data, "--json", "--limit", 5)
    assert [line["entry_id"] for line in told.json] == list(range(5))
    assert command("inspect", "log", "9", "--data", data).code == Exit.FAILED


def test_inspect_log_tells_of_damage(command: Command, data: Path) -> None:
    (path,) = data.glob("ledgers/*.log")
    offset = damage(path, 4)
    told = command("inspect", "log", "1", "--data", data)
    assert told.code == Exit.FAILED
    assert f"damaged: {path} at offset {offset}" in told.err


def test_inspect_ledger_shows_what_is_flushed_and_what_is_not(command: Command, data: Path) -> None:
    told = command("inspect", "ledger", "--data", data, "--json")
    (facts,) = told.json
    assert told.code == Exit.DONE
    assert (facts["entries"], facts["unflushed"]) == (FLUSHED, ENTRIES - FLUSHED)
    assert (facts["first_entry"], facts["last_entry"]) == (0, ENTRIES - 1)
    assert facts["fenced"] is True
    assert facts["key"] == v2.KEY.hex()
    assert command("inspect", "ledger", 99, "--data", data).code == Exit.FAILED


def test_inspect_index_sums_up_and_lists(command: Command, data: Path) -> None:
    (row,) = command("inspect", "index", "--data", data, "--json").json
    assert row["entries"] == FLUSHED
    (extent,) = command("inspect", "index", "1", "--data", data, "--json").json
    assert (extent["first_entry"], extent["last_entry"]) == (0, FLUSHED - 1)


def test_inspect_index_tells_of_damage(command: Command, data: Path) -> None:
    (path,) = data.glob("ledgers/*.index")
    content = bytearray(path.read_bytes())
    content[4096 + 70] ^= 1
    path.write_bytes(content)
    told = command("inspect", "index", "--data", data)
    assert told.code == Exit.FAILED
    assert str(path) in told.err


@pytest.mark.parametrize("entry_id", [0, FLUSHED - 1, FLUSHED, ENTRIES - 1])
def test_inspect_entry_shows_header_digest_and_payload(
    command: Command, data: Path, entry_id: int
) -> None:
    told = command("inspect", "entry", LEDGER, entry_id, "--data", data)
    assert told.code == Exit.DONE, told.err
    assert "right" in told.out
    assert "|hello|" in told.out
    assert ("log 00000001" if entry_id < FLUSHED else "journal") in told.out
    assert command("inspect", "entry", LEDGER, entry_id, "--data", data, "--raw").out == "hello"


def test_inspect_entry_tells_a_wrong_digest(command: Command, data: Path) -> None:
    told = command("inspect", "entry", LEDGER, 0, "--data", data, "--digest", "crc32")
    assert told.code == Exit.FAILED
    assert "WRONG" in told.out


def test_inspect_entry_fails_when_it_is_not_there(command: Command, data: Path) -> None:
    told = command("inspect", "entry", LEDGER, ENTRIES, "--data", data)
    assert told.code == Exit.FAILED
    assert "not on this bookie" in told.err


def test_inspect_entry_tells_of_damage_instead_of_absence(command: Command, data: Path) -> None:
    (path,) = data.glob("ledgers/*.log")
    offset = damage(path, 4)
    told = command("inspect", "entry", LEDGER, 4, "--data", data)
    assert told.code == Exit.FAILED
    assert f"damaged: {path} at offset {offset}" in told.err


def test_inspect_works_while_the_folder_is_held(command: Command, data: Path) -> None:
    with hold_folders(rig.settings(data)):
        assert command("inspect", "ledger", "--data", data).code == Exit.DONE
