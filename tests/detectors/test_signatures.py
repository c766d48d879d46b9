"""Each signature keeps its word: its examples through the real scanner, however a launcher dresses the line up."""

from __future__ import annotations

import pytest
import re2

from jobwatchdog import bundled
from jobwatchdog.model import LogMatch
from jobwatchdog.signals.catalogue import Catalogue, Signature, parse_catalogue
from jobwatchdog.signals.multipattern import Matcher
from jobwatchdog.signals.scanner import Scanner, StreamInfo

SIGNATURES = [one for name, text in bundled.signature_texts() for one in parse_catalogue(text, name, check=False)]
ANCHORED = {"pyspy-hung-collective", "dump-of-hung-job"}  # whose indentation or line start is what tells them

PADS = ["x" * length + " " for length in (1, 2, 3, 5, 8, 12, 13, 16, 24, 31, 40, 63, 100, 250)] + ["a/b: c: " * 8]

DRESSES = {
    "bare": "{}",
    "torch": "[rank3]: {}",
    "torchrun": "[default0]:{}",
    "srun": " 12: {}",
    "ray": "(pid=123, ip=10.0.0.1) {}",
    "ray actor": "(RayTrainWorker pid=123, ip=10.0.0.1) {}",
    "docker": "2026-11-30T12:00:01.123456789Z {}",
    "containerd": "2026-11-30T12:00:01.123456789Z stderr F {}",
    "colour": "\x1b[31;1m{}\x1b[0m",
    "open mpi": "[1,3]<stderr>:{}",
}


@pytest.mark.parametrize(
    ("name", "text"), bundled.signature_texts(), ids=[name for name, _ in bundled.signature_texts()]
)
def test_a_catalogue_is_good(name: str, text: str) -> None:
    """Patterns compile, examples match, counter-examples do not."""
    assert parse_catalogue(text, name, check=True)


def test_ids_are_unique_over_all_catalogues(catalogue: Catalogue) -> None:
    """Reports and documentation name signatures by id."""
    assert len(catalogue.by_id) == len(SIGNATURES)


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda one: one.id)
def test_a_signature_has_a_counter_example(signature: Signature) -> None:
    """A pattern that nobody held against a lookalike is a guess."""
    assert signature.rejects, f"{signature.file}:{signature.line}: `rejects` needs a lookalike of {signature.id}"


def found(scanner: Scanner, line: str) -> set[str]:
    stream = scanner.open(StreamInfo("job.log"))
    signals = [*scanner.feed(stream, f"{line}\n".encode()), *scanner.finish(stream)]
    return {one.signature for one in signals if isinstance(one, LogMatch)}


@pytest.mark.parametrize("dress", DRESSES)
def test_every_example_is_found_in_this_dress(dress: str, catalogue: Catalogue, database: bytes) -> None:
    """The same line, whoever carried it here."""
    scanner = Scanner(catalogue, database=database)
    missed = [
        f"{one.file}:{one.line}: {one.id} does not see {DRESSES[dress].format(line)!r}"
        for one in SIGNATURES
        for line in one.matches
        if "\n" not in line and not (one.id in ANCHORED and dress not in ("bare", "colour"))
        if one.id not in found(scanner, DRESSES[dress].format(line))
    ]
    assert not missed, "\n".join(missed)


def test_the_engine_finds_every_example_wherever_it_stands_in_its_line(catalogue: Catalogue, database: bytes) -> None:
    """The multi-pattern engine has lost matches behind a dozen letters, of patterns that RE2 reads well."""
    matcher = Matcher(database)
    missed = []
    for number, one in enumerate(catalogue.signatures):
        regex = re2.compile(one.pattern)
        missed += [
            f"{one.file}:{one.line}: {one.id} is not found in {line!r}"
            for line in (f"{pad}{example}" for example in one.matches for pad in PADS)
            if regex.search(line) and number not in matcher.numbers(f"{line}\n".encode())
        ]
    assert not missed, "\n".join(missed)


def test_no_counter_example_is_found_by_the_scanner(catalogue: Catalogue, database: bytes) -> None:
    """The multi-pattern engine agrees with RE2 on what is none."""
    scanner = Scanner(catalogue, database=database)
    wrong = [
        f"{one.file}:{one.line}: {one.id} sees {line!r}"
        for one in SIGNATURES
        for line in one.rejects
        if one.id in found(scanner, line)
    ]
    assert not wrong, "\n".join(wrong)
