"""Kinds of schemas whose values a package decodes, and how they are defined.

kind      definition (metadata.topics.Schema)        value
--------  -----------------------------------------  ------------------------------------------
avro      an Avro schema in JSON, of a record        one datum in Avro's binary encoding, alone
protobuf  JSON: {"message": its full name,           one message of that type
          "descriptors": a serialized
          FileDescriptorSet in base64}

Without a definition nobody knows the fields, and values are bytes.
"""

from __future__ import annotations

import base64

import msgspec

from metadata.topics import Schema

PACKAGES = {"avro": "fastavro", "protobuf": "protobuf"}
"""By kind, the package that decodes; it is needed for topics of this kind only."""


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
        """The serialized FileDescriptorSet. Raises ValueError."""
        return base64.b64decode(self.descriptors, validate=True)

    def encode(self) -> str:
        """Return it as a Schema takes it."""
        return msgspec.json.encode(self).decode()


def is_decoded(schema: Schema) -> bool:
    """Whether values of this schema have fields that a package decodes."""
    return schema.kind in PACKAGES and bool(schema.definition)
