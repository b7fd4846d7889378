from __future__ import annotations

import click
import pytest

from ledger_client.__main__ import quire
from ledger_client.commands.size import Size


def test_sizes_have_units_of_thousands_and_of_two() -> None:
    texts = ("7", "7B", "2KB", "2KiB", "3 gib", "1tb")
    sizes = [Size().convert(text, None, None) for text in texts]
    assert sizes == [7, 7, 2000, 2048, 3 << 30, 10**12]
    assert [Size(unlimited=True).convert(text, None, None) for text in ("-1", "unlimited")] == [
        -1,
        -1,
    ]


@pytest.mark.parametrize("text", ["", "KB", "-1", "unlimited", "1.5MB", "7 bits", "9" * 19])
def test_what_is_no_size_is_told_with_what_is_one(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is no size; write 4096, 100MB, 64KiB$"):
        Size().convert(text, None, None)


def sizes_of(command: click.Command, path: str = "") -> dict[str, Size]:
    """Every parameter of a command and of those below that is a number of bytes."""
    if isinstance(command, click.Group):
        found: dict[str, Size] = {}
        context = click.Context(command)
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            assert each is not None
            found |= sizes_of(each, f"{path} {name}")
        return found
    return {
        f"{path} {option.opts[0]}".strip(): option.type
        for option in command.params
        if isinstance(option.type, Size)
    }


def test_every_size_on_the_command_line_takes_the_same_units() -> None:
    found = sizes_of(quire)
    assert {"replay --file-size", "topic create --roll-size", "bench append --floor-bytes"} <= set(
        found
    )
    assert {each.convert("100KB", None, None) for each in found.values()} == {100_000}
    unlimited = {name for name, kind in found.items() if kind._unlimited}
    assert unlimited == {"topic create --retention-size", "topic alter --retention-size"}
