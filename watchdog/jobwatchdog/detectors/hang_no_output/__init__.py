"""A job that is alive but no longer gets on."""
