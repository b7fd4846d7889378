"""What an application had of partitions when they went, so that it comes again at another member.

The application is told once, by its next commit. Until then a commit that was under way may turn
out to be stored: then nothing of it comes again.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from ledger_client.topics.positions import EARLIEST, Places
from metadata.groups.assignment import Part


class Lapses:
    """The lapses of one member: the last one of each partition."""

    def __init__(self) -> None:
        self._had: dict[Part, Places] = {}
        """where what was handed out and not committed ends, in each lane"""
        self._untold: set[Part] = set()
        self._known: dict[Part, Places] = {}
        """what the application knows to have lost, of partitions that have not gone yet"""

    def begin(self, part: Part) -> None:
        """Note that *part* is read anew: what is handed out from now on may lapse again."""
        self._known.pop(part, None)

    def add(self, had: Mapping[Part, Places], telling: Set[Part]) -> None:
        """Note what the application *had* of partitions that went; it is told of *telling*.

        Of each only the lanes in which something is not committed.
        """
        self._had.update(had)
        self._untold |= {
            part for part in had.keys() & telling if beyond(had[part], self._known.get(part, {}))
        }

    def note_stored(self, places: Mapping[Part, Places]) -> None:
        """Forget what comes not again, since *places* were stored."""
        for part in self._had.keys() & places.keys():
            self._had[part] = beyond(self._had[part], places[part])
            if not self._had[part]:
                del self._had[part]
                self._untold.discard(part)

    def note_told(self, parts: Set[Part], handed: Mapping[Part, Places]) -> None:
        """Note that the application knows that *parts* went, or go with what was *handed* out."""
        self._untold -= parts
        self._known |= {part: handed[part] for part in parts & handed.keys()}

    def among(self, parts: Set[Part]) -> Set[Part]:
        """Return those of *parts* that lapsed."""
        return parts & self._had.keys()

    @property
    def untold(self) -> Set[Part]:
        """The partitions of which the application is to be told."""
        return self._untold


def beyond(places: Places, stored: Places) -> Places:
    """Return those of the *places* that lie behind what was *stored* of their lanes."""
    return {lane: at for lane, at in places.items() if at.at > stored.get(lane, EARLIEST).at}
