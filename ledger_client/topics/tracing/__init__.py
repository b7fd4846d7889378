"""Where a message is, and why a reader does not get it."""
