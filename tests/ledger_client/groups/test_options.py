"""What a consumer's options may be."""

from __future__ import annotations

import math
import typing

import pytest

from ledger_client.errors import BadGroup
from ledger_client.groups.options import ConsumerOptions, ConsumerSettings
from ledger_client.topics.times import PublishTime
from metadata.groups.rows import SESSION_S_MAX, SESSION_S_MIN

NAN = math.nan
POSSIBLE: dict[str, list[object]] = {
    "group": ["b", "x" * 192],
    "member": ["", "m", "x" * 192],
    "client_id": ["", "x" * 255],
    "start": ["earliest", "latest", "none", PublishTime(0)],
    "auto_commit_s": [None, 0, 0.5, 5],
    "session_s": [SESSION_S_MIN, 12, SESSION_S_MAX],
    "beat_s": [1, 5.9],
    "poll_s_max": [1, 300, 2_147_483],
    "revoke_s": [0, 600],
    "ack_timeout_s": [0.1, 3600],
    "deliveries_max": [0, 1],
    "unacked_max": [1],
    "read_ahead_size": [1],
    "dead_topic": ["", "shop/dead"],
}
IMPOSSIBLE: dict[str, list[object]] = {
    "group": ["", "a:b", "a/b", "x" * 193],
    "member": ["a:b", "x" * 193],
    "client_id": ["x" * 256],
    "start": ["", "begin", 7],
    "auto_commit_s": [-0.1, NAN, "5"],
    "session_s": [SESSION_S_MIN - 0.1, SESSION_S_MAX + 0.1, NAN, "12"],
    "beat_s": [0.9, 6, NAN],
    "poll_s_max": [0.9, 2_147_484, NAN],
    "revoke_s": [-1, 601, NAN],
    "ack_timeout_s": [0.09, -1, NAN],
    "deliveries_max": [-1, 1.5],
    "unacked_max": [0, -1],
    "read_ahead_size": [0, -1],
    "dead_topic": ["dead", "a/b/c"],
    "mode": ["sharde", None],
    "order": ["time"],
    "missing": ["ignore"],
    "on_gap": ["ignore"],
}
OTHERS: dict[str, object] = {"group": "billing", "session_s": SESSION_S_MIN}


def made(name: str, value: object) -> ConsumerOptions:
    settings = typing.cast("ConsumerSettings", {**OTHERS, name: value})
    return ConsumerOptions(**settings)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in POSSIBLE.items() for value in values]
)
def test_each_end_of_the_range_of_an_option_is_accepted(name: str, value: object) -> None:
    """TD-48."""
    made(name, value).check()


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values]
)
def test_what_is_just_outside_of_the_range_is_refused_by_name(name: str, value: object) -> None:
    """TD-48. A name that is not valid is named itself."""
    with pytest.raises(BadGroup, match=f"{name} |is not a name|namespace/name"):
        made(name, value).check()


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked", "value_decoder"])
def test_what_is_called_is_a_function(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} takes a function"):
        made(name, 5).check()


def test_an_option_that_does_not_exist_is_refused() -> None:
    """TD-48."""
    with pytest.raises(TypeError, match="session_timeout"):
        made("session_timeout", 6)
