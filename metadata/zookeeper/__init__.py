"""The ZooKeeper driver: the store's keys as znodes, ledgers in BookKeeper's own layout."""
