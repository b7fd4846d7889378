"""A topic whose messages are looked for, and clients that wait for nothing for long."""

from __future__ import annotations

import msgspec

from ledger_client import Options

TOPIC = "shop/orders"
QUICK = Options(connect_timeout_s=0.2, request_timeout_s=0.5, read_timeout_s=0.5)
SILENT = msgspec.structs.replace(QUICK, explicit_lac_s=0.0)
"""Its writers report their last confirmed entry with the next one only."""
