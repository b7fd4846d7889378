"""The client's own part: keyword arguments that are the fields of structs."""

from __future__ import annotations

from typing import get_type_hints

import msgspec
import pytest

from ledger_client.jobs.replay.options import ReplayOptions, ReplaySettings
from ledger_client.topics.producing.producer_options import ProducerOptions, ProducerSettings
from ledger_client.topics.reading.options import ReadOptions, ReadSettings


@pytest.mark.parametrize(
    ("struct", "arguments"),
    [
        (ProducerOptions, ProducerSettings),
        (ReadOptions, ReadSettings),
        (ReplayOptions, ReplaySettings),
    ],
    ids=lambda each: each.__name__,
)
def test_keyword_arguments_are_the_fields_of_a_struct(
    struct: type[msgspec.Struct], arguments: type
) -> None:
    assert get_type_hints(struct) == get_type_hints(arguments)
