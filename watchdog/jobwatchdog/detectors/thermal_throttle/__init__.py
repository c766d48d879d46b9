"""GPUs slowed down by heat."""
