"""Readers: places, lanes read forward and back, merged, as messages or as columns."""
