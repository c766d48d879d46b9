"""The policy language: what to do about which incident, and how far to go."""
