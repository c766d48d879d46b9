"""GPUs slowed down by a power brake."""
