"""How often passwords may be tried.

To check one costs 50 ms of a processor and 16 MiB (scrypt), by design, so whoever may ask for
that without limit can stop the bookie. Each host, and all hosts together, have a number of
checks at once and then so many a second; a check that would have to wait too long is
refused, which costs nothing. A login that was found right lately is not checked again, so
clients that reconnect are not held up by somebody who guesses.

The rule for one host is the "generic cell rate algorithm": *due* is when its checks would be
evenly spaced, and a check may come up to BURST intervals ahead of that.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

import trio

from bookie.errors import PeerAtFault

HOST_INTERVAL_S, HOST_BURST = 0.5, 10
ALL_INTERVAL_S, ALL_BURST = 0.1, 20
WAIT_MAX_S = 10.0
_HOSTS_MAX = 10_000
_ALL = "all hosts"


class TooManyLogins(PeerAtFault):
    """Passwords were tried too often; the connection ends without an answer."""


class LoginRate:
    """Turns for checking a password."""

    def __init__(self) -> None:
        self._due: OrderedDict[str, float] = OrderedDict()

    async def wait_turn(self, host: str) -> None:
        """Return when a password that came from *host* may be checked.

        Raises:
            TooManyLogins: that would take more than WAIT_MAX_S; nothing is kept of it.
        """
        now = trio.current_time()
        network = network_of(host)
        limits = ((network, HOST_INTERVAL_S, HOST_BURST), (_ALL, ALL_INTERVAL_S, ALL_BURST))
        wait_s = max(self._wait_s(name, now, step, burst) for name, step, burst in limits)
        if wait_s > WAIT_MAX_S:
            raise TooManyLogins(f"too many logins from {network or 'a host'}, or from all hosts")
        for name, interval_s, _ in limits:
            self._due[name] = max(self._due.get(name, now), now) + interval_s
            self._due.move_to_end(name)
        while len(self._due) > _HOSTS_MAX:
            self._due.popitem(last=False)
        await trio.sleep(wait_s)

    def _wait_s(self, name: str, now: float, interval_s: float, burst: int) -> float:
        return max(0.0, self._due.get(name, now) - (burst - 1) * interval_s - now)


def network_of(host: str) -> str:
    """Return what stands for everybody at *host*: of IPv6 the /64, which one host may own."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def host_of(stream: trio.abc.Stream) -> str:
    """Return the address that *stream* comes from; an empty text if it is no socket."""
    if isinstance(stream, trio.SSLStream):
        return host_of(stream.transport_stream)
    if not isinstance(stream, trio.SocketStream):
        return ""
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:  # it has gone
        return ""
