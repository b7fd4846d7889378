"""Closing a ledger in its writer's place, so that nothing acknowledged is lost.

    IN_RECOVERY ──► fencing ──► tail ──────────► writer ─────────► CLOSED
    one CAS         no bookie   each entry above  those entries,   one CAS, with
                    takes the   the last that is  on ack_quorum    the end and the
                    writer's    known confirmed:  bookies again    fragments
                    entries     there or absent

Any number of clients may do this at once, and may stop anywhere: the last
compare-and-set decides, and whoever loses it takes the winner's result.
"""
