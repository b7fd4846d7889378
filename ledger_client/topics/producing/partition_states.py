"""The phases of a partition's lane, and the actions that its machine lists.

The tables of both are in partition_machine.py.
"""

from __future__ import annotations

from enum import Enum, auto


class Action(Enum):
    """A task for the driver. Each may be listed several times."""

    OPEN_LANE = auto()
    LEAVE_LANE = auto()
    APPEND = auto()
    """start a task that calls take() and appends until nothing is left"""
    STAMP = auto()
    """start a task that calls ask(), gets timestamps and calls stamped(), until ask() is 0"""
    LINGER = auto()
    """call seal() after a while, if the batch that gathers now still does"""
    WAKE = auto()
    """tasks that wait for the lane, or to be admitted, look again"""
    END_PRODUCER = auto()
    """another producer has the lane: the whole producer takes nothing any more"""


class LanePhase(Enum):
    """The phase of the lane; see the table at the top."""

    CLOSED = auto()
    OPENING = auto()
    OPEN = auto()
    LEAVING = auto()
    ENDED = auto()
