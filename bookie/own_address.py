"""The address that a bookie registers, where all hosts must find it and no other bookie.

A client believes the bookie that answers at an address. Were it another one, "no such entry" would
be the answer of a bookie that never was to have the entry. One host cannot listen twice at one
address, but two hosts can: with the default, 127.0.0.1:3181, each finds itself. So a bookie
does not serve under an address that another one has registered.
"""

from __future__ import annotations

import ipaddress

import trio

from bookie.config import ConfigError
from metadata.address import parse_address
from metadata.registrations import list_registrations
from metadata.store import MetadataStore

_LOOK_S = 0.2
_KEY = "advertised_address"


def check_address(address: str) -> None:
    """Raise ConfigError if *address* stands for every address of a host."""
    try:
        is_any = ipaddress.ip_address(parse_address(address).host).is_unspecified
    except ValueError:  # a name
        return
    if is_any:
        raise ConfigError(
            "host", _KEY, f"others cannot connect to {address}; set the address that leads here"
        )


def with_port(address: str) -> str:
    """Return the address at which others reach a bookie, with its port.

    Raises:
        ConfigError: it stands for every address of a host.
    """
    check_address(address)
    return str(parse_address(address))


async def check_alone(
    store: MetadataStore, bookie_id: str, address: str, *, limit_s: float = 0.0
) -> None:
    """Wait until no other bookie is registered at *address*, up to *limit_s*.

    A bookie that had this address before and was killed is registered until its lease is over.

    Raises:
        ConfigError: another one is still there.
        MetadataError: the store did not answer.
    """
    deadline = trio.current_time() + limit_s
    while other := await _other(store, bookie_id, address):
        if trio.current_time() >= deadline:
            raise ConfigError(
                "host",
                _KEY,
                f"the bookie {other} is registered at {address} too; set the address at which "
                "other hosts reach this one",
            )
        await trio.sleep(_LOOK_S)


async def _other(store: MetadataStore, bookie_id: str, address: str) -> str | None:
    bookies = (await list_registrations(store)).bookies
    same = (each for each in bookies if each.address == address and each.bookie_id != bookie_id)
    return next((each.bookie_id for each in same), None)
