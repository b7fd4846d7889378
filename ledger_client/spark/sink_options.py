"""What a write of a topic by Spark can be told.

option         meaning
-------------  ---------------------------------------------------------------------
cluster        the cluster's URL; else QUIRE_CLUSTER, else this host's port 3181
topic          namespace/name; it exists already
valueFormat    "json": there is no column value; each row is an object of JSON
sinkName       of a streaming query: what it writes is counted under this name, too. With a new
               name it starts over: all batches of its checkpoint are written

A streaming query has checkpointLocation and queryName beside these, which are Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from ledger_client.spark.errors import BadOption
from ledger_client.spark.options import GivenOptions

_NAMES = (
    "cluster",
    "topic",
    "path",
    "valueFormat",
    "sinkName",
    "checkpointLocation",
    "queryName",
)
_SINK_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a write, checked."""

    cluster: str
    topic: str
    json_values: bool = False
    sink_name: str = ""
    checkpoint: str = ""
    """where a streaming query keeps how far it is, if that is told"""

    def query_of(self, query_id: str) -> str:
        """Return under what a streaming query's batches are counted."""
        return f"{query_id}.{self.sink_name}" if self.sink_name else query_id


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Return what *given* says.

    Raises:
        BadOption: one cannot be; the message names it.
    """
    options = GivenOptions(given, _NAMES)
    names = [text for text in map(options.text, ("topic", "path")) if text]
    if len(names) != 1 or "," in names[0]:
        raise BadOption("topic", "which topic is to be written? one namespace/name")
    return SinkOptions(
        cluster=options.cluster(),
        topic=names[0],
        json_values=options.one("valueFormat", _is_json, False),
        sink_name=options.one("sinkName", _sink_name, ""),
        checkpoint=options.one("checkpointLocation", _checkpoint, ""),
    )


def _sink_name(text: str) -> str:
    if not _SINK_NAME.fullmatch(text):
        raise ValueError(f"{text!a} is not 1 to 100 letters, digits, '_', '-' or '.'")
    return text


def _checkpoint(text: str) -> str:
    """Return a location in one spelling: file:///a/, file:/a and /a are one."""
    parts = urlsplit(text)
    location = parts.path if parts.scheme in {"", "file"} and not parts.netloc else text
    return location.rstrip("/")[-1000:]


def _is_json(text: str) -> bool:
    if text.lower() not in {"json", "binary"}:
        raise ValueError(f'{text!r} is neither "json" nor "binary"')
    return text.lower() == "json"
