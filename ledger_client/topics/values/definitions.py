"""Schemas are checked before a topic gets them, so that reading does not fail later.

pyarrow takes long to import, so import this module only inside functions that need it.
"""

from __future__ import annotations

from ledger_client.errors import BadSchema
from ledger_client.topics.values import json_schema
from ledger_client.topics.values.decoder import open_decoder
from ledger_client.topics.values.kinds import is_decoded
from metadata.topics import Schema


def check_schema(topic: str, schema: Schema) -> None:
    """Check that values of *schema* have fields that readers can show.

    A schema without a definition has none, and is right: values stay bytes or text.

    Raises:
        BadSchema: the definition cannot be parsed, a field has no column type, or the package
            for its kind is not installed.
    """
    if is_decoded(schema):
        open_decoder(topic, schema)
    elif schema.kind == "json" and schema.definition:
        try:
            json_schema.check_definition(schema.definition)
        except ValueError as wrong:
            raise BadSchema.unreadable(topic, wrong) from wrong
