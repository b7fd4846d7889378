"""The settings of a topic on the command line, shared by ``create`` and ``alter``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import click
import msgspec

from ledger_client.commands.moment import Length
from ledger_client.commands.size import Size
from ledger_client.topics.errors import BadSchema
from ledger_client.topics.values.kinds import ProtobufDefinition, is_decoded
from metadata.topics import PARTITIONS_MAX, Retention, RollPolicy, Schema

Command = Callable[..., None]
Option = tuple[tuple[str, ...], dict[str, object]]
"""An option's names, and what click is told of it."""
R = TypeVar("R", bound=msgspec.Struct)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was given; None: it was not."""

    partitions: int | None = None
    replication: int | None = None
    ack_quorum: int | None = None
    compression: Literal["none", "zstd", "lz4"] | None = None
    roll_size: int | None = None
    roll_entries: int | None = None
    roll_age: float | None = None
    roll_age_min: float | None = None
    retention_age: float | None = None
    retention_size: int | None = None
    schema: Literal["bytes", "string", "json", "avro", "protobuf"] | None = None
    schema_file: Path | None = None
    schema_message: str | None = None
    properties: tuple[str, ...] = ()

    def roll(self, now: RollPolicy) -> RollPolicy:
        """Return when ledgers roll, given how it is *now*."""
        return _replaced(
            now,
            size=self.roll_size,
            entries=self.roll_entries,
            age_s=self.roll_age,
            age_min_s=self.roll_age_min,
        )

    def retention(self, now: Retention) -> Retention:
        """Return how long ledgers stay, given how it is *now*."""
        return _replaced(now, age_s=self.retention_age, size=self.retention_size)

    def schema_after(self, now: Schema) -> Schema:
        """Return the schema, given how it is *now*.

        Raises:
            click.UsageError: it is of kind avro or protobuf, and its definition cannot be used.
            SchemaPackageMissing: a package for that kind is missing.
        """
        kind = self.schema or now.kind
        if (kind == "protobuf" and self.schema_file is not None) != bool(self.schema_message):
            raise click.UsageError(
                "a protobuf schema is a --schema-file that `protoc --include_imports "
                "--descriptor_set_out` wrote, and a --schema-message that names its message"
            )
        found = _replaced(now, kind=kind, definition=self._definition(kind))
        if self.schema_file is not None and is_decoded(found):
            from ledger_client.topics.values.decoder import open_decoder  # it takes pyarrow

            try:
                open_decoder(str(self.schema_file), found)
            except BadSchema as wrong:
                raise click.UsageError(str(wrong).removeprefix("topic ")) from wrong
        return found

    def _definition(self, kind: str) -> str | None:
        if self.schema_file is None:
            return None
        if kind == "protobuf":
            descriptors = self.schema_file.read_bytes()
            return ProtobufDefinition.of(descriptors, self.schema_message or "").encode()
        try:
            return self.schema_file.read_text()
        except UnicodeDecodeError as wrong:
            raise click.UsageError(f"{self.schema_file} is no text") from wrong

    def properties_after(self, now: dict[str, str]) -> dict[str, str]:
        """Return the properties: K=V sets one, K= removes it."""
        pairs = [text.partition("=") for text in self.properties]
        if any(not name or not equals for name, equals, _ in pairs):
            raise click.UsageError("a property is written KEY=VALUE; KEY= removes it")
        changed = now | {name: value for name, _, value in pairs}
        return {name: value for name, value in changed.items() if value}


def _replaced(now: R, **changes: object) -> R:
    given = {name: value for name, value in changes.items() if value is not None}
    return msgspec.structs.replace(now, **given)


_OPTIONS: tuple[Option, ...] = (
    (
        ("--partitions",),
        {
            "type": click.IntRange(0, PARTITIONS_MAX),
            "show_default": "0: not partitioned",
            "help": "How many partitions; there can become more, never fewer.",
        },
    ),
    (
        ("--replication",),
        {
            "type": click.IntRange(1, 64),
            "show_default": "2, in a cluster of one bookie 1",
            "help": "Copies of each message, on different bookies.",
        },
    ),
    (
        ("--ack-quorum",),
        {
            "type": click.IntRange(1, 64),
            "show_default": "more than half of the copies",
            "help": "Copies that are durable before a message is acknowledged.",
        },
    ),
    (
        ("--compression",),
        {
            "type": click.Choice(["none", "zstd", "lz4"]),
            "show_default": "none",
            "help": "Of batches, where a producer says nothing else.",
        },
    ),
    (
        ("--roll-size",),
        {
            "type": Size(),
            "metavar": "SIZE",
            "show_default": "100MB",
            "help": "A lane goes on in its next ledger after so many bytes.",
        },
    ),
    (
        ("--roll-entries",),
        {
            "type": click.IntRange(0),
            "metavar": "COUNT",
            "show_default": "0: no limit",
            "help": "The same after so many entries (batches).",
        },
    ),
    (
        ("--roll-age",),
        {
            "type": Length(),
            "metavar": "TIME",
            "show_default": "4h; 0: no limit",
            "help": "The same after so long, if there is anything in it.",
        },
    ),
    (
        ("--roll-age-min",),
        {
            "type": Length(),
            "metavar": "TIME",
            "show_default": "0",
            "help": "Not before so long, whatever the other limits.",
        },
    ),
    (
        ("--retention-age",),
        {
            "type": Length(unlimited=True),
            "metavar": "TIME",
            "show_default": "7d; -1: no limit",
            "help": "A closed ledger is removed when it is older.",
        },
    ),
    (
        ("--retention-size",),
        {
            "type": Size(unlimited=True),
            "metavar": "SIZE",
            "show_default": "-1: no limit",
            "help": "The oldest are removed when a partition has more bytes in closed ledgers.",
        },
    ),
    (
        ("--schema",),
        {
            "type": click.Choice(["bytes", "string", "json", "avro", "protobuf"]),
            "show_default": "bytes",
            "help": "What the values are, for who reads them.",
        },
    ),
    (
        ("--schema-file",),
        {
            "type": click.Path(exists=True, dir_okay=False, path_type=Path),
            "metavar": "FILE",
            "help": "The schema's definition: a JSON Schema, an Avro schema, or a descriptor set "
            "of protoc. Its fields are columns in Spark; of the last two, in `quire read` too.",
        },
    ),
    (
        ("--schema-message",),
        {
            "metavar": "NAME",
            "help": "The message of a protobuf schema, with its package: shop.Order.",
        },
    ),
    (
        (
            "--property",
            "properties",
        ),
        {
            "multiple": True,
            "metavar": "KEY=VALUE",
            "help": "Kept with the topic, for the application; may be repeated.",
        },
    ),
)


def settings(command: Command) -> Command:
    """Add the options of a new topic's settings; the command gets them as *given*."""
    return _with_options(command, _OPTIONS)


def changes(command: Command) -> Command:
    """Add the options of a topic's settings that are to be altered, as *given*."""
    return _with_options(command, _OPTIONS, told=False)


def _with_options(command: Command, all_options: Sequence[Option], *, told: bool = True) -> Command:
    @functools.wraps(command)
    def collect(**arguments: object) -> None:
        fields = {field: arguments.pop(field) for field in Settings.__struct_fields__}
        command(given=msgspec.convert(fields, Settings), **arguments)

    decorated: Command = collect
    for names, fields in reversed(all_options):
        shown = fields if told else fields | {"show_default": False}
        decorated = click.option(*names, **shown)(decorated)  # type: ignore[arg-type]
    return decorated


name = click.argument("name", metavar="NAMESPACE/NAME")
