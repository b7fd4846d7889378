"""Repair: every closed ledger has all its copies, whatever happened to its bookies.

The leader (one bookie, by lease) marks the ledgers that may lack copies; workers, in
every bookie, take marks, look at what the bookies hold, copy what is missing, change the
location list, and remove the mark once everything is there.

    audit ──► mark ──► worker: lease ► look ► plan ► copy ► look again ► change, unmark
"""
