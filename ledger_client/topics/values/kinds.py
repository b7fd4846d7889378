"""Kinds of schemas whose values a package decodes, and the form of their definitions.

kind      definition (metadata.topics.Schema)        value
--------  -----------------------------------------  ------------------------------------------
avro      an Avro schema in JSON, of a record        one datum in Avro's binary encoding, alone
protobuf  JSON: {"message": its full name,           one message of that type
          "descriptors": a serialized
          FileDescriptorSet in base64}

Without a definition the fields are unknown, and values stay bytes.
"""

from __future__ import annotations

import base64

import msgspec

from metadata.topics import Schema

PACKAGES = {"avro": "fastavro", "protobuf": "protobuf"}
"""The package that decodes each kind; only topics of that kind need it."""
DEPTH_MAX = 32
"""Levels of nested types in a schema."""
FIELDS_MAX = 10_000
"""Fields of a schema at all depths: one that refers to itself multiplies."""


class ProtobufDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The definition of a schema of kind "protobuf"."""

    message: str
    descriptors: str

    @classmethod
    def of(cls, descriptor_set: bytes, message: str) -> ProtobufDefinition:
        """Return the definition; *descriptor_set* as ``protoc --descriptor_set_out`` writes it."""
        return cls(message, base64.b64encode(descriptor_set).decode())

    @property
    def descriptor_set(self) -> bytes:
        """The serialized FileDescriptorSet. Raises ValueError if *descriptors* is not base64."""
        return base64.b64decode(self.descriptors, validate=True)

    def encode(self) -> str:
        """Return the definition as JSON, for Schema.definition."""
        return msgspec.json.encode(self).decode()


def is_decoded(schema: Schema) -> bool:
    """True if values of this schema have fields that a package decodes."""
    return schema.kind in PACKAGES and bool(schema.definition)


class Budget:
    """Limits the number and depth of types in a schema."""

    def __init__(self) -> None:
        self._left = FIELDS_MAX

    def spend(self, where: str, depth: int) -> None:
        """Count one type at *depth*. Raises ValueError if there are too many, or it is too deep."""
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"it has more than {FIELDS_MAX} fields in all")
        if depth > DEPTH_MAX:
            raise ValueError(f"{where} is deeper than {DEPTH_MAX} types inside of types")
