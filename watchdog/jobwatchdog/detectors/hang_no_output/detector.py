"""Silence of a job that is still alive, judged by the job's own pace and phase.

What it sees
    No new step, for longer than five times the gap that 1 of 100 of this job's steps exceeds, while its processes
    live. Checkpoints, evaluation, start-up, restarts and the end each have their own deadline. A second signal
    shortens it (a rank in state T or D, no processor time anywhere) or lengthens it (ranks that are busy).

Why it matters
    Defaults of process groups wait 10 to 30 minutes, and forever before the first collective. The whole
    allocation burns meanwhile.

Looks like it but is not
    A slow checkpoint; an evaluation; a writer that buffers its output by blocks; a job whose log can no longer be
    read; a job that somebody paused as a whole; a job that finished and takes its time to leave.

By hand
    `py-spy dump --pid …` on each rank: the odd stack among equal ones is the culprit; `ps -o stat` shows T and D.

Sources
    Hang detection of NVIDIA's resiliency extension (calculated timeouts), DLRover, and measurements with gloo jobs.
"""

from __future__ import annotations

from jobwatchdog.detectors.base import SignatureDetector, Thresholds
from jobwatchdog.detectors.hang_no_output import verdict
from jobwatchdog.detectors.hang_no_output.pace import Gaps, Longest
from jobwatchdog.detectors.hang_no_output.processes import Activity, Processes
from jobwatchdog.detectors.hang_no_output.verdict import Verdict
from jobwatchdog.model import (
    NOBODY,
    Evidence,
    Finding,
    Job,
    JobId,
    JobPhase,
    JobStateSeen,
    Kind,
    LogMatch,
    OutputSeen,
    Phase,
    PhaseChanged,
    ProcessSeen,
    RestartHelps,
    Signal,
    SourceLost,
    StepReport,
    Suspects,
)

_WATCH_GAP_S = 15.0  # the watchdog itself saw nothing for this long while watching live: start counting afresh
_LATE_S = 5.0  # a tick that comes this long after its time
_EPSILON_S = 1e-3  # a tick at its due time is on time, whatever the rounding
_CERTAIN = 0.95  # of a rank in state T, which needs no log to be believed
_SURE = 0.8  # what a silence of twice its deadline is worth, whatever else is seen
_QUIET_S = 3.0  # output within this time: the job talks, whatever its steps do


class HangDetector(SignatureDetector):
    """One job's clock of silence."""

    id = "hang_no_output"
    kind = Kind.HANG_NO_OUTPUT

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        super().__init__(job, thresholds)
        self._gaps = Gaps()
        self._checkpoints, self._evals, self._startups = Longest(), Longest(), Longest()
        self._processes = Processes()
        self._attempt = 0
        self._live = False  # processes or growing output have been seen: this is no replay
        self._lost = False  # a source went away: silence proves nothing
        self._running = True
        self._now_s: float | None = None
        self._due_s: float | None = None
        self._own_start = False  # the start was seen, so the time to the first step is a start-up
        self._begin(Phase.STARTUP, None)

    def _begin(self, phase: Phase, now_s: float | None) -> None:
        """Forgets the attempt before."""
        self._phase = phase
        self._phase_s = now_s
        self._started_s = now_s
        self._progress_s = now_s  # last new step or end of a phase
        self._output_s = now_s
        self._step: int | None = None
        self._place: tuple[int, int] | None = None  # step and micro-step: either may get on
        self._rank_steps: dict[int, int] = {}
        self._loop_began = False  # the framework said that training starts: compilers may work now
        self._interrupted = False  # a phase lay between the last step and now: no gap to learn from
        self._said: Verdict | None = None
        self._said_twice = False
        self._said_confidence = 0.0

    # ---- signals ------------------------------------------------------------------------------------

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Take what says that the job lives, gets on, or stands."""
        self._advance_clock(now_s)
        if isinstance(signal, StepReport):
            return self._stepped(signal, now_s)
        if isinstance(signal, PhaseChanged):
            return self._phase_changed(signal, now_s)
        if isinstance(signal, OutputSeen):
            self._live, self._lost = True, False
            self._output_s = now_s
        elif isinstance(signal, LogMatch):
            self._output_s = now_s
            return self.matched(signal, now_s) if signal.kind is self.kind else []
        elif isinstance(signal, ProcessSeen):
            self._live = True
            self._processes.see(signal, now_s)
            return self._judge(now_s)
        elif isinstance(signal, SourceLost):
            self._lost = True
        elif isinstance(signal, JobStateSeen):
            self._running = signal.state is JobPhase.RUNNING
        return []

    def _advance_clock(self, now_s: float) -> None:
        """Learns of time; after a gap in our own watching, the silence before it is not the job's."""
        before, self._due_s = self._now_s, self.next_deadline_s()
        self._now_s = now_s if before is None else max(before, now_s)
        if self._output_s is None:  # the first we hear; when the job started may be known already
            self._phase_s = self._progress_s = self._output_s = now_s
            self._started_s = self._started_s if self._started_s is not None else now_s
        if before is not None and self._live and now_s - before > _WATCH_GAP_S and self._overslept(now_s):
            self._progress_s = self._output_s = self._phase_s = now_s

    def _overslept(self, now_s: float) -> bool:
        """Nobody asked when the deadline was due: we were frozen, and what the job did meanwhile is still unread."""
        due_s = self._due_s
        return due_s is not None and now_s > due_s + _LATE_S

    def _stepped(self, report: StepReport, now_s: float) -> list[Finding]:
        self._output_s = now_s
        self._lost = False
        if report.framework == "overflow":
            return []
        rank = report.origin.rank
        if rank is not None:
            self._rank_steps[rank] = report.step
        place = (report.step, report.micro_step or 0)
        if self._place is not None and place <= self._place and report.step >= self._place[0] - 1:
            return []
        self._learn(now_s)
        self._place, self._step = place, report.step
        self._enter(Phase.TRAIN, now_s)
        self._progress_s = now_s
        return self._recovered()

    def _learn(self, now_s: float) -> None:
        """The gap since the step before, unless a phase or the start lay between."""
        if self._step is None:
            if self._started_s is not None and self._own_start:
                self._startups.add(now_s - self._started_s)
            self._gaps.start_over()
        elif self._phase is Phase.TRAIN and not self._interrupted and self._progress_s is not None:
            self._gaps.add(now_s - self._progress_s)
        self._interrupted = False

    def _phase_changed(self, signal: PhaseChanged, now_s: float) -> list[Finding]:
        self._output_s = now_s
        if signal.phase in (Phase.CHECKPOINT, Phase.EVAL):
            self._interrupted = True
            self._enter(signal.phase if signal.begin else Phase.TRAIN, now_s)
            if not signal.begin:
                self._progress_s = now_s
        elif signal.phase is Phase.SHUTDOWN and signal.begin:
            self._enter(Phase.SHUTDOWN, now_s)
        elif signal.phase is Phase.TRAIN and signal.begin:
            self._loop_began = True
        return []

    def _enter(self, phase: Phase, now_s: float) -> None:
        """Changes the phase; what a finished checkpoint or evaluation took is remembered."""
        if phase is self._phase:
            return
        history = {Phase.CHECKPOINT: self._checkpoints, Phase.EVAL: self._evals}.get(self._phase)
        if history is not None and self._phase_s is not None:
            history.add(now_s - self._phase_s)
        if phase is Phase.TRAIN and self._step is None:
            phase = Phase.RESTARTED if self._attempt else Phase.STARTUP
        self._phase, self._phase_s = phase, now_s

    def job_changed(self, job: Job) -> None:
        """A new attempt starts its own clock; the pace learned so far stays."""
        self._own_start = job.launcher == "local" or job.attempt > 0
        if job.attempt == self._attempt:
            if self._step is None and job.started_s is not None:
                self._started_s = job.started_s
            return
        self._attempt = job.attempt
        self._processes.clear()
        self._running = True
        self._lost = False
        self._begin(Phase.RESTARTED, job.started_s)

    # ---- judging ------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[Finding]:
        """Time passed: is the silence too long now?"""
        self._advance_clock(now_s)
        return self._judge(now_s)

    def next_deadline_s(self) -> float | None:
        """When the present silence would become a finding, or one more certain."""
        if not self._watching() or self._now_s is None:
            return None
        view = self._verdict(self._now_s)
        since_s = self._silent_since_s()
        if since_s is None:
            return None
        due_s = since_s + view.deadline_s * (2 if self._said is not None else 1)
        return due_s if due_s > self._now_s and not self._said_twice else None

    def _watching(self) -> bool:
        return self._live and self._running and not self._processes.any_ended()

    def _silent_since_s(self) -> float | None:
        """Start-up is judged by output, a restart and training by steps, phases by their begin."""
        if self._phase is Phase.STARTUP:
            return self._output_s
        if self._phase is Phase.RESTARTED:
            return self._started_s
        if self._phase in (Phase.CHECKPOINT, Phase.EVAL, Phase.SHUTDOWN):
            return self._phase_s
        return self._progress_s

    def _verdict(self, now_s: float) -> Verdict:
        th, p99_s = self.thresholds, self._gaps.p99_s()
        alive = self._processes.alive(now_s)
        if self._phase is Phase.TRAIN:
            learned = len(self._gaps) >= th["gaps_min"]
            view = verdict.in_training(alive, p99_s, now_s, th, learned=learned, seen=self._processes.known())
            return self._talking(view, p99_s, now_s)
        stopped = verdict.stopped_ranks(alive, now_s, th, p99_s)
        if stopped is not None:
            return Verdict(max(stopped.deadline_s, th["floor_s"]), stopped.confidence, stopped.suspects, stopped.words)
        if self._phase is Phase.RESTARTED:
            return self._restarted(now_s)
        if self._phase is Phase.CHECKPOINT:
            return Verdict(self._own_history(self._checkpoints), 0.75, words="in a checkpoint")
        if self._phase is Phase.EVAL:
            return Verdict(self._own_history(self._evals), 0.75, words="in an evaluation")
        if self._phase is Phase.SHUTDOWN:
            return Verdict(th["shutdown_s"], 0.5, words="training is done, the processes stay")
        working = self._loop_began or any(p.activity() == Activity.BUSY for p in alive)
        return Verdict(th["first_step_s"] if working else th["startup_s"], 0.7, words="no step yet")

    def _talking(self, view: Verdict, p99_s: float, now_s: float) -> Verdict:
        """Output without steps (an evaluation's bars, a poller's lines) leaves more time, unless a rank is stopped."""
        th = self.thresholds
        if view.confidence >= _CERTAIN or self._output_s is None or now_s - self._output_s > _QUIET_S:
            return view
        if self._progress_s is not None and self._output_s - self._progress_s < _QUIET_S:
            return view
        longer_s = max(view.deadline_s, th["busy_floor_s"], th["busy_factor"] * p99_s)
        return Verdict(longer_s, min(view.confidence, 0.6), view.suspects, "lines still come, but no step")

    def _restarted(self, now_s: float) -> Verdict:
        th, earlier = self.thresholds, self._startups
        if not earlier.count:
            return Verdict(th["restart_default_s"], 0.8, words="restarted, no step yet")
        alive = self._processes.alive(now_s)
        idle = bool(alive) and all(p.activity() == Activity.IDLE for p in alive)
        kind = "restart_idle" if idle else "restart"
        words = f"restarted, no step yet; start-up took {earlier.longest_s:.1f} s before"
        words += ", no rank uses the processor" if idle else ""
        return Verdict(max(th[f"{kind}_floor_s"], th[f"{kind}_factor"] * earlier.longest_s), 0.85, words=words)

    def _own_history(self, history: Longest) -> float:
        th = self.thresholds
        floor_s = th["checkpoint_learned_floor_s"] if history.count >= 3 else th["checkpoint_s"]
        return max(floor_s, th["factor"] * history.longest_s)

    def _judge(self, now_s: float) -> list[Finding]:
        since_s = self._silent_since_s()
        if since_s is None or not self._watching() or self._said_twice:
            return []
        view = self._verdict(now_s)
        silence_s = now_s - since_s
        if silence_s < view.deadline_s - _EPSILON_S or (self._lost and view.confidence < _CERTAIN):
            return []
        said = self._said
        late = silence_s >= 2 * view.deadline_s - _EPSILON_S
        named_now = said is not None and bool(view.suspects) and not said.suspects
        if said is not None and not named_now and (not late or self._said_confidence >= _SURE):
            return []
        confidence = max(view.confidence, _SURE) if late and self._phase is not Phase.SHUTDOWN else view.confidence
        self._said, self._said_twice, self._said_confidence = view, late, confidence
        return [self._finding(view, confidence, silence_s, now_s)]

    def _finding(self, view: Verdict, confidence: float, silence_s: float, now_s: float) -> Finding:
        suspects = view.suspects or self._behind()
        p99_s = self._gaps.p99_s()
        where = f"after step {self._step}" if self._step is not None else f"in phase {self._phase}"
        allowed = f"allowed {view.deadline_s:.1f} s; p99 of its gaps {p99_s:.2f} s"
        text = f"no progress for {silence_s:.1f} s {where} ({allowed})"
        notes = tuple(Evidence(text=words, t_s=now_s) for words in (text, view.words) if words)
        shutdown = self._phase is Phase.SHUTDOWN
        return Finding(
            kind=Kind.HANG_NO_OUTPUT,
            job=self.job,
            detector=self.id,
            confidence=confidence,
            suspects=suspects,
            evidence=notes,
            restart_helps=RestartHelps.NO if shutdown else RestartHelps.YES if confidence >= _CERTAIN else None,
            onset_s=now_s - silence_s,
            onset_step=self._step,
            confirmed=self._processes.known(),
            measures={"duration_s": silence_s, "deadline_s": view.deadline_s, "p99_step_s": p99_s},
            summary=text,
        )

    def _behind(self) -> Suspects:
        """The rank with the lowest step, when several print theirs and one alone is behind."""
        if len(self._rank_steps) < 2:
            return NOBODY
        lowest = min(self._rank_steps.values())
        behind = [rank for rank, step in self._rank_steps.items() if step == lowest]
        return Suspects(ranks=(behind[0],)) if len(behind) == 1 else NOBODY

    def _recovered(self) -> list[Finding]:
        if self._said is None:
            return []
        self._said, self._said_twice = None, False
        return [
            Finding(
                kind=Kind.HANG_NO_OUTPUT, job=self.job, detector=self.id, recovered=True,
                restart_helps=RestartHelps.NO, summary=f"step {self._step} came after all",
            )
        ]  # fmt: skip


def build(job: JobId, thresholds: Thresholds) -> HangDetector:
    """Return the detector for one job."""
    return HangDetector(job, thresholds)
