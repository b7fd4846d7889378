"""The address and the name that a bookie registers, where all hosts must find it and no other.

A client believes the bookie that answers at an address. Were it another one, "no such entry" would
be the answer of a bookie that never was to have the entry. One host cannot listen twice at one
address, but two hosts can: with the default, 127.0.0.1:3181, each finds itself. So a bookie
does not serve under an address that another one has registered.

A copy of a bookie's folders has its name and its cookie. Were both to serve, each would lack what
clients wrote to the other. So a bookie does not serve while a registration of its name is another
one's: its owner is the cookie together with what the lock on the folders holds for, lock.py.
"""

from __future__ import annotations

import ipaddress
import logging

import trio

from bookie.config import ConfigError
from bookie.cookie_file import CookieRefused
from bookie.errors import BookieError
from metadata.address import is_loopback, parse_address
from metadata.registrations import list_registrations
from metadata.store import MetadataStore

_LOOK_S = 0.2
_RESOLVE_S = 2.0
_CONNECT_S = 2.0
_KEY = "advertised_address"

_log = logging.getLogger(__name__)


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


async def doubt_of(address: str) -> str:
    """Return why other hosts may not reach *address*, as far as this one can tell; "" if they may.

    The port is open by now. A name that leads here to a loopback address may lead elsewhere on
    other hosts.
    """
    host, port = parse_address(address)
    if is_loopback(host):
        return f"{address} leads each host to itself"
    try:
        with trio.move_on_after(_RESOLVE_S):
            await trio.socket.getaddrinfo(host, port)
    except OSError as wrong:
        return f"{host} is not known here: {wrong.strerror}"
    try:
        with trio.fail_after(_CONNECT_S):
            stream = await trio.open_tcp_stream(host, port)
    except trio.TooSlowError:
        return f"no connection from here to {address} within {_CONNECT_S:g} s"
    except OSError as wrong:
        return f"no connection from here to {address}: {wrong.strerror or wrong}"
    await trio.aclose_forcefully(stream)
    return ""


def with_port(address: str) -> str:
    """Return the address at which others reach a bookie, with its port.

    Raises:
        ConfigError: it stands for every address of a host.
    """
    check_address(address)
    return str(parse_address(address))


async def check_alone(
    store: MetadataStore, bookie_id: str, address: str, *, owner: str = "", limit_s: float = 0.0
) -> None:
    """Wait until no other process is registered at *address* or as *bookie_id*, up to *limit_s*.

    A bookie that was killed is registered until its lease is over: one that had this address
    before, or this one itself on another host.

    Args:
        store: the cluster's metadata.
        bookie_id: of the bookie that is to serve.
        address: where it is to serve.
        owner: of its registrations; "": it is new, and has none.
        limit_s: how long to wait.

    Raises:
        ConfigError: another bookie is still registered at *address*.
        CookieRefused: another process still serves as *bookie_id* (fault "serving").
        MetadataError: the store did not answer.
    """
    deadline = trio.current_time() + limit_s
    is_told = False
    while refusal := await _refusal(store, bookie_id, address, owner):
        if trio.current_time() >= deadline:
            raise refusal
        if not is_told:
            _log.warning("waiting for up to %.0f s, as it may be over: %s", limit_s, refusal)
            is_told = True
        await trio.sleep(_LOOK_S)


async def _refusal(
    store: MetadataStore, bookie_id: str, address: str, owner: str
) -> BookieError | None:
    found = await list_registrations(store)
    addresses = {each.bookie_id: each.address for each in found.bookies}
    if owner and found.owners.get(bookie_id, owner) != owner:
        where = addresses.get(bookie_id, "an address that cannot be read")
        return CookieRefused(
            "serving",
            f"bookie {bookie_id}",
            f"another process serves with these data at {where}",
            "stop it there first; if its folders were copied, never start the older copy again",
        )
    for other, theirs in addresses.items():
        if theirs == address and other != bookie_id:
            return ConfigError(
                "host",
                _KEY,
                f"the bookie {other} is registered at {address} too; set the address at which "
                "other hosts reach this one",
            )
    return None
