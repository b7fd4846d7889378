from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from command import Command

import bookie.command_line
from bookie.commands.outcome import conclude
from metadata.outcome import Exit

COMMANDS: Sequence[Sequence[str]] = [
    [],
    *([name] for name in bookie.command_line.bookie.commands),
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
        (["format", "--data", "d", "--metadata", "zk:///quire"], "has no address"),
        (["replace", "--data", "d", "--metadata", "bookie://a"], "names bookies"),
        (["decommission", "b1", "--cluster", "nonsense"], "is not the URL"),
        (["decommission", "b1", "--cluster", "nonsense", "--cancel"], "is not the URL"),
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
        os._exit(conclude(bookie.command_line.bookie, ["config"]))
    os.close(write_end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == Exit.DONE


@pytest.mark.parametrize(
    "words",
    [["gc", "--cluster", "bookie://127.0.0.1:1"], ["inspect", "mark", "--address", "127.0.0.1:1"]],
)
def test_a_bookie_that_cannot_be_reached_is_told(command: Command, words: Sequence[str]) -> None:
    told = command(*words)
    assert told.code == Exit.UNREACHABLE
    *waits, line = told.err.splitlines()
    assert "127.0.0.1:1" in line
    assert len(waits) <= 1
    assert all(each.startswith("waiting for the cluster") for each in waits), "after two seconds"
