"""Append-only record of what was seen, decided, intended and done."""

from jobwatchdog.ledger.database import default_url, state_dir
from jobwatchdog.ledger.errors import LedgerError, StaleEpoch
from jobwatchdog.ledger.ledger import Ledger
from jobwatchdog.ledger.reader import Entry, JobLine, Reader

__all__ = ["Entry", "JobLine", "Ledger", "LedgerError", "Reader", "StaleEpoch", "default_url", "state_dir"]
