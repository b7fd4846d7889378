"""What a write of a topic by Spark can be told.

option         meaning
-------------  ---------------------------------------------------------------------
cluster        the cluster's URL; else QUIRE_CLUSTER, else this host's port 3181
topic          namespace/name; it exists already
valueFormat    "json": there is no column value; each row is an object of JSON

A streaming query has checkpointLocation and queryName beside these, which are Spark's.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ledger_client.spark.errors import BadOption
from ledger_client.spark.options import GivenOptions

_NAMES = ("cluster", "topic", "path", "valueFormat", "checkpointLocation", "queryName")


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a write, checked."""

    cluster: str
    topic: str
    json_values: bool = False


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
    )


def _is_json(text: str) -> bool:
    if text.lower() not in {"json", "binary"}:
        raise ValueError(f'{text!r} is neither "json" nor "binary"')
    return text.lower() == "json"
