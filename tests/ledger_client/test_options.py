"""The types that options have."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import get_args, get_type_hints

import msgspec
import pytest

from ledger_client.groups.options import ConsumerOptions
from ledger_client.options import Options, wrong_type
from ledger_client.topics.producing.producer_options import ProducerOptions
from ledger_client.topics.reading.options import ReadOptions


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        ProducerOptions(),
        ReadOptions(),
        ConsumerOptions(group="g"),
        ProducerOptions(linger_ms=5, partition=0),
        ReadOptions(idle_s=Fraction(1, 2)),  # type: ignore[arg-type]
        ConsumerOptions(group="g", auto_commit_s=None, keep=False),
    ],
)
def test_options_of_the_right_types_are_accepted(options: msgspec.Struct) -> None:
    assert wrong_type(options) is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (ProducerOptions(linger_ms="5"), "linger_ms takes a number or None, not '5' (str)"),  # type: ignore[arg-type]
        (ProducerOptions(batch_bytes=1.5), "batch_bytes takes an int, not 1.5 (float)"),  # type: ignore[arg-type]
        (ProducerOptions(batch_bytes=True), "batch_bytes takes an int, not True (bool)"),
        (ProducerOptions(batching="no"), "batching takes True or False, not 'no' (str)"),  # type: ignore[arg-type]
        (ProducerOptions(producer_name=b"a"), "producer_name takes a str, not b'a' (bytes)"),  # type: ignore[arg-type]
        (ProducerOptions(partition="0"), "partition takes an int or None, not '0' (str)"),  # type: ignore[arg-type]
        (ReadOptions(follow=1), "follow takes True or False, not 1 (int)"),  # type: ignore[arg-type]
        (ReadOptions(idle_s=None), "idle_s takes a number, not None (NoneType)"),  # type: ignore[arg-type]
        (
            ConsumerOptions(group="g", session_s=Decimal(12)),  # type: ignore[arg-type]
            "session_s takes a number, not Decimal('12') (Decimal)",
        ),
    ],
)
def test_an_option_of_another_type_is_named(options: msgspec.Struct, sentence: str) -> None:
    assert wrong_type(options) == sentence


def test_most_options_are_looked_at() -> None:
    """Those that take objects have checks of their own."""
    simple = {int, float, bool, str, type(None)}
    for kind in (ProducerOptions, ReadOptions, ConsumerOptions):
        hints = get_type_hints(kind)
        left = {name for name, hint in hints.items() if not set(get_args(hint) or [hint]) <= simple}
        assert len(left) < len(hints) / 2, left
