"""Commands that are imported when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from ledger_client.__main__ import quire
from ledger_client.commands import DeferredGroup
from ledger_client.commands.outcome import conclude
from metadata.outcome import Exit

OTHERS = """
import sys
from ledger_client.__main__ import quire
quire.get_command(None, "topic").get_command(None, "list")
print([name for name in sys.modules if name.startswith("ledger_client.commands.bench")])
"""


def below(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    """A command and all below, with the words that lead there."""
    found = [(path, command)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            assert each is not None
            found += below(each, f"{path} {name}")
    return found


def test_every_command_is_found_under_its_own_name() -> None:
    found = below(quire, "quire")
    assert len(found) > 40
    assert all(command.name == path.rpartition(" ")[2] for path, command in found)


def test_no_help_shows_the_mark_that_keeps_its_lines() -> None:
    for path, command in below(quire, "quire"):
        assert "\\b" not in command.get_help(click.Context(command, info_name=path)), path


def test_there_is_no_other() -> None:
    assert quire.get_command(click.Context(quire), "topics") is None


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["topics", "list"], "Did you mean 'topic'?"),
        (["porduce", "s/t"], "Did you mean 'produce'?"),
        (["topic", "crate"], "Did you mean 'create'?"),
        (["xyzzy"], "No such command 'xyzzy'."),
    ],
)
def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conclude(quire, words) == Exit.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert meant in line
    assert ("Did you mean" in line) == ("Did you mean" in meant)


def test_a_place_that_holds_no_command_is_our_own_mistake() -> None:
    group = DeferredGroup(places={"x": "ledger_client.commands.options:SizeParam"})
    with pytest.raises(AssertionError):
        group.get_command(click.Context(group), "x")


def test_a_command_does_not_import_the_others() -> None:
    done = subprocess.run([sys.executable, "-c", OTHERS], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
