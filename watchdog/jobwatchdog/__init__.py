"""Job-resilience watchdog for LLM training: what broke, who is at fault, and the declared remedy, once."""

__version__ = "0.1.0"
