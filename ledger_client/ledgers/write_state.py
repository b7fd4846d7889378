"""Writing one ledger, as a machine without I/O: events in, actions out.

The machine makes every decision of a writer. Its driver (writer.py) calls one method for each
event and performs the returned actions in order. Times are plain numbers, passed as *now*.
The native writer, which builds frames and counts acknowledgements, belongs to the machine.

    add() ──► waiting ──next_chunk()──► sent, not acknowledged ──acknowledged()──► Confirm

The writer:

    state    add()     leaves it by
    -------  --------  ------------------------------------------------------------------
    OPEN     accepted  end() to ENDING; a fatal answer, a timeout or a lost quorum to ENDED
    ENDING   refused   fail(), once everything is confirmed or the driver stops waiting
    ENDED    refused   nothing; no entry is sent or confirmed and no bookie replaced any more

Bookies are lost and replaced meanwhile (ensemble_state.py). Writing goes on as long as each
entry can still reach its ack quorum. The new fragment begins at the first entry that is not
confirmed. The bookies that join get everything that was sent from there on; their
acknowledgements count, and late ones of the bookies that left do not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple, cast

from ledger_client.errors import (
    LedgerClosed,
    LedgerError,
    LedgerFenced,
    OutcomeUnknown,
    PayloadTooLarge,
    WriterFailed,
    WrongPassword,
)
from ledger_client.ledgers.ensemble_state import NEVER, EnsembleState, Phase, Vacancies
from ledger_client.ledgers.records import Reason
from ledger_client.options import Options
from metadata.records import Fragment, LedgerRecord
from native.frame import Code
from native.link import Writer

Payload = bytes | bytearray | memoryview
PAYLOAD_SIZE_MAX = 5 * 1024 * 1024 - 256
"""A frame has 5 MiB; the entry must also fit the answer to any kind of read."""
CHUNK_SIZE = 512 * 1024
"""Payload bytes handed to C at once: small enough to pipeline, large enough to amortize."""
FEW = 64
"""With fewer payloads left than this, their sizes are added up one by one."""
LATE_S = 1.0
"""A timer later than this means that this process hung, and not the bookies."""
_IMMUTABLE = {bytes}


class Add:
    """Payloads to append with consecutive ids."""

    __slots__ = ("first", "largest", "payloads", "taken")

    def __init__(self, payloads: Sequence[Payload]) -> None:
        """Raises TypeError if a payload is not bytes, bytearray or memoryview."""
        kinds = set(map(type, payloads))
        if kinds == _IMMUTABLE:
            self.payloads = cast(Sequence[bytes], payloads)
        elif kinds <= {bytes, bytearray, memoryview}:
            self.payloads = list(map(bytes, payloads))  # they may change before they are sent
        else:
            raise TypeError(f"entries are bytes, not {', '.join(k.__name__ for k in kinds)}")
        self.largest = max(map(len, self.payloads), default=0)
        self.taken = 0
        self.first: int | None = None

    @property
    def ids(self) -> range:
        """Ids of the entries that were sent."""
        return range(0) if self.first is None else range(self.first, self.first + self.taken)

    def count_within(self, room: int) -> int:
        """Return how many of the remaining payloads surely fit in *room* bytes."""
        count = room // max(self.largest, 1)
        left = len(self.payloads) - self.taken
        if count >= min(left, FEW):
            return count
        # A few large payloads among many small ones make the estimate above far too small.
        rest = map(self.payloads.__getitem__, range(self.taken, len(self.payloads)))
        ends = accumulate(map(len, rest))
        return sum(1 for _ in takewhile(room.__ge__, ends))


class Chunk(NamedTuple):
    """Entries sent together. The frames are kept to be sent to a bookie that joins."""

    first: int
    last: int
    frames: Sequence[memoryview]
    """frames[i] is for the bookie at index i, and empty if it gets none of the entries"""
    sent_at: float
    adds: deque[Add]
    """adds whose last entry is in this chunk and not confirmed"""


# --- actions ---------------------------------------------------------------------------------


class Confirm(NamedTuple):
    """Every entry of *adds* is on its ack quorum, as are all entries before it."""

    adds: list[Add]


class Refuse(NamedTuple):
    """*add* failed; OutcomeUnknown if some of it was sent."""

    add: Add
    failure: LedgerError


class Detach(NamedTuple):
    """Give up the bookie at *place*: drop its queued frames, and count no answer."""

    place: int
    bookie_id: str


class Replace(NamedTuple):
    """Start a task that calls begin_replacement()."""


class Attach(NamedTuple):
    """Count the answers of a new bookie at *place* and send it its share of *chunks*."""

    place: int
    bookie_id: str
    chunks: Sequence[Sequence[memoryview]]


class Announce(NamedTuple):
    """Send *last_confirmed* to every bookie: no entry follows soon that would carry it."""

    last_confirmed: int


class End(NamedTuple):
    """Leave every bookie and stop replacing. *is_sent*: queued frames are still sent."""

    is_sent: bool


Action = Confirm | Refuse | Detach | Replace | Attach | Announce | End


class Change(NamedTuple):
    """A new fragment to publish after *expected_last*, or in its place."""

    expected_last: Fragment
    fragment: Fragment


class WriteState:
    """The state of one writer.

    Attributes:
        record: the ledger as this writer last published it.
        ensemble: its bookies.
        waiting: adds of which entries are not sent yet, in order.
        last_confirmed: the greatest acknowledged entry, -1 for none.
        next_entry: id of the next entry to be sent.
        failure: the error that ended the writer; None before that.
        is_ending: True once end() was called.
        due_at: when tick() is to be called.
    """

    def __init__(self, record: LedgerRecord, native: Writer, options: Options) -> None:
        state = native.state()
        self.record = record
        self.ensemble = EnsembleState(record, replace_timeout_s=options.replace_timeout_s)
        self.last_confirmed, self.next_entry = state.lac, state.next_entry
        self.failure: LedgerError | None = None
        self.is_ending = False
        self.due_at = NEVER
        self._native = native
        self._options = options
        self.waiting: deque[Add] = deque()
        self._sent: deque[Chunk] = deque()
        self._length = state.length
        self._announced = state.lac
        self._announced_next = 0  # next_entry when the announcement was scheduled
        self._announce_at = self._guard_at = NEVER

    # --- appending -----------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """True when everything appended is confirmed, or the writer has ended."""
        return not (self.waiting or self._sent)

    @property
    def has_room(self) -> bool:
        """False while bytes_in_flight_max bytes are sent and not confirmed."""
        return (
            self.failure is not None
            or self._native.state().pending_bytes < self._options.bytes_in_flight_max
        )

    @property
    def confirmed_length(self) -> int:
        """Payload bytes of the ledger up to last_confirmed."""
        return self._length if self.failure else self._native.state().confirmed_length

    def check_open(self) -> None:
        """Raise the error that add() would raise now, if any."""
        if self.failure is not None:
            raise self.failure
        if self.is_ending:
            raise LedgerClosed(self.record.ledger_id)

    def add(self, add: Add) -> None:
        """Queue the entries of *add* behind those of all earlier ones.

        Raises:
            WriterFailed, LedgerClosed: the writer takes no entries any more.
            PayloadTooLarge: one of the payloads; nothing is queued.
        """
        if self.failure is not None or self.is_ending:
            self.check_open()
        if add.largest > PAYLOAD_SIZE_MAX:
            raise PayloadTooLarge.entry(
                ledger_id=self.record.ledger_id, size=add.largest, size_max=PAYLOAD_SIZE_MAX
            )
        self.waiting.append(add)

    def withdraw(self, add: Add) -> None:
        """Send nothing more of *add*; entries sent already may be kept."""
        if add in self.waiting:
            self.waiting.remove(add)

    def next_chunk(self, now: float) -> Chunk | None:
        """Return the frames to send next; None if nothing waits."""
        if not self.waiting:
            return None
        payloads, complete = self._take_payloads()
        self._announced = self.last_confirmed  # these entries carry it
        first, frames = self._native.add(payloads)
        assert first == self.next_entry
        self.next_entry += len(payloads)
        chunk = Chunk(first, self.next_entry - 1, frames, now, complete)
        self._sent.append(chunk)
        if self._guard_at == NEVER:
            self._guard(now)
        return chunk

    def _take_payloads(self) -> tuple[list[bytes], deque[Add]]:
        """Return payloads for one chunk and the adds whose last payload is among them."""
        payloads: list[bytes] = []
        complete: deque[Add] = deque()
        room = CHUNK_SIZE
        while self.waiting:
            add = self.waiting[0]
            count = add.count_within(room)
            if count == 0 and payloads:
                break
            taken = add.payloads[add.taken : add.taken + max(count, 1)]
            if add.first is None:
                add.first = self.next_entry + len(payloads)
            add.taken += len(taken)
            payloads += taken
            room -= sum(map(len, taken))
            if add.taken < len(add.payloads):
                break
            complete.append(self.waiting.popleft())
        return payloads, complete

    # --- acknowledgements ----------------------------------------------------------------

    def acknowledged(self, now: float) -> list[Action]:
        """Handle new answers of bookies, which the native writer has counted."""
        state = self._native.state()
        actions: list[Action] = []
        if state.lac > self.last_confirmed:
            self._confirm(state.lac, now, actions)
        if state.refused and self.failure is None:
            actions += self._take_refusals(state.refused, state.code, now)
        return actions

    def _confirm(self, lac: int, now: float, actions: list[Action]) -> None:
        self.last_confirmed = lac
        sent = self._sent
        confirmed: list[Add] = []
        while sent:
            chunk = sent[0]
            adds = chunk.adds
            if chunk.last > lac:
                while adds and adds[0].ids[-1] <= lac:
                    confirmed.append(adds.popleft())
                break
            confirmed += adds  # each ends within its chunk
            sent.popleft()
        if confirmed:
            actions.append(Confirm(confirmed))
        if self._announce_at == NEVER and self._options.explicit_lac_s > 0:
            self._announce_later(now)

    def _take_refusals(self, refused: int, code: int, now: float) -> list[Action]:
        ledger_id = self.record.ledger_id
        if code == Code.FENCED:
            return self.fail(LedgerFenced(ledger_id), now)
        if code == Code.UNAUTHORIZED:
            return self.fail(WrongPassword(ledger_id), now)
        if code == Code.OTHER_LEDGER:
            return self.fail(LedgerFenced(ledger_id, "deleted, and its id is another's"), now)
        if code == Code.BAD_REQUEST:
            reason = "a bookie has a different entry with the same id"
            return self.fail(WriterFailed(reason, ledger_id=ledger_id), now)
        actions: list[Action] = []
        for index in range(self.record.ensemble_size):
            if refused >> index & 1:
                actions += self.lost(index, f"refused an entry with code {code}", now)
        return actions

    # --- time ----------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        """Do what is due at *now*; spurious calls do nothing."""
        if self.failure is not None:
            return []
        actions: list[Action] = []
        if now >= self._announce_at:
            self._announce_due(now, actions)
        if now >= self._guard_at:
            actions += self._check_oldest(now)
        if now >= self.ensemble.give_up_at:
            if now > self.ensemble.give_up_at + LATE_S:  # a replacement may be about to succeed
                self.ensemble.give_up_at = now + self._options.replace_timeout_s / 2
            elif failure := self.ensemble.give_up():
                actions += self.fail(failure, now)
        if self.failure is None and now >= self.ensemble.retry_at and self.ensemble.due():
            actions.append(Replace())
        self._set_due()
        return actions

    def _set_due(self) -> None:
        ensemble, ended = self.ensemble, self.failure is not None
        self.due_at = (
            NEVER
            if ended
            else min(self._announce_at, self._guard_at, ensemble.give_up_at, ensemble.retry_at)
        )

    def _announce_later(self, now: float) -> None:
        self._announce_at = now + self._options.explicit_lac_s
        self._announced_next = self.next_entry
        self._set_due()

    def _announce_due(self, now: float, actions: list[Action]) -> None:
        """Announce what is confirmed, unless entries that followed carry it."""
        self._announce_at = NEVER
        if self._announced >= self.last_confirmed:
            return
        if self.next_entry != self._announced_next:
            self._announce_later(now)
            return
        self._announced = self.last_confirmed
        actions.append(Announce(self.last_confirmed))

    def _guard(self, now: float) -> None:
        """Look at the oldest entry when half of its time is over, and at the end of it."""
        if self._sent:
            sent_at, limit_s = self._sent[0].sent_at, self._options.append_timeout_s
            half_at = sent_at + limit_s / 2
            self._guard_at = half_at if now < half_at else sent_at + limit_s
            self._set_due()

    def _check_oldest(self, now: float) -> list[Action]:
        """Give up the bookies that keep the oldest entry waiting, or the ledger."""
        due_at, self._guard_at = self._guard_at, NEVER
        if not self._sent:
            return []
        limit_s = self._options.append_timeout_s
        if now > due_at + LATE_S:  # acknowledgements of the meantime are not received yet
            self._guard_at = now + limit_s / 2
            return []
        actions: list[Action] = []
        oldest = self._sent[0]
        if oldest.sent_at + limit_s <= now:
            ledger_id, entry_id = self.record.ledger_id, oldest.first
            reason = f"entry {entry_id} was not acknowledged within {limit_s:g} s"
            return self.fail(WriterFailed(reason, ledger_id=ledger_id), now)
        if oldest.sent_at + limit_s / 2 <= now:
            for index in self._owing():
                reason = f"kept entry {self.last_confirmed + 1} waiting"
                actions += self.lost(index, reason, now)
        self._guard(now)
        return actions

    def _owing(self) -> list[int]:
        """Return the indexes of the bookies that lack the oldest entry, if another has it."""
        bits = self._native.owing()
        if not 0 < bits.bit_count() < self.record.write_quorum:
            return []
        return [index for index in range(self.record.ensemble_size) if bits >> index & 1]

    # --- losing and replacing bookies ------------------------------------------------------

    def lost(self, index: int, reason: str, now: float) -> list[Action]:
        """Give up the bookie at *index*. Reporting the same loss twice does nothing."""
        if self.failure is not None:
            return []
        ensemble = self.ensemble
        if not ensemble.lose(index, reason, self.last_confirmed, now):
            return []
        actions: list[Action] = [Detach(index, ensemble.bookies[index])]
        if ensemble.due():
            actions.append(Replace())
        self._set_due()
        return actions

    def slow(self, indexes: Sequence[int], now: float) -> list[Action]:
        """Give up bookies that take bytes too slowly, if the quorum can do without them."""
        actions: list[Action] = []
        if self.ensemble.has_quorum(without=indexes):
            for index in indexes:
                actions += self.lost(index, "too slow", now)
        return actions

    def begin_replacement(self) -> Vacancies | None:
        """Begin the attempt that is due; None if there is none.

        Bookies lost in the same turn of the scheduler are replaced together.
        """
        return None if self.failure is not None else self.ensemble.begin()

    def chosen(self, places: dict[int, str]) -> Change | None:
        """Hold the LAC and return the change to publish; None if the writer has ended.

        *places* names a bookie for some of the lost indexes.
        """
        if self.failure is not None:
            return None
        bookies = self.ensemble.choose(places)
        self._native.hold(True)
        fragment = Fragment(self._native.state().lac + 1, bookies)
        return Change(self.record.fragments[-1], fragment)

    def replaced(self, record: LedgerRecord, now: float) -> list[Action]:
        """Let the chosen bookies join: the change is published, as *record* shows."""
        self.record = record
        if self.failure is not None:
            return []
        chunks = [chunk.frames for chunk in self._sent]  # including those confirmed below
        actions: list[Action] = []
        for index, bookie_id in self.ensemble.fill().items():
            self._native.replace(index)
            actions.append(Attach(index, bookie_id, chunks))
        self._native.hold(False)
        return actions + self.acknowledged(now)

    def not_replaced(self, cause: LedgerError, now: float) -> list[Action]:
        """Try again after a pause: no bookie can join now, or nothing was published."""
        if self.failure is not None:
            return []
        actions: list[Action] = []
        if self.ensemble.phase is Phase.CHANGING:
            self._native.hold(False)
            actions = self.acknowledged(now)
        self.ensemble.pause(cause, now)
        self._set_due()
        return actions

    # --- the end ---------------------------------------------------------------------------

    def end(self) -> None:
        """Take no further entries; those that were added are still sent and confirmed."""
        self.is_ending = True

    def fail(self, failure: LedgerError, now: float) -> list[Action]:
        """End writing: the last confirmed entry is final. Only the first failure counts."""
        if self.failure is not None:
            return []
        state = self._native.state()
        actions: list[Action] = []
        if state.lac > self.last_confirmed:  # not reported yet: its connection failed with it
            self._confirm(state.lac, now, actions)
        self._length = state.confirmed_length
        self.failure = failure
        actions.append(End(is_sent=not self._sent))
        refused = [add for chunk in self._sent for add in chunk.adds] + [*self.waiting]
        actions += [Refuse(add, self._outcome(add, failure)) for add in refused]
        self._sent.clear()
        self.waiting.clear()
        self._set_due()
        return actions

    def _outcome(self, add: Add, failure: LedgerError) -> LedgerError:
        """Return *failure*, or OutcomeUnknown for entries that may be in the ledger."""
        if add.first is None or isinstance(failure, WrongPassword):
            return failure
        unknown = OutcomeUnknown(
            ledger_id=self.record.ledger_id,
            first_entry=max(add.first, self.last_confirmed + 1),
            last_entry=add.first + len(add.payloads) - 1,
            reason=str(failure),
        )
        unknown.__cause__ = failure
        return unknown

    def is_behind(self) -> bool:
        """True while a bookie that was not given up lacks entries that it was sent.

        False once a bookie was lost: then waiting for the others proves nothing.
        """
        return self.failure is None and not self.ensemble.has_lost and bool(self._native.behind())

    def doubt(self) -> Reason | None:
        """Return a reason to check copies of confirmed entries; None if none are missing.

        No other process notices this before the next audit.
        """
        if self.last_confirmed < 0:
            return None
        if self.ensemble.has_lost:
            return "ensemble changed"
        return "check" if self._native.behind() else None
