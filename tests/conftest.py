"""What every test expects of the process that it runs in."""

from __future__ import annotations

import signal

from spark_session import spark

__all__ = ["spark"]

# A shell that starts pytest in the background has SIGINT ignored, in pytest and in
# every process that it starts. Tests of Ctrl-C need it to be as in a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
