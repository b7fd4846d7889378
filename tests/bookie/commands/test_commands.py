"""The commands that end by themselves, run in this process over real files."""

from __future__ import annotations

import io
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import rig
import v2
from engines import Bookie

import bookie.__main__
from bookie.commands.outcome import Exit, conclude
from bookie.config import load_config
from bookie.cookie_file import read_cookie
from bookie.lock import hold_folders
from bookie.mark import write_mark
from native.digest import Digest
from native.store import scan_log

LEDGER = 5
ENTRIES = 30
FLUSHED = 20


class Told(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> list[dict[str, object]]:
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


class Command:
    """Runs ``bookie`` as a shell would, without a process of its own."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *words: str | Path | int) -> Told:
        code = conclude(bookie.__main__.bookie, [str(word) for word in words])
        out, err = self._capture.readouterr()
        return Told(code, out, err)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def stored(entry_id: int) -> bytes:
    header = b"".join(map(v2.int64, (LEDGER, entry_id, entry_id - 1, 5 * entry_id + 5)))
    payload = b"hello"
    return header + Digest().compute(header, payload) + payload


def frames(first: int, end: int) -> bytes:
    bodies = (v2.KEY + stored(entry_id) for entry_id in range(first, end))
    return b"".join(v2.frame(v2.ADD, body) for body in bodies)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A bookie's folder: entries in a log, later ones in the journal only."""
    filled = Bookie(tmp_path)
    filled.send(frames(0, FLUSHED))
    filled.engine.commit()
    filled.checkpoint()
    filled.send(frames(FLUSHED, ENTRIES))
    filled.engine.fence(LEDGER, v2.KEY)
    filled.engine.commit()
    filled.close()
    assert filled.mark is not None
    write_mark(filled.ledger_folder, filled.mark, None)
    return tmp_path


# --- outcome and options --------------------------------------------------------------------

COMMANDS: Sequence[Sequence[str]] = [
    [],
    *([name] for name in bookie.__main__.bookie.commands),
    *(["inspect", name] for name in ("mark", "journal", "log", "ledger", "entry", "index")),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: Command, words: Sequence[str]) -> None:
    told = command(*words, "--help")
    assert told.code == Exit.DONE
    assert told.out.startswith("Usage: bookie")
    assert len(told.out.splitlines()) > 8


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["rum"], "No such command"),
        (["config", "--nonsense"], "No such option"),
        (["config", "--effective", "--data", "d", "--set", "port"], "KEY=VALUE"),
        (["config", "--effective", "--data", "d", "--set", "prot=1"], 'did you mean "port"'),
        (["config", "--effective"], "--data DIR"),
        (["inspect", "mark"], "--data DIR"),
        (["inspect", "mark", "--data", "/nowhere"], "/nowhere/journal is not there"),
        (["inspect", "mark", "--data", "d", "--address", "h:1"], "exclude each other"),
        (["inspect", "mark", "--address", "h:x"], "--address"),
        (["format", "--data", "d", "--force", "--moved"], "exclude each other"),
        (["standalone"], "--data"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(
    command: Command, words: Sequence[str], problem: str
) -> None:
    told = command(*words)
    assert told.code == Exit.USAGE
    assert told.out == ""
    assert problem in told.err
    assert told.err.count("\n") == 1


def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    child = os.fork()
    if child == 0:
        os.dup2(write_end, 1)
        os._exit(conclude(bookie.__main__.bookie, ["config"]))
    os.close(write_end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == Exit.DONE


@pytest.mark.parametrize(
    "words",
    [["gc", "--cluster", "bookie://127.0.0.1:1"], ["inspect", "mark", "--address", "127.0.0.1:1"]],
)
def test_a_bookie_that_cannot_be_reached_is_told(command: Command, words: Sequence[str]) -> None:
    told = command(*words)
    assert told.code == Exit.UNREACHABLE
    assert "127.0.0.1:1" in told.err
    assert told.err.count("\n") == 1


# --- config -------------------------------------------------------------------------


def test_config_prints_a_file_that_can_be_used(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "bookie.toml"
    path.write_text(command("config").out)
    assert tomllib.loads(path.read_text())["port"] == 3181
    told = command("config", "--effective", "--config", path, "--data", tmp_path, "--set", "port=7")
    assert told.code == Exit.DONE
    shown = msgspec.json.decode(told.out)
    expected = load_config(path, {"data_folder": str(tmp_path), "port": 7})
    assert shown == msgspec.structs.asdict(expected)


# --- format ---------------------------------------------------------------------------


def test_format_makes_a_bookie(command: Command, tmp_path: Path) -> None:
    told = command("format", "--data", tmp_path, "--bookie-id", "b7", "--json")
    assert told.code == Exit.DONE
    assert told.json[0]["bookie_id"] == "b7"
    assert read_cookie(tmp_path / "journal").complete


def test_format_leaves_a_bookie_that_is_there_alone(command: Command, tmp_path: Path) -> None:
    command("format", "--data", tmp_path)
    told = command("format", "--data", tmp_path)
    assert told.code == Exit.FAILED
    assert "--force" in told.err


def test_format_by_force_deletes_entries_and_keeps_the_name(command: Command, data: Path) -> None:
    command("format", "--data", data / "x", "--bookie-id", "b7")
    for folder in ("journal", "ledgers"):
        (data / "x" / folder / "cookie.json").rename(data / folder / "cookie.json")
    before = read_cookie(data / "journal")
    told = command("format", "--data", data, "--force", "--yes", "--json")
    assert told.code == Exit.DONE, told.err
    wiped = told.json[0]["wiped"]
    assert isinstance(wiped, dict)
    assert wiped["files"] > 3
    after = read_cookie(data / "journal")
    assert after.bookie_id == before.bookie_id == "b7"
    assert after.cookie_id != before.cookie_id
    names = {path.name for path in (data / "ledgers").iterdir()}
    assert names == {"lock", "cookie.json"}


def test_format_by_force_spares_files_that_are_not_a_bookies(command: Command, data: Path) -> None:
    (data / "ledgers/thesis.odt").write_text("three years")
    before = sorted(data.rglob("*"))
    told = command("format", "--data", data, "--force", "--yes")
    assert told.code == Exit.FAILED
    assert "thesis.odt" in told.err
    left = [path for path in sorted(data.rglob("*")) if "metadata" not in path.name]
    assert [path for path in left if path.name != "lock"] == before


def test_format_asks_before_it_deletes(
    command: Command, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    told = command("format", "--data", data, "--force")
    assert told.code == Exit.INTERRUPTED
    assert "Delete them?" in told.err
    assert any((data / "ledgers").glob("*.log"))


def test_format_waits_for_nobody(command: Command, tmp_path: Path) -> None:
    with hold_folders(rig.settings(tmp_path)):
        told = command("format", "--data", tmp_path, "--force", "--yes")
    assert told.code == Exit.FAILED
    assert "in use by another process" in told.err


def test_format_accepts_a_move(command: Command, tmp_path: Path) -> None:
    command("format", "--data", tmp_path / "here", "--bookie-id", "b7")
    (tmp_path / "here").rename(tmp_path / "there")
    told = command("format", "--data", tmp_path / "there", "--moved")
    assert told.code == Exit.DONE, told.err
    assert read_cookie(tmp_path / "there/journal").journal_folder == f"{tmp_path}/there/journal"


# --- inspect ------------------------------------------------------------------------------


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


def damage(path: Path, entry_id: int) -> int:
    """Flip a bit of the entry's record; return the record's offset."""
    record = next(each for each in scan_log(path) if getattr(each, "entry_id", -1) == entry_id)
    content = bytearray(path.read_bytes())
    content[record.offset + 20] ^= 1
    path.write_bytes(content)
    return record.offset


# --- rebuild-index --------------------------------------------------------------------------


def test_rebuild_index_says_what_it_did(command: Command, data: Path) -> None:
    (data / "ledgers/lastMark").unlink()
    told = command("rebuild-index", "--data", data)
    assert told.code == Exit.DONE, told.err
    assert "indexed 20 entries in 1 entry log" in told.out
    assert "fenced 1 ledger" in told.out
    assert command("inspect", "mark", "--data", data).code == Exit.DONE


def test_rebuild_index_fails_after_damage_and_is_done_all_the_same(
    command: Command, data: Path
) -> None:
    (path,) = data.glob("ledgers/*.log")
    damage(path, 4)
    told = command("rebuild-index", "--data", data, "--json")
    assert told.code == Exit.FAILED
    assert told.json[0]["limbo"] is True
    assert command("inspect", "mark", "--data", data).code == Exit.DONE


def test_rebuild_index_refuses_while_the_bookie_runs(command: Command, data: Path) -> None:
    with hold_folders(rig.settings(data)):
        told = command("rebuild-index", "--data", data)
    assert told.code == Exit.FAILED
    assert "in use by another process" in told.err


def test_rebuild_index_refuses_a_folder_that_is_no_bookies(
    command: Command, tmp_path: Path
) -> None:
    assert command("rebuild-index", "--data", tmp_path / "none").code == Exit.FAILED
