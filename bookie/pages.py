"""The HTTP pages of a bookie: /metrics, /health, /ready.

    /metrics  200, Prometheus text
    /health   200 as long as the process answers at all
    /ready    200 once the bookie serves, else 503; the body is the state in JSON

Each connection serves one request, GET or HEAD. The request must be complete within seconds
and fit a few kilobytes. Only a handful of connections are served at a time; further ones are
closed at once.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

_REQUEST_SIZE_MAX = 8192
_REQUEST_S = 5.0
_RESPONSE_S = 10.0
_CONNECTIONS_MAX = 16

Page = tuple[int, str, bytes]
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
            503: "Service Unavailable"}  # fmt: skip


class Pages:
    """Serves pages; a function makes each one per request, as (status, content type, body)."""

    def __init__(self, pages: dict[str, Callable[[], Page]]) -> None:
        self._pages = pages
        self._connections = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Answer one request and close the stream."""
        if self._connections >= _CONNECTIONS_MAX:
            await trio.aclose_forcefully(stream)
            return
        self._connections += 1
        try:
            await self._answer(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client closed the connection
        finally:
            self._connections -= 1
            await trio.aclose_forcefully(stream)

    async def _answer(self, stream: trio.abc.Stream) -> None:
        head = b""
        with trio.move_on_after(_REQUEST_S):
            while b"\r\n\r\n" not in head and len(head) < _REQUEST_SIZE_MAX:
                chunk = await stream.receive_some(_REQUEST_SIZE_MAX)
                if not chunk:
                    return
                head += chunk
        method, page = self._page(head)
        with trio.move_on_after(_RESPONSE_S):
            await stream.send_all(_response(page, with_body=method != b"HEAD"))

    def _page(self, head: bytes) -> tuple[bytes, Page]:
        words = head.partition(b"\r\n")[0].split(b" ")
        if b"\r\n\r\n" not in head or len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return b"GET", _plain(400)
        method, path = words[0], words[1].partition(b"?")[0].decode("latin-1")
        if method not in (b"GET", b"HEAD"):
            return method, _plain(405)
        make = self._pages.get(path)
        return method, make() if make is not None else _plain(404)


def _plain(status: int) -> Page:
    return status, "text/plain; charset=utf-8", f"{_REASONS[status]}\n".encode()


def _response(page: Page, *, with_body: bool) -> bytes:
    status, content_type, body = page
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
        f"Content-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
