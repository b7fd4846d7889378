"""Metadata of a cluster: ledgers, bookies, cookies and leases, changed by compare-and-set.

``metadata.store`` defines the interface of every driver; ``metadata.urls`` opens a driver
from a URL; ``metadata.records`` defines keys and their values; ``metadata.calls`` carries
the same operations to a bookie and back.
"""
