"""Fill the pages of reference/ from the code: commands, settings, options of Spark, formats.

A hook of mkdocs (mkdocs.yml names it). A marker such as ``<!-- generated: commands -->`` in a page
is replaced when the page is built, so these parts cannot differ from the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

import click
import msgspec

from bookie.command_line import bookie as bookie_command
from ledger_client.__main__ import quire as quire_command
from ledger_client.commands.options import field_text
from ledger_client.jobs.replay.options import ReplayOptions
from ledger_client.options import Options
from ledger_client.spark import options as spark_options
from ledger_client.topics.producing.producer_options import ProducerOptions
from ledger_client.topics.reading.options import ReadOptions
from metadata.topics import Retention, RollPolicy, Schema

ROOT = Path(__file__).resolve().parents[1]
HEADERS = (
    *("api.h", "record.h", "journal.h", "table.h", "store.h"),
    *("digest.h", "frame.h", "batch.h", "compacted.h", "checksum.h"),
)
OPTIONS: tuple[tuple[type[msgspec.Struct], str], ...] = (
    (ProducerOptions, "Keyword arguments of `client.producer()`."),
    (ReadOptions, "Keyword arguments of `client.reader()`."),
    (ReplayOptions, "Keyword arguments of `client.replay()`."),
    (RollPolicy, "`roll=` of `client.topics.create()` and `alter()`."),
    (Retention, "`retention=` of `client.topics.create()` and `alter()`."),
    (Schema, "`schema=` of `client.topics.create()` and `alter()`."),
    (Options, "`options=` of `connect()`. Seconds end in `_s`, sizes are bytes."),
)
_MARKER = re.compile(r"^<!-- (?:generated: )?([a-z ]+) -->$", re.MULTILINE)
_COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the markers of a page; mkdocs calls this for each page."""
    return _MARKER.sub(lambda found: _made(found[1], found[0]), markdown)


def _made(name: str, marker: str) -> str:
    maker = _MAKERS.get(name)
    return marker if maker is None else "\n".join(maker())


def _commands() -> Iterator[str]:
    for name, command in (("quire", quire_command), ("bookie", bookie_command)):
        yield from _command(name, command, 2)


def _command(name: str, command: click.Command, depth: int) -> Iterator[str]:
    context = click.Context(command, info_name=name, max_content_width=100, terminal_width=100)
    yield f"{'#' * depth} {name}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            if inner is not None:
                yield from _command(f"{name} {each}", inner, min(depth + 1, 4))


def _settings() -> Iterator[str]:
    """Tables from the sample file, which is itself written from the settings' declarations."""
    comment: list[str] = []
    for line in (ROOT / "bookie/bookie.toml").read_text().splitlines():
        if line.startswith("### "):
            yield f"\n## {line[4:]}\n\n| setting | default | meaning |\n|---|---|---|"
            comment = []
        elif line.startswith("# "):
            comment.append(line[2:])
        elif " = " in line:
            key, _, default = line.partition(" = ")
            meaning = " ".join(comment).replace("|", r"\|")
            yield f"| `{key}` | `{default}` | {meaning} |"
            comment = []


def options() -> Iterator[str]:
    """Tables from the structs that hold the options."""
    for struct, use in OPTIONS:
        yield f"\n### {struct.__name__}\n\n{use}\n\n| option | default | meaning |\n|---|---|---|"
        for field in msgspec.structs.fields(struct):
            meaning = field_text(struct, field.name) + _choices(field.type)
            yield f"| `{field.name}` | `{field.default!r}` | {meaning} |"


def _choices(kind: object) -> str:
    """Return a sentence with the values that a field may have, if these are a few words."""
    kinds = [each for each in get_args(kind) or (kind,) if each is not type(None)]
    if get_origin(kind) is Literal:
        words = get_args(kind)
    elif all(get_origin(each) is Literal for each in kinds):
        words = tuple(word for each in kinds for word in get_args(each))
    else:
        return ""
    return f" One of {', '.join(f'`{word!r}`' for word in words)}."


def _spark_options() -> Iterator[str]:
    yield f"```text\n{spark_options.__doc__}```"


def _formats() -> Iterator[str]:
    for header in HEADERS:
        text = (ROOT / "native" / header).read_text()
        yield f"\n## `native/{header}`\n"
        for comment in _COMMENT.findall(text):
            lines = [re.sub(r"^ \* ?", "", line) for line in comment.splitlines()]
            if len(lines) > _WORTH_LINES:
                yield "```text\n" + "\n".join(lines).strip() + "\n```\n"


_WORTH_LINES = 4
"""Shorter comments are notes on one declaration."""

_MAKERS: dict[str, Callable[[], Iterator[str]]] = {
    "commands": _commands,
    "settings": _settings,
    "options": options,
    "spark options": _spark_options,
    "formats": _formats,
}
