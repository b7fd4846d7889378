"""How the commands bookie and quire start: Ctrl-C ends them quietly while they load.

To load a program takes a quarter of a second, and an interrupt in it would print a traceback from
the midst of an import. So the entry points are here, in a module that loads nothing itself. Once
the program runs, it handles interrupts (outcome.py).
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import NoReturn

_INTERRUPTED = 130
"""outcome.Exit.INTERRUPTED, which takes long to load."""


def quire() -> NoReturn:
    """Run the command quire, and exit with its code."""
    _run("ledger_client.__main__")


def bookie() -> NoReturn:
    """Run the command bookie, and exit with its code."""
    _run("bookie.command_line")


def _run(program: str) -> NoReturn:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, _end)
    gc.disable()  # what is loaded stays, and to look for garbage in it took a sixth of the time
    main = import_module(program).main
    gc.freeze()
    gc.enable()
    try:
        if signal.getsignal(signal.SIGINT) is _end:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        main()
    except KeyboardInterrupt:  # before or after the program handles them
        sys.exit(_INTERRUPTED)
    sys.exit(0)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    """End at once: nothing was begun. An exception would surface wherever the import is."""
    os._exit(_INTERRUPTED)
