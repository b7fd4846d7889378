"""Who holds what: ledgers, bookies, cookies and leases, changed by compare-and-set.

``metadata.store`` states the interface that every driver keeps; ``metadata.urls``
opens a driver from a URL; ``metadata.records`` says what is stored under which
key; ``metadata.calls`` carries the same operations to a bookie and back.
"""
