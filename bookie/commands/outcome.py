"""How a command of bookie ends: its errors, with the exit codes of metadata/outcome.py."""

from __future__ import annotations

from bookie.config import ConfigError
from bookie.errors import BookieError
from metadata.errors import BadAddress, MetadataError, MetadataUnavailable
from metadata.outcome import Exit, Program
from native.errors import CoreError

conclude = Program(
    "bookie",
    (BookieError, MetadataError, CoreError),
    {
        ConfigError: Exit.USAGE,
        BadAddress: Exit.USAGE,
        MetadataUnavailable: Exit.UNREACHABLE,
    },
).conclude
