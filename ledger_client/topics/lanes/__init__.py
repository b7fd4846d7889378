"""Lanes: who writes them, and how they go on from ledger to ledger."""
