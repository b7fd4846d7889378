"""The rate at which passwords may be tried.

A check costs 50 ms of a processor and 16 MiB (scrypt), by design. Without a limit, any caller
could overload the bookie with them. Each host, and all hosts together, may do a burst of checks
and then a fixed number per second. A check that would have to wait too long is refused, which
costs nothing. A recent correct login is not checked again, so guesses by others do not delay
clients that reconnect.

The rule for one host is the "generic cell rate algorithm": *due* is the time of the next check if
they are evenly spaced, and a check may come up to BURST intervals before it.
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


class LoginRate:
    """Decides when a password may be checked, by host and for all hosts together."""

    def __init__(self) -> None:
        self._due: OrderedDict[str, float] = OrderedDict()

    async def wait_turn(self, host: str) -> None:
        """Wait until a password that came from *host* may be checked.

        Raises:
            PeerAtFault: the wait would be longer than WAIT_MAX_S; this check does not count.
        """
        now = trio.current_time()
        network = network_of(host)
        limits = ((network, HOST_INTERVAL_S, HOST_BURST), (_ALL, ALL_INTERVAL_S, ALL_BURST))
        wait_s = max(self._wait_s(name, now, step, burst) for name, step, burst in limits)
        if wait_s > WAIT_MAX_S:
            raise PeerAtFault(f"too many logins from {network or 'a host'}, or from all hosts")
        for name, interval_s, _ in limits:
            self._due[name] = max(self._due.get(name, now), now) + interval_s
            self._due.move_to_end(name)
        while len(self._due) > _HOSTS_MAX:
            self._due.popitem(last=False)
        await trio.sleep(wait_s)

    def _wait_s(self, name: str, now: float, interval_s: float, burst: int) -> float:
        return max(0.0, self._due.get(name, now) - (burst - 1) * interval_s - now)


def network_of(host: str) -> str:
    """Return *host*, or its /64 for IPv6, because one host may own a whole /64."""
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
    except OSError:  # the peer has disconnected
        return ""
