"""GPUs slowed down for other reasons, or without one."""
