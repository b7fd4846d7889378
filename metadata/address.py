"""Addresses of bookies: ``host:port``, with an IPv6 host in brackets."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from metadata.errors import BadAddress

BOOKIE_SCHEME = "bookie://"
DEFAULT_PORT = 3181


class Address(NamedTuple):
    """The address of a bookie. An IPv6 *host* is held without its brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address that *text* names; the port is 3181 when left out.

    Raises:
        BadAddress: no host, a port outside 1 to 65535, or stray characters.
    """
    host, port = _split(text.strip())
    if not host or not all(_is_host_character(character) for character in host):
        raise BadAddress(f"{text!r} has no valid host; expected host:port")
    if not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65535):
        raise BadAddress(f"{text!r} has no valid port; expected 1 to 65535")
    return Address(host, int(port))


def is_loopback(host: str) -> bool:
    """Return True if *host* leads each host to itself. A name is not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def format_cluster(addresses: Sequence[Address]) -> str:
    """Return the URL of a cluster that lists *addresses*."""
    return BOOKIE_SCHEME + ",".join(map(str, addresses))


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in host or (rest and not rest.startswith(":")):
            raise BadAddress(f"{text!r} has no valid host; expected [IPv6]:port")
        return host, rest.removeprefix(":") if rest else str(DEFAULT_PORT)
    if text.count(":") > 1:
        raise BadAddress(f"{text!r}: an IPv6 host must stand in brackets")
    host, colon, port = text.partition(":")
    return host, port if colon else str(DEFAULT_PORT)


def _is_host_character(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character in "-._:%")
