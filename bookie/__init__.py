"""One node: accept entries, make them durable, serve them, clean up."""
