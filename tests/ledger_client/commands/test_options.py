from __future__ import annotations

from pathlib import Path

import click
import msgspec
import pytest

from ledger_client.__main__ import quire
from ledger_client.commands import options
from ledger_client.commands.options import (
    DurationParam,
    FieldOption,
    NewLedger,
    Quorums,
    SizeParam,
    duration_text,
    field_text,
    size_text,
)
from ledger_client.commands.outcome import conclude
from ledger_client.commands.replay import replay
from ledger_client.errors import BadTopic
from ledger_client.jobs.replay.options import ReplayOptions
from ledger_client.topics.producing.producer_options import ProducerOptions
from ledger_client.topics.reading.options import ReadOptions
from ledger_client.wire.stores import timeout_of_calls_s
from metadata.outcome import Exit
from metadata.topics import Retention, RollPolicy, Schema, TopicRecord


def test_sizes_have_units_of_thousands_and_of_two() -> None:
    texts = ("7", "7B", "2KB", "2KiB", "3 gib", "1tb")
    sizes = [SizeParam().convert(text, None, None) for text in texts]
    assert sizes == [7, 7, 2000, 2048, 3 << 30, 10**12]
    assert [
        SizeParam(unlimited=True).convert(text, None, None) for text in ("-1", "unlimited")
    ] == [
        -1,
        -1,
    ]


@pytest.mark.parametrize("text", ["", "KB", "-1", "unlimited", "1.5MB", "7 bits", "9" * 19])
def test_the_refusal_of_a_size_shows_valid_ones(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is not a size; write 4096, 100MB or 64KiB$"):
        SizeParam().convert(text, None, None)


def parameters(command: click.Command, path: str = "") -> dict[str, click.Parameter]:
    """Every option of a command and of those below, by the words that lead there."""
    if isinstance(command, click.Group):
        found: dict[str, click.Parameter] = {}
        context = click.Context(command)
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            assert each is not None
            found |= parameters(each, f"{path} {name}")
        return found
    return {f"{path} {each.opts[0]}".strip(): each for each in command.params}


def sizes_of(command: click.Command) -> dict[str, SizeParam]:
    """Those that are a number of bytes."""
    found = parameters(command)
    return {name: each.type for name, each in found.items() if isinstance(each.type, SizeParam)}


def test_every_size_on_the_command_line_takes_the_same_units() -> None:
    found = sizes_of(quire)
    assert {"replay --file-size", "topic create --roll-size", "bench append --floor-bytes"} <= set(
        found
    )
    assert {each.convert("100KB", None, None) for each in found.values()} == {100_000}
    unlimited = {name for name, kind in found.items() if kind._unlimited}
    assert unlimited == {"topic create --retention-size", "topic alter --retention-size"}


STRUCTS = {
    "topic create": (TopicRecord, RollPolicy, Retention, Schema),
    "topic alter": (TopicRecord, RollPolicy, Retention, Schema),
    "produce": (ProducerOptions,),
    "read": (ReadOptions,),
    "replay": (ReplayOptions,),
}
"""The structs that a command fills."""


def test_an_option_that_fills_a_field_is_made_of_it() -> None:
    found = parameters(quire)
    for path, structs in STRUCTS.items():
        fields = {field for struct in structs for field in struct.__struct_fields__}
        made = {
            each.field
            for name, each in found.items()
            if name.startswith(f"{path} --") and isinstance(each, FieldOption)
        }
        named = {
            str(each.name)
            for name, each in found.items()
            if name.startswith(f"{path} --") and each.name in fields
        }
        assert made
        assert named - {"schema"} <= made


def test_text_and_default_of_such_an_option_are_those_of_the_field() -> None:
    made = {name: each for name, each in parameters(quire).items() if isinstance(each, FieldOption)}
    assert len(made) > 30
    for name, each in made.items():
        [default] = [
            one.default for one in msgspec.structs.fields(each.struct) if one.name == each.field
        ]
        assert each.help is not None
        assert each.help.startswith(field_text(each.struct, each.field)), name
        if each.default_text:
            assert each.type.convert(each.default_text, None, None) == default, name
        if not name.startswith("topic ") and each.default_text:
            assert each.default == default, name


def test_help_shows_a_default_as_it_is_written() -> None:
    found = parameters(quire)
    for name, text in {
        "topic create --roll-size": "100MB",
        "topic create --retention-age": "7d",
        "topic create --roll-entries": "0",
        "read --order": "arrival",
        "replay --speed": "0",
    }.items():
        option = found[name]
        assert isinstance(option, FieldOption)
        assert option.get_help_extra(click.Context(quire))["default"] == text
    altered = found["topic alter --roll-size"]
    assert isinstance(altered, FieldOption)
    assert "default" not in altered.get_help_extra(click.Context(quire))


@pytest.mark.parametrize("size", [1, 7, 1000, 1024, 100_000_000, 64 << 10, 3 << 40, 10**12])
def test_a_size_is_read_as_it_is_written(size: int) -> None:
    assert SizeParam().convert(size_text(size), None, None) == size


@pytest.mark.parametrize("seconds", [0.0, 0.25, 90.0, 3600.0, 14_400.0, 604_800.0])
def test_a_duration_is_read_as_it_is_written(seconds: float) -> None:
    assert DurationParam().convert(duration_text(seconds), None, None) == seconds


def test_a_command_gives_up_after_the_time_that_it_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[float] = []

    @click.command()
    @options.cluster
    def look(*, cluster: str) -> None:
        del cluster
        seen.append(timeout_of_calls_s.get())

    for words in ([], ["--timeout", "2s"], []):
        assert conclude(look, words) == Exit.DONE
    assert seen == [10.0, 2.0, 10.0], "it lasts for one command"
    for words in (["--timeout", "11s"], ["--timeout", "0"]):
        assert conclude(look, words) == Exit.USAGE
        assert "it may be 0.5s to 10s" in capsys.readouterr().err


def test_a_cluster_in_a_file_that_is_not_there_is_refused_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    @options.cluster
    def look(*, cluster: str) -> None:
        raise AssertionError(cluster)

    path = tmp_path / "metadata.db"
    assert conclude(look, ["--cluster", f"sqlite://{path}"]) == Exit.USAGE
    assert f"there is no metadata store at {path}" in capsys.readouterr().err
    to = ["a/b", "--to", "a/c", "--to-cluster", f"sqlite://{path}"]
    assert conclude(replay, to) == Exit.USAGE
    assert f"there is no metadata store at {path}" in capsys.readouterr().err
    assert not path.exists()


def test_a_cluster_in_a_file_that_cannot_be_looked_at_is_left_to_who_opens_it(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    @click.command()
    @options.cluster
    def look(*, cluster: str) -> None:
        asked.append(cluster)

    (tmp_path / "file").touch()
    url = f"sqlite://{tmp_path}/file/metadata.db"  # Not a directory
    assert conclude(look, ["--cluster", url]) == Exit.DONE
    assert asked == [url]


def test_a_password_that_is_no_text_is_the_bytes_of_the_shell() -> None:
    """Python passes a byte that is not UTF-8 as a surrogate, which no encoding takes."""
    found = {name: each for name, each in parameters(quire).items() if "--password" in each.opts}
    assert len(found) >= 5
    for each in found.values():
        value = each.type_cast_value(click.Context(quire), "\udcff\xe4")
        assert value == b"\xff\xc3\xa4"
    assert NewLedger(quorums=Quorums(1, 1, 1)).password == b""


def test_a_producers_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadTopic, match="cannot be printed"):
        ProducerOptions(producer_name="\udcff").check(TopicRecord(name="s/t", uid=1))
