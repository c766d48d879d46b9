"""A loss or gradient norm that is no number any more."""
