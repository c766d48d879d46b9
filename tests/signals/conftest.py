"""A small catalogue, so that a scanner is made in milliseconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobwatchdog.signals.catalogue import Catalogue, parse_catalogue
from jobwatchdog.signals.scanner import Scanner, compile_database

TEXT = r"""
version: 1
signatures:
  - id: oom
    kind: cuda_oom
    pattern: 'CUDA out of memory(?:\. Tried to allocate (?P<asked>[\d.]+ [KMG]iB))?'
    unless: 'trying batch'
    summary: A GPU ran out of memory.
    matches: ['CUDA out of memory. Tried to allocate 2.00 GiB']
    rejects: ['CUDA out of memory, trying batch size 32']
  - id: xid
    kind: xid
    pattern: 'Xid \(PCI:(?P<gpu>[0-9a-f:]+)\): (?P<xid>\d+)'
    summary: The driver reports an XID.
    matches: ['NVRM: Xid (PCI:0000:c5:00): 79, GPU has fallen off the bus.']
  - id: traceback
    role: context
    pattern: '^Traceback'
    summary: A traceback begins.
    matches: ['Traceback (most recent call last):']
  - id: lonely
    role: context
    pattern: '^lonely$'
    summary: A whole line.
    matches: ['lonely']
"""


@pytest.fixture(scope="session")
def make_scanner() -> Callable[[], Scanner]:
    """A fresh scanner over the small catalogue."""
    catalogue = Catalogue(parse_catalogue(TEXT, "small.yaml"))
    database = compile_database(catalogue)
    return lambda: Scanner(catalogue, database=database)
