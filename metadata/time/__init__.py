"""The cluster's time: the layout of timestamps, and the oracle that allots them."""
