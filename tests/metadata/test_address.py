from __future__ import annotations

import pytest

from metadata.address import Address, parse_address
from metadata.errors import BadAddress


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:4000", Address("localhost", 4000)),
        ("localhost", Address("localhost", 3181)),
        (" 10.0.0.1:1 ", Address("10.0.0.1", 1)),
        ("[::1]:65535", Address("::1", 65535)),
        ("[fe80::1%eth0]", Address("fe80::1%eth0", 3181)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":3181",
        "host:",
        "host:0",
        "host:65536",
        "host:-1",
        "host:٣",
        "host:1x",
        "host:99999999999999999999",
        "::1",
        "::1:3181",
        "[::1",
        "[::1]3181",
        "[host]:1",
        "[]:1",
        "ho st:1",
        "user@host:1",
        "host/path:1",
        "höst:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadAddress):
        parse_address(text)
