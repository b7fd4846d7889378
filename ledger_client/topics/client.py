"""The cluster, as a client sees it: its topics, beside its ledgers."""

from __future__ import annotations

from ledger_client.client import Client


class TopicClient(Client):
    """A connected client. Made by connect(); any task may use it."""
