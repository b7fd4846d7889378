"""Lanes: their writers, and their way from ledger to ledger."""
