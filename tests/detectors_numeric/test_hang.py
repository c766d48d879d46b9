"""A hang is found by the job's own pace; a pause with a reason is none."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import jobwatchdog
from jobwatchdog.detectors.hang_no_output.detector import HangDetector, build
from jobwatchdog.detectors.registry import parse_document
from jobwatchdog.model import (
    Finding,
    Job,
    JobId,
    JobPhase,
    JobStateSeen,
    Origin,
    OutputSeen,
    Phase,
    PhaseChanged,
    ProcessSeen,
    ProcState,
    Signal,
    SourceLost,
    StepReport,
)

JOB = JobId("job")
FOLDER = Path(jobwatchdog.__file__).parent / "detectors" / "hang_no_output"
R, S, T, D = ProcState.RUNNING, ProcState.SLEEPING, ProcState.STOPPED, ProcState.DISK_SLEEP


def detector() -> HangDetector:
    document = parse_document((FOLDER / "detector.yaml").read_text())
    return build(JOB, {name: t.value for name, t in document.thresholds.items()})


class World:
    """A job of two ranks, sampled once a second, with a clock of its own."""

    def __init__(self, step_s: float = 0.2, *, processes: bool = True, launcher: str = "local") -> None:
        self.hang = detector()
        self.now_s, self.step_s, self.step = 1000.0, step_s, 0
        self.processes = processes
        self.cpu = [0.0, 0.0]
        self.found: list[tuple[float, Finding]] = []
        self._sampled_s = 0.0
        self.hang.job_changed(Job(id=JOB, launcher=launcher, started_s=self.now_s))

    def say(self, signal: Signal) -> None:
        self._keep(self.hang.observe(signal, self.now_s))

    def train(self, steps: int, *, busy: float = 1.0) -> None:
        for _ in range(steps):
            self.wait(self.step_s, busy=(busy, busy))
            self.step += 1
            self.say(StepReport(framework="nanogpt", step=self.step, loss=2.0))
            self.say(OutputSeen(n_bytes=80))

    def wait(
        self, seconds: float, *, states: tuple[ProcState, ProcState] = (S, S), busy: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """Time passes as an engine sees it: samples once a second, ticks when the detector asked for them."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            due_s = self.hang.next_deadline_s()
            before_s = self.now_s
            self.now_s = min(end_s, self._sampled_s + 1.0 if self.processes else end_s, due_s or end_s)
            self.now_s = max(self.now_s, before_s)
            for rank in (0, 1):
                self.cpu[rank] += busy[rank] * (self.now_s - before_s)
            if self.processes and self.now_s >= self._sampled_s + 1.0:
                self._sampled_s = self.now_s
                for rank in (0, 1):
                    origin = Origin(rank=rank, pid=100 + rank, node="node-1")
                    self.say(ProcessSeen(origin=origin, state=states[rank], cpu_s=self.cpu[rank]))
            if due_s is not None and self.now_s >= due_s:
                self._keep(self.hang.tick(self.now_s))

    def _keep(self, findings: Iterable[Finding]) -> None:
        self.found += [(self.now_s, f) for f in findings]

    def only(self) -> tuple[float, Finding]:
        assert len(self.found) == 1, [f.summary for _, f in self.found]
        return self.found[0]


def test_a_stopped_rank_is_named_within_five_seconds() -> None:
    """Its process group would have waited half an hour."""
    world = World()
    world.train(25)
    since_s = world.now_s
    world.wait(20, states=(S, T))
    at_s, finding = world.only()
    assert at_s - since_s <= 5.0
    assert (finding.suspects.ranks, finding.suspects.pids, finding.suspects.nodes) == ((1,), (101,), ("node-1",))
    assert finding.confidence >= 0.9
    assert finding.onset_step == 25
    assert finding.onset_s == pytest.approx(since_s)


def test_a_rank_stopped_in_the_first_steps_is_found_too() -> None:
    """Nothing is learned yet, but a stopped process needs no pace to be judged."""
    world = World()
    world.train(2)
    world.wait(10, states=(T, S))
    assert world.only()[1].suspects.ranks == (0,)


def test_a_stop_for_a_glance_is_no_hang() -> None:
    """A profiler stops a process for a moment."""
    world = World()
    world.train(25)
    world.wait(1.0, states=(S, T))
    world.train(25)
    assert world.found == []


def test_a_job_paused_as_a_whole_is_not_acted_upon() -> None:
    """Somebody, or a scheduler, suspended all of it."""
    world = World()
    world.train(25)
    world.wait(30, states=(T, T))
    assert world.found == []
    world.wait(60, states=(T, T))
    assert world.only()[1].confidence < 0.7


def test_idle_ranks_are_a_hang_after_some_seconds() -> None:
    """Nobody computes, nobody prints: a second signal for the silence."""
    world = World()
    world.train(60)
    since_s = world.now_s
    world.wait(40)
    at_s, finding = world.only()
    assert 14 <= at_s - since_s <= 17
    assert finding.confidence >= 0.7
    assert not finding.suspects


def test_a_rank_that_idles_while_others_spin_is_the_suspect() -> None:
    """Spinning ranks wait in a collective that the idle one never reached."""
    world = World()
    world.train(60)
    world.wait(40, states=(R, S), busy=(1.0, 0.0))
    assert world.only()[1].suspects.ranks == (1,)


def test_a_rank_in_the_disk_is_the_suspect() -> None:
    """State D cannot be left by itself."""
    world = World()
    world.train(60)
    world.wait(40, states=(S, D))
    assert world.only()[1].suspects.ranks == (1,)


@pytest.mark.parametrize("pause_s", [8.0, 40.0])
def test_a_slow_checkpoint_is_no_hang(pause_s: float) -> None:
    """Also when all earlier ones took a moment."""
    world = World(step_s=0.1)
    for saved in range(4):
        world.train(10)
        world.say(PhaseChanged(phase=Phase.CHECKPOINT, begin=True, step=world.step))
        world.wait(pause_s if saved == 3 else 0.01, busy=(0.2, 0.0))
        world.say(PhaseChanged(phase=Phase.CHECKPOINT, begin=False, step=world.step))
    world.train(10)
    assert world.found == []


def test_a_checkpoint_without_an_end_line_ends_with_the_next_step() -> None:
    """And its length is not learned as a gap between steps."""
    world = World()
    world.train(20)
    world.say(PhaseChanged(phase=Phase.CHECKPOINT, begin=True))
    world.wait(40)
    world.train(20)
    since_s = world.now_s
    world.wait(30)
    assert world.only()[0] - since_s < 17


def test_an_evaluation_that_says_nothing_but_computes_is_no_hang_yet() -> None:
    """Busy ranks get more time."""
    world = World()
    world.train(60)
    world.wait(50, states=(R, R), busy=(1.0, 1.0))
    world.train(5)
    assert world.found == []


def test_a_hung_checkpoint_is_judged_by_its_own_history() -> None:
    """Ten minutes without any history; five times the longest with one."""
    world = World(processes=False)
    world.train(20)
    world.say(PhaseChanged(phase=Phase.CHECKPOINT, begin=True))
    world.wait(599)
    assert world.found == []
    world.wait(10)
    assert world.only()[1].summary.startswith("no progress for 600")


def test_slow_steps_get_a_slow_deadline() -> None:
    """Steps of a minute make five minutes of silence normal."""
    world = World(step_s=60.0, processes=False)
    world.train(12)
    world.wait(290)
    assert world.found == []
    world.wait(60)
    assert world.only()[1].confidence < 0.7


def test_a_log_alone_is_believed_after_twice_its_deadline() -> None:
    """One signal is weak, but it grows with time."""
    world = World(processes=False)
    world.train(60)
    world.wait(31)
    assert world.only()[1].confidence < 0.7
    world.wait(60)
    assert world.found[1][1].confidence >= 0.7


def test_buffered_output_is_no_hang() -> None:
    """Eight kilobytes hold many steps; the gaps between bursts are what is normal."""
    world = World(processes=False)
    for _ in range(12):
        world.wait(20)
        for _ in range(100):
            world.step += 1
            world.say(StepReport(framework="nanogpt", step=world.step, loss=2.0))
        world.say(OutputSeen(n_bytes=8192))
    world.wait(90)
    assert world.found == []
    world.wait(20)
    assert len(world.found) == 1


def test_steps_that_come_after_all_take_it_back() -> None:
    """The finding is closed by its own detector."""
    world = World()
    world.train(60)
    world.wait(20)
    world.train(1)
    assert [f.recovered for _, f in world.found] == [False, True]


def test_a_restart_that_never_steps_is_a_hang() -> None:
    """Judged by how long the job's start took before."""
    world = World()
    world.wait(4.0, busy=(1.0, 1.0))
    world.train(25)
    world.hang.job_changed(Job(id=JOB, launcher="local", attempt=1, started_s=world.now_s))
    since_s = world.now_s
    world.wait(5, busy=(1.0, 1.0))
    world.wait(60)
    at_s, finding = world.found[0]
    assert 19.9 <= at_s - since_s <= 30
    assert finding.confidence >= 0.7


def test_a_slow_restart_is_no_hang() -> None:
    """It computes; a busy start gets a minute, or five times the first."""
    world = World()
    world.wait(4.0, busy=(1.0, 1.0))
    world.train(25)
    world.hang.job_changed(Job(id=JOB, launcher="local", attempt=1, started_s=world.now_s))
    world.wait(50, busy=(0.6, 0.6))
    world.train(5)
    assert world.found == []


def test_a_start_may_take_minutes() -> None:
    """Imports and data indexes print nothing."""
    world = World()
    world.wait(300, busy=(0.9, 0.9))
    world.train(30)
    assert world.found == []


def test_after_the_end_of_training_nobody_hangs_for_a_while() -> None:
    """And even then a restart would be waste."""
    world = World()
    world.train(60)
    world.say(PhaseChanged(phase=Phase.SHUTDOWN, begin=True))
    world.wait(290)
    assert world.found == []
    world.wait(20)
    assert world.only()[1].confidence < 0.7


def test_a_lost_log_is_no_hang() -> None:
    """Missing evidence is no evidence."""
    world = World(processes=False)
    world.train(60)
    world.say(SourceLost(source="rank0.log", reason="stale file handle"))
    world.wait(900)
    assert world.found == []


@pytest.mark.parametrize("state", [JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.CANCELLED, JobPhase.UNKNOWN])
def test_a_job_that_does_not_run_cannot_hang(state: JobPhase) -> None:
    """Its end is another detector's business; not seeing it is nobody's."""
    world = World(processes=False)
    world.train(60)
    world.say(JobStateSeen(state=state))
    world.wait(900)
    assert world.found == []


def test_a_dead_rank_makes_it_a_crash_not_a_hang() -> None:
    """The others' silence is fallout."""
    world = World()
    world.train(60)
    world.say(ProcessSeen(origin=Origin(rank=1, pid=101), state=ProcState.GONE, exit_signal=9))
    world.processes = False
    world.wait(900)
    assert world.found == []


def test_a_watchdog_that_was_frozen_does_not_blame_the_job() -> None:
    """On waking, minutes have passed of which it has read nothing yet."""
    world = World()
    world.train(60)
    world.now_s += 300
    for rank in (0, 1):
        world.say(ProcessSeen(origin=Origin(rank=rank, pid=100 + rank), state=S, cpu_s=world.cpu[rank]))
    world._keep(world.hang.tick(world.now_s))
    assert world.found == []


def test_a_replayed_log_never_asks_for_ticks() -> None:
    """A log that ends, or pauses and resumes, proves no hang."""
    hang = detector()
    for step in range(60):
        hang.observe(StepReport(framework="nanogpt", step=step, loss=2.0), 1000.0 + step)
    assert hang.next_deadline_s() is None
    assert hang.observe(StepReport(framework="nanogpt", step=61, loss=2.0), 9000.0) == []
    assert hang.tick(20_000.0) == []
    assert hang.log_ended(20_000.0) == []


def test_the_rank_with_the_lowest_step_is_the_suspect() -> None:
    """Where every rank prints its steps, the one behind did not get on."""
    world = World(processes=False)
    for step in range(1, 40):
        world.wait(0.2)
        for rank in range(4):
            if step < 39 or rank != 2:
                world.say(StepReport(framework="generic", step=step, loss=2.0, origin=Origin(rank=rank)))
        world.say(OutputSeen(n_bytes=10))
    world.wait(40)
    assert world.only()[1].suspects.ranks == (2,)
