"""Repair: every closed ledger gets all its copies back, whatever happened to its bookies.

The leader (one bookie, elected by lease) marks ledgers that may lack copies. Every bookie
runs a worker that takes marks, asks bookies what they hold, copies what is missing, updates
the location list, and removes the mark once every copy is in place.

    audit ──► mark ──► worker: claim ► look ► plan ► copy ► look again ► change, unmark
"""
