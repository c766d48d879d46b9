"""Catalogues and their compiled database, the latter kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from jobwatchdog import __version__
from jobwatchdog.signals.catalogue import Catalogue, CatalogueError, Problem
from jobwatchdog.signals.scanner import Scanner, compile_database, database_key


def cache_dir() -> Path:
    """Return where compiled patterns are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jobwatchdog"


def read_catalogues(paths: Iterable[Path]) -> list[tuple[str, str]]:
    """Read a site's catalogues; CatalogueError names a file that cannot be read."""
    found = []
    for path in paths:
        try:
            found.append((str(path), path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise CatalogueError([Problem(str(path), 1, f"cannot be read: {error}")]) from error
    return found


def load_scanner(texts: Sequence[tuple[str, str]], bundled: Sequence[tuple[str, str]]) -> Scanner:
    """Return a scanner for the bundled and a site's catalogues; CatalogueError for a bad one.

    The database comes from the cache where it can; a cache that cannot be read or written costs a second.
    """
    catalogue = Catalogue(
        [*Catalogue.parse(bundled, check=False).signatures, *Catalogue.parse(texts, check=True).signatures]
    )
    path = _cache_path(catalogue)
    try:
        return Scanner(catalogue, database=path.read_bytes())
    except Exception:  # not there, not readable, cut short, of another engine: it is only a cache
        database = compile_database(catalogue)
    _keep(path, database)
    return Scanner(catalogue, database=database)


def _cache_path(catalogue: Catalogue) -> Path:
    salt = hashlib.sha256(f"{__version__}{os.uname().machine}{_cpu()}".encode()).hexdigest()[:8]
    return cache_dir() / f"patterns-{database_key(catalogue)}-{salt}.db"


def _cpu() -> str:
    # A database is compiled for the instructions of its processor; a home directory is shared by many kinds.
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as info:
            return next((line for line in info if line.startswith(("flags", "Features"))), "")
    except OSError:
        return ""


def _keep(path: Path, database: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as out:
            out.write(database)
        Path(name).replace(path)
    except OSError:
        return
