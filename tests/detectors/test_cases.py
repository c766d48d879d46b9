"""The cases that lie beside each detector, from bytes to incidents; and their runner's own words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jobwatchdog.policy.document import PolicyErrors
from jobwatchdog.signals.catalogue import Catalogue, parse_catalogue
from jobwatchdog.signals.scanner import Scanner
from jobwatchdog.testing.cases import Case, read_cases, run_case
from jobwatchdog.testing.policy_tests import Kit

FOLDERS = sorted(
    path.parent
    for path in (Path(__file__).parents[2] / "watchdog" / "jobwatchdog" / "detectors").glob("*/detector.yaml")
)
LIVE = {"power_brake", "clock_throttle", "thermal_throttle", "straggler"}  # read measurements: tested with series too


def cases_of(folder: Path) -> list[Case]:
    return [
        case
        for path in sorted((folder / "cases").glob("*.yaml"))
        for case in read_cases(path.read_text(encoding="utf-8"), f"{folder.name}/cases/{path.name}")
    ]


CASES = [case for folder in FOLDERS for case in cases_of(folder)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}: {case.spec.name}")
def test_a_case_comes_out_as_expected(case: Case, kit: Kit) -> None:
    """Real scanner, real detectors, real incidents."""
    wrong = run_case(case, kit)
    assert not wrong, wrong


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_detector_has_cases_that_fire_and_lookalikes_that_do_not(folder: Path) -> None:
    """Two of each; one of each for those that read measurements."""
    specs = [case.spec for case in cases_of(folder)]
    least = 1 if folder.name in LIVE else 2
    assert sum(spec.expect.silent is None for spec in specs) >= least
    assert sum(spec.expect.silent is True for spec in specs) >= least


def test_no_two_cases_of_a_detector_have_one_name() -> None:
    """A failure names its case."""
    names = [(case.file.split("/")[0], case.spec.name) for case in CASES]
    assert len(set(names)) == len(names)


BAD = """\
cases:
  - name: a bad kind and an unknown key
    log: "x"
    expect: {fires: {kind: cuda_oomm, rank: 3}}
  - name: no log
    expect: {silent: true}
  - name: two outcomes
    log: "x"
    expect: {silent: true, fires: {kind: cuda_oom}}
"""


def test_every_mistake_in_a_case_file_is_told_with_its_line_and_key() -> None:
    """All at once."""
    with pytest.raises(PolicyErrors) as caught:
        read_cases(BAD, "x.yaml")
    told = str(caught.value)
    assert "x.yaml:4:28: cases[0].expect.fires.kind: 'cuda_oomm' is not allowed (did you mean `cuda_oom`?)" in told
    assert "x.yaml:4:" in told
    assert "unknown key `rank`" in told
    assert "did you mean `ranks`?" in told
    assert "x.yaml:5:5: cases[1]: a case has `log` or `logs`" in told.replace("value error, ", "")
    assert "expect one of fires, silent, recovers" in told


def test_a_failed_case_says_what_was_expected_and_what_came(kit: Kit) -> None:
    """With the line that made the incident."""
    text = """\
cases:
  - name: a wrong guess
    log: "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    expect: {fires: {kind: cuda_oom, ranks: [4], confidence_at_least: 0.99}}
  - name: a wrong silence
    log: "srun: error: Node failure on node-12"
    expect: {silent: true}
"""
    first, second = (run_case(case, kit) for case in read_cases(text, "x.yaml"))
    assert "x.yaml:2 a wrong guess\n  ranks: expected [4], came [3]\n  confidence: expected at least 0.99" in first
    assert "from train.log:1: [rank3]: torch.OutOfMemoryError" in first
    assert "x.yaml:5 a wrong silence\n  expected silence\n  found open {'kind': 'slurm_node_fail'" in second


def test_the_documented_catalogue_passes_its_documented_cases(kit: Kit) -> None:
    """What docs/plugins.md shows is what works."""
    page = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
    signatures, cases = (block.split("```")[0] for block in page.split("```yaml\n")[1:])
    catalogue = Catalogue(parse_catalogue(signatures, "plugins.md"))
    site = replace(kit, scanner=lambda: Scanner(catalogue))
    told = [run_case(case, site) for case in read_cases(cases, "plugins.md")]
    assert told == ["", ""]
