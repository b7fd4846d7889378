"""Replicated ledgers: written, read, followed and recovered."""
