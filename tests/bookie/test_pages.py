from __future__ import annotations

import pytest
import trio
import trio.testing

from bookie.pages import Pages

PAGES = Pages({"/ready": lambda: (503, "application/json", b"{}")})


async def visit(request: bytes, *, pages: Pages = PAGES) -> bytes:
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pages.serve, theirs)
        await ours.send_all(request)
        answer = b""
        while chunk := await ours.receive_some():
            answer += bytes(chunk)
    return answer


async def test_a_page_is_served_with_its_status_and_size() -> None:
    answer = await visit(b"GET /ready?x=1 HTTP/1.1\r\nHost: here\r\n\r\n")
    assert answer == (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\nConnection: close\r\n\r\n{}"
    )


async def test_head_has_no_body() -> None:
    answer = await visit(b"HEAD /ready HTTP/1.1\r\n\r\n")
    assert answer.endswith(b"Content-Length: 2\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /ready HTTP/1.1\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /ready FTP/1.0\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 9000, b"400"),
    ],
)
async def test_what_is_not_a_page_gets_its_status(request_bytes: bytes, status: bytes) -> None:
    assert (await visit(request_bytes)).split()[1] == status


async def test_a_visitor_who_does_not_finish_is_sent_away(
    autojump_clock: trio.testing.MockClock,
) -> None:
    assert (await visit(b"GET /ready HTTP/1.1\r\n")).split()[1] == b"400"
    assert trio.current_time() == pytest.approx(5)


async def test_visitors_beyond_a_handful_are_closed_at_once() -> None:
    pages = Pages({})
    async with trio.open_nursery() as nursery:
        ends = [trio.testing.memory_stream_pair() for _ in range(17)]
        for _, theirs in ends[:16]:
            nursery.start_soon(pages.serve, theirs)
        await trio.testing.wait_all_tasks_blocked()
        await pages.serve(ends[16][1])
        assert await ends[16][0].receive_some() == b""
        nursery.cancel_scope.cancel()
