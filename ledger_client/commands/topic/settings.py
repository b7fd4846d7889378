"""``quire topic create`` and ``alter``, and the settings that both take."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.outcome import finish
from ledger_client.errors import BadSchema
from ledger_client.topics.catalogue import REPLICATION, Alteration, TopicInfo
from ledger_client.topics.topics import ONE_COPY
from ledger_client.topics.values.kinds import PACKAGES, ProtobufDefinition
from metadata.topics import Retention, RollPolicy, Schema, TopicRecord

Command = Callable[..., None]
R = TypeVar("R", bound=msgspec.Struct)


class GivenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings on the command line; `None` for those that were not given."""

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

    def alteration(self, now: TopicRecord) -> Alteration:
        """Return the given changes to a topic that is so *now*.

        Settings come in groups: what was not given of a group stays as it is now, whoever
        changed it since the command began.

        Raises:
            click.UsageError: the schema or a property is not possible.
            BadSchema: the package for the schema's kind is not installed.
        """
        return Alteration(
            partitions=self.partitions,
            replication=self.replication,
            ack_quorum=self.ack_quorum,
            compression=self.compression,
            roll=self.roll(now.roll),
            retention=self.retention(now.retention),
            schema=self.schema_after(now.name, now.schema),
            properties=self.properties_after(now.properties),
        )

    def roll(self, now: RollPolicy) -> RollPolicy:
        """Return *now* with the given changes."""
        return _replaced(
            now,
            size=self.roll_size,
            entries=self.roll_entries,
            age_s=self.roll_age,
            age_min_s=self.roll_age_min,
        )

    def retention(self, now: Retention) -> Retention:
        """Return *now* with the given changes."""
        return _replaced(now, age_s=self.retention_age, size=self.retention_size)

    def schema_after(self, topic: str, now: Schema) -> Schema:
        """Return *now* with the given changes.

        Raises:
            click.UsageError: the definition is missing or unusable.
            BadSchema: the package for that kind is not installed.
        """
        kind = self.schema or now.kind
        if (kind == "protobuf" and self.schema_file is not None) != bool(self.schema_message):
            raise click.UsageError(
                "a protobuf schema needs a --schema-file written by `protoc --include_imports "
                "--descriptor_set_out`, and the --schema-message in it"
            )
        found = _replaced(now, kind=kind, definition=self._definition(kind))
        if self.schema_file is not None:
            self._check_file(self.schema_file, topic, found)
        elif self.schema in PACKAGES and not found.definition:
            raise click.UsageError(f"a schema of kind {kind} needs its definition: --schema-file")
        elif found != now:  # a definition that is kept under another kind
            _check_schema(topic, found)
        return found

    def _check_file(self, file: Path, topic: str, found: Schema) -> None:
        if not found.definition.strip():
            raise click.UsageError(f"{file}: it is empty; a definition of a schema is needed")
        try:
            _check_schema(topic, found)
        except BadSchema as wrong:
            if wrong.package is not None:
                raise
            raise click.UsageError(f"{file}: {wrong.reason}") from wrong

    def _definition(self, kind: str) -> str | None:
        if self.schema_file is None:
            return None
        if kind == "protobuf":
            descriptors = self.schema_file.read_bytes()
            return ProtobufDefinition.of(descriptors, self.schema_message or "").encode()
        try:
            return self.schema_file.read_text()
        except UnicodeDecodeError as wrong:
            raise click.UsageError(f"{self.schema_file} is not a text file") from wrong

    def properties_after(self, now: dict[str, str]) -> dict[str, str]:
        """Return *now* with the given changes: K=V sets a property, K= removes it."""
        pairs = [text.partition("=") for text in self.properties]
        if any(not name or not equals for name, equals, _ in pairs):
            raise click.UsageError("a property is written KEY=VALUE; KEY= removes it")
        changed = now | {name: value for name, _, value in pairs}
        return {name: value for name, value in changed.items() if value}


def _check_schema(topic: str, schema: Schema) -> None:
    from ledger_client.topics.values.definitions import check_schema  # imports pyarrow

    check_schema(topic, schema)


def _replaced(now: R, **changes: object) -> R:
    given = {name: value for name, value in changes.items() if value is not None}
    return msgspec.structs.replace(now, **given)


option = partial(partial, options.field_option, default=None)
SettingOption = Callable[..., Callable[[Command], Command]]

_OPTIONS: tuple[SettingOption, ...] = (
    option(TopicRecord, "partitions", "--partitions"),
    option(
        TopicRecord,
        "replication",
        "--replication",
        show_default="2; 1 in a cluster of one bookie",
    ),
    option(TopicRecord, "ack_quorum", "--ack-quorum", show_default="more than half of the copies"),
    option(TopicRecord, "compression", "--compression"),
    option(RollPolicy, "size", "--roll-size", "roll_size"),
    option(RollPolicy, "entries", "--roll-entries", "roll_entries", metavar="COUNT"),
    option(RollPolicy, "age_s", "--roll-age", "roll_age"),
    option(RollPolicy, "age_min_s", "--roll-age-min", "roll_age_min"),
    option(Retention, "age_s", "--retention-age", "retention_age"),
    option(Retention, "size", "--retention-size", "retention_size"),
    option(Schema, "kind", "--schema", "schema"),
    partial(
        click.option,
        "--schema-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Definition of the schema: a JSON Schema, an Avro schema, or a descriptor set of "
        "protoc. Spark shows its fields as columns, and so does `quire read` for the latter two.",
    ),
    partial(
        click.option,
        "--schema-message",
        metavar="NAME",
        help="Message of a protobuf schema, with its package: shop.Order.",
    ),
    option(
        TopicRecord,
        "properties",
        "--property",
        "properties",
        multiple=True,
        show_default=False,
        metavar="KEY=VALUE",
    ),
)
"""Partials of decorators: the defaults are shown for a new topic only."""


def settings(command: Command) -> Command:
    """Add options for the settings of a new topic, which arrive as *given*."""
    return _with_options(command)


def changes(command: Command) -> Command:
    """Add options for changes to a topic's settings, which arrive as *given*."""
    return _with_options(command, defaults=False)


def _with_options(command: Command, *, defaults: bool = True) -> Command:
    @functools.wraps(command)
    def collect(**arguments: object) -> None:
        fields = {field: arguments.pop(field) for field in GivenSettings.__struct_fields__}
        command(given=msgspec.convert(fields, GivenSettings), **arguments)

    decorated: Command = collect
    for each in reversed(_OPTIONS):
        decorated = (each() if defaults else each(show_default=False))(decorated)
    return decorated


# --- Create -----------------------------------------------------------------------------


Order = Literal["none", "event-time"]


@click.command()
@options.topic
@settings
@options.field_option(TopicRecord, "order", "--order")
@options.field_option(TopicRecord, "timesync", "--timesync", is_flag=True)
@options.cluster
@options.as_json
def create(
    *, name: str, given: GivenSettings, order: Order, timesync: bool, cluster: str, as_json: bool
) -> None:
    """Create a topic and print its name.

    Messages get two copies; in a cluster of one bookie one, with a warning. If so many bookies
    are down that two copies do not fit, wait, or use --replication 1. Like every change of a
    topic, its creation is an event in the topic __events of its namespace.
    """
    made = trio.run(finish, partial(_create, cluster, name, order, timesync, given))
    if not as_json:
        click.echo(made.name)
        return
    fields = msgspec.to_builtins(made)
    if given.replication is None and made.replication < REPLICATION:
        fields["warning"] = ONE_COPY
    click.echo(msgspec.json.encode(fields).decode())


async def _create(
    cluster: str, name: str, order: Order, timesync: bool, given: GivenSettings
) -> TopicInfo:
    async with connect(cluster) as client:
        return await client.topics.create(
            name,
            given.partitions or 0,
            replication=given.replication,
            ack_quorum=given.ack_quorum,
            order=order,
            timesync=timesync,
            compression=given.compression or "none",
            roll=given.roll(RollPolicy()),
            retention=given.retention(Retention()),
            schema=given.schema_after(name, Schema()),
            properties=given.properties_after({}),
        )


# --- Alter ------------------------------------------------------------------------------


@click.command()
@options.topic
@changes
@options.cluster
@options.as_json
def alter(*, name: str, given: GivenSettings, cluster: str, as_json: bool) -> None:
    """Change settings of a topic; those not given stay.

    Limits, copies and compression apply to ledgers begun afterwards, retention to all. The
    order of a topic cannot change, nor whether its messages get timestamps.

    Adding partitions moves some keys to another partition: a message resent after that
    may be stored twice, so let producers flush first.
    """
    if given == GivenSettings():
        raise click.UsageError("nothing to alter: name at least one setting")
    altered = trio.run(finish, partial(_alter, cluster, name, given))
    if as_json:
        click.echo(msgspec.json.encode(altered).decode())


async def _alter(cluster: str, name: str, given: GivenSettings) -> TopicInfo:
    async with connect(cluster) as client:
        return await client.topics._alter(name, given.alteration, given.replication)
