"""One rank that slows all others down."""
