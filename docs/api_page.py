"""Write reference/api.md from the docstrings: ``python docs/api_page.py --write``.

The page is kept in the repository, so that it can be read there without building anything.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

import griffe
from generated import options

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reference/api.md"
PACKAGES = ("metadata", "ledger_client")
INTRODUCTION = """\
<!-- written by docs/api_page.py from the docstrings: change those -->

# API

`ledger_client` has the calls for trio. `ledger_client.aio` has the same for asyncio, and
`ledger_client.blocking` for code without an event loop: same names, same arguments, same errors.
All names on this page are imported from `ledger_client`, unless a heading says otherwise.
"""
PLACES = """\
A place is `"earliest"`, `"latest"`, a `MessageId`, a `Position` that `TopicReader.position()`
returned, or one of these times:
"""
VALUES = """\
For `value_encoder` of producers, and `value_decoder` of readers and consumers. These names are
imported from `ledger_client.values`.
"""
RESULTS = """\
What the calls above return. `TopicInfo` is another name of `TopicRecord`. `Compaction`, `LaneLag`,
`Rolled` and `TopicInfo` are imported from `ledger_client`; the others have no name there.
"""


class Part(NamedTuple):
    """A heading, a text, and the paths of what follows."""

    heading: str
    text: str
    paths: Sequence[str]


TOPICS, LEDGERS = "ledger_client.topics", "ledger_client.ledgers"
OPERATIONS = "ledger_client.cluster.operations"
ERRORS = "ledger_client.errors"
PARTS = (
    Part("Connecting", "", ["ledger_client.client.connect", "ledger_client.client.Client"]),
    Part("client.topics", "", ["ledger_client.client.ClientTopics"]),
    Part("client.ledgers", "", ["ledger_client.client_ledgers.ClientLedgers"]),
    Part("client.cluster", "", ["ledger_client.cluster.cluster.Cluster"]),
    Part("client.groups", "", ["ledger_client.groups.groups.Groups"]),
    Part(
        "client.cuts",
        "",
        [
            f"{TOPICS}.cuts.Cuts",
            *("metadata.cuts.CutRecord", "metadata.cuts.CutTopic", "metadata.cuts.CutLane"),
        ],
    ),
    Part(
        "client.timestamps",
        "",
        [f"{TOPICS}.timestamps.Timestamps", "metadata.time.timestamps.TimestampRange"],
    ),
    Part(
        "Producing",
        "",
        [
            f"{TOPICS}.producing.producer.Producer",
            f"{TOPICS}.producing.partition_writer.Ticket",
            "ledger_client.message_id.MessageIds",
        ],
    ),
    Part(
        "Reading",
        "",
        [
            f"{TOPICS}.reading.state.TopicState",
            f"{TOPICS}.reading.reader.TopicReader",
            f"{TOPICS}.messages.Message",
            "ledger_client.message_id.MessageId",
        ],
    ),
    Part(
        "Values",
        VALUES,
        [
            f"ledger_client.values.{name}"
            for name in ("encode_text", "decode_text", "encode_json", "decode_json", "json_decoder")
        ],
    ),
    Part(
        "Places",
        PLACES,
        [
            *(f"{TOPICS}.times.{name}" for name in ("EventTime", "PublishTime", "Timestamp")),
            *(f"{TOPICS}.positions.{name}" for name in ("Version", "Position", "LanePlace")),
        ],
    ),
    Part(
        "Ledgers",
        "",
        [
            f"{LEDGERS}.writer.LedgerWriter",
            *(f"{LEDGERS}.reader.{name}" for name in ("LedgerReader", "BatchReads", "Follower")),
            *(f"{LEDGERS}.entries.{name}" for name in ("Entries", "Entry", "EntryBatch")),
            f"{LEDGERS}.catalogue.LedgerInfo",
            f"{TOPICS}.retention.explanation.LedgerDescription",
        ],
    ),
    Part(
        "Results",
        RESULTS,
        [
            "metadata.topics.TopicRecord",
            f"{TOPICS}.retention.explanation.Explanation",
            f"{TOPICS}.retention.explanation.LedgerTotals",
            f"{TOPICS}.retention.explanation.LaneExplained",
            f"{TOPICS}.reading.remaining.LaneLag",
            f"{TOPICS}.retention.open_ledgers.Confirmed",
            f"{TOPICS}.rolls.Rolled",
            f"{TOPICS}.rolls.LaneRolled",
            f"{TOPICS}.tracing.whereabouts.Whereabouts",
            f"{TOPICS}.tracing.whereabouts.KeyWhereabouts",
            f"{TOPICS}.retention.removal.Purged",
            f"{TOPICS}.retention.lane_parts.Truncated",
            "ledger_client.jobs.compaction.uncompacted.Uncompacted",
            "ledger_client.jobs.compaction.job.Compaction",
            "ledger_client.jobs.replay.log.ReplayReport",
            f"{OPERATIONS}.overview.Overview",
            f"{OPERATIONS}.usage.ClusterUsage",
            f"{OPERATIONS}.verification.Verification",
            f"{OPERATIONS}.scrubbing.Scrubbed",
            f"{OPERATIONS}.rebalance.Balance",
            "metadata.records.BookieRecord",
        ],
    ),
    Part("Options", "\n".join(options()) + "\n", []),
    Part(
        "Consuming in groups",
        "",
        [
            "ledger_client.groups.consumer.GroupConsumer",
            "ledger_client.groups.options.ConsumerOptions",
            "ledger_client.groups.options.TopicPartition",
            "ledger_client.groups.exports.GroupExport",
            "ledger_client.groups.options.ConsumedLane",
            "ledger_client.groups.turns.TopicEvent",
        ],
    ),
    Part("Errors", "", [ERRORS, "ledger_client.ledger_errors"]),
)
METADATA_ERRORS = (
    *("LedgerError", "Retryable", "MetadataUnavailable", "MetadataBroken", "BadAddress"),
    *("BadGroup", "TimeRefused", "AccessDenied"),
)
OF_METADATA = "metadata.errors"
INHERITS = {"ClientTopics"}
"""Classes whose inherited members are shown, too."""
FIELDS_ONLY = {"EventTime", "PublishTime", "Timestamp"}


def text() -> str:
    """Return the page."""
    loader = griffe.GriffeLoader(search_paths=[ROOT], docstring_parser=griffe.Parser.google)
    for package in PACKAGES:
        loader.load(package)
    loader.resolve_aliases()
    found = loader.modules_collection
    lines = [INTRODUCTION]
    for part in PARTS:
        lines.append(f"## {part.heading}\n")
        if part.text:
            lines.append(part.text)
        for path in part.paths:
            lines += _rendered(found[path])
    for name in METADATA_ERRORS:
        lines += _rendered(found[f"{OF_METADATA}.{name}"])
    return "\n".join(lines).rstrip() + "\n"


def _rendered(item: griffe.Object | griffe.Alias) -> Iterator[str]:
    if item.is_module:
        for each in item.members.values():
            if not each.is_alias and each.is_class:
                yield from _rendered(each)
    elif item.is_class:
        yield from _class(item)
    else:
        yield from _function(item, item.name, "###")


def _class(item: griffe.Object | griffe.Alias) -> Iterator[str]:
    yield f"### {item.name}\n"
    yield from _sections(item)
    known = item.all_members if item.name in INHERITS else item.members
    members = [each for each in known.values() if not each.is_alias or item.name in INHERITS]
    members = [each for each in members if _is_public(each)]
    if item.name in FIELDS_ONLY or "errors" in item.module.name:
        members = [each for each in members if not each.is_function]
    fields = [each for each in members if each.is_attribute and "property" not in each.labels]
    if fields:
        yield "| field | type | meaning |\n|---|---|---|"
        for each in fields:
            yield f"| `{each.name}` | {_cell(f'`{each.annotation}`')} | {_cell(_summary(each))} |"
        yield ""
    for each in members:
        if each.is_function:
            yield from _function(each, f"{item.name}.{each.name}", "####")
        elif "property" in each.labels:
            yield f"#### {item.name}.{each.name}\n"
            yield f"```text\n{each.name}: {each.annotation}\n```\n"
            yield from _sections(each)


def _is_public(item: griffe.Object | griffe.Alias) -> bool:
    if item.name.startswith("_"):
        return False
    if item.is_function or "property" in item.labels:
        return item.docstring is not None
    is_declared = item.is_attribute and item.annotation is not None
    return is_declared and (item.value is None or "class-attribute" in item.labels)


def _function(item: griffe.Object | griffe.Alias, name: str, heading: str) -> Iterator[str]:
    yield f"{heading} {name}\n"
    yield f"```text\n{_signature(item)}\n```\n"
    yield from _sections(item)


def _signature(item: griffe.Object | griffe.Alias) -> str:
    """Return the call on one line, or with a line for each parameter if it is long."""
    prefix = "async " if "async" in item.labels else ""
    short = f"{prefix}{item.signature()}"
    if len(short) <= 100:
        return short
    start, _, end = short.partition("(")
    rest, _, returned = end.rpartition(")")
    parameters = indent(",\n".join(_split(rest)), "    ")
    return f"{start}(\n{parameters},\n){returned}"


def _split(parameters: str) -> Iterator[str]:
    """Split at the commas outside of brackets."""
    depth, start = 0, 0
    for at, letter in enumerate(parameters):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            yield parameters[start:at].strip()
            start = at + 1
    yield parameters[start:].strip()


def _summary(item: griffe.Object | griffe.Alias) -> str:
    return "" if item.docstring is None else " ".join(item.docstring.value.split())


def _cell(value: str) -> str:
    return value.replace("|", r"\|")


def _sections(item: griffe.Object | griffe.Alias) -> Iterator[str]:
    for section in item.docstring.parsed if item.docstring is not None else ():
        if section.kind is griffe.DocstringSectionKind.text:
            yield f"{section.value.strip()}\n"
        elif section.kind in _TITLES:
            yield f"{_TITLES[section.kind]}:\n"
            yield "\n".join(_entry(each) for each in section.value) + "\n"


_TITLES = {
    griffe.DocstringSectionKind.parameters: "Arguments",
    griffe.DocstringSectionKind.attributes: "Attributes",
    griffe.DocstringSectionKind.raises: "Raises",
    griffe.DocstringSectionKind.returns: "Returns",
    griffe.DocstringSectionKind.yields: "Yields",
}


def _entry(element: griffe.DocstringElement) -> str:
    name = getattr(element, "name", "") or str(element.annotation)
    names = ", ".join(f"`{each.strip()}`" for each in name.strip("()").split(","))
    return f"- {names}: {indent(element.description, '  ').strip()}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(text())
    else:
        sys.stdout.write(text())
