"""Tailers and pollers; each yields what the scanner and the detectors read."""
