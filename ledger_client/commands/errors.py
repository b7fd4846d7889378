"""Why a command could not do what was asked, beside what the client raises.

CommandFailed          the message says why and, where it can, what to do next
├── RecordTooLarge     a line or record does not fit in an entry
├── RecordCut          the input ended within a record
├── RecordUnreadable   a line is not what the form or the fields ask for
├── SandboxFailed      bookies of our own did not start
├── PeerSilent         a bookie asked directly did not answer
└── NotHealed          a ledger did not get all of its copies back in time
Interrupted            Ctrl-C or SIGTERM came; the command has tidied up
"""


class CommandFailed(Exception):
    """The command cannot go on."""


class RecordTooLarge(CommandFailed):
    """A line or record does not fit in an entry. Nothing after it was read."""


class RecordCut(CommandFailed):
    """The input ended within a record."""


class RecordUnreadable(CommandFailed):
    """A line is not what it should be. What came shortly before it may not be taken either."""


class SandboxFailed(CommandFailed):
    """Bookies of our own did not start, or not again."""


class PeerSilent(CommandFailed):
    """A bookie closed the connection, did not answer in time, or answered a failure."""


class NotHealed(CommandFailed):
    """Repair did not make every copy whole in the time that it was given."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM came; the command has tidied up and said what holds."""


def first_of(error: BaseException) -> BaseException:
    """Return the error itself, or the first one within a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
