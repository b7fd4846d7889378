"""Answers of a role that the leader alone has: none counts once its term may be over."""

from __future__ import annotations

from typing import Protocol, TypeVar

from metadata.errors import LeaseLost, NotLeader
from metadata.leadership import Term
from metadata.listings import not_leader
from metadata.store import MetadataStore

Request = TypeVar("Request", contravariant=True)
Reply = TypeVar("Reply", covariant=True)


class Office(Protocol[Request, Reply]):
    """A role during one term."""

    term: Term

    async def answer(self, request: Request) -> Reply:
        """Return the reply to *request*. Raises LeaseLost."""


async def answer_of(
    office: Office[Request, Reply] | None, request: Request, store: MetadataStore
) -> Reply:
    """Return what this bookie's *office* replies, `None` if it has none.

    Raises:
        NotLeader: another bookie leads, or nobody, or the term may have ended meanwhile.
    """
    if office is not None:
        try:
            reply = await office.answer(request)
        except LeaseLost:
            pass
        else:
            if office.term.is_certain:
                return reply
            raise NotLeader
    raise await not_leader(store)
