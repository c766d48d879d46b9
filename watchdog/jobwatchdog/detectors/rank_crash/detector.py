"""A rank was ended by a signal, or its host crashed.

What it sees
------------
Exit signals that a launcher, Slurm, MPI, Ray or the kernel prints, fatal Python errors, and the processes themselves.

Why it matters
--------------
Its peers fail in collectives moments later and shout louder.

Looks like it but is not
------------------------
SIGTERM (-15): the launcher ends the healthy ranks with it. Ctrl-C.

By hand
-------
grep -E "exitcode|Signal|segfault" LOG; dmesg -T | tail.

Sources
-------
torch.distributed.elastic, srun, Open MPI and kernel wordings.
"""

from __future__ import annotations

from dataclasses import replace

from jobwatchdog.detectors.base import SignatureDetector, Thresholds, suspects_of
from jobwatchdog.model import (
    Evidence,
    Finding,
    Job,
    JobId,
    JobPhase,
    JobStateSeen,
    Kind,
    LogMatch,
    ProcessSeen,
    ProcState,
    Role,
    Signal,
    Suspects,
)

_SIGTERM = 15
_SIGINT = 2


class RankCrashDetector(SignatureDetector):
    """Texts of launchers, and the processes themselves."""

    kind = Kind.RANK_CRASH
    id = "rank_crash"
    listens = (JobStateSeen, LogMatch, ProcessSeen)

    def __init__(self, job: JobId, thresholds: Thresholds | None = None) -> None:
        super().__init__(job, thresholds)
        self._attempt = 0
        self._dead: set[int] = set()
        self._gone: list[tuple[float, int]] = []  # (when, rank): ended, how is not known
        self._pids: dict[int, int] = {}
        self._due_s: float | None = None  # when a rank that went somehow counts as crashed

    def job_changed(self, job: Job) -> None:
        """A new attempt has new processes."""
        if job.attempt != self._attempt:
            self._attempt = job.attempt
            self._dead.clear()
            self._gone.clear()
            self._due_s = None

    def next_deadline_s(self) -> float | None:
        """Wait for the launcher's word on a rank that is gone."""
        return self._due_s

    def tick(self, now_s: float) -> list[Finding]:
        """No word came: the job still runs, without that rank."""
        if self._due_s is None or now_s < self._due_s:
            return []
        self._due_s = None
        return [] if self._dead else [self._first_to_go()]

    def observe(self, signal: Signal, now_s: float) -> list[Finding]:
        """Take lines and process states."""
        if isinstance(signal, ProcessSeen):
            return self._process(signal, now_s)
        if isinstance(signal, JobStateSeen):
            return self._job(signal, now_s)
        return super().observe(signal, now_s)

    def matched(self, match: LogMatch, now_s: float) -> list[Finding]:
        """A local rank is named as a rank where nothing better is known."""
        suspects = suspects_of(match)
        local = match.fields.get("local_rank")
        if not suspects.ranks and local is not None:
            rank = match.origin.rank if match.origin.rank is not None else int(local)
            suspects = replace(suspects, ranks=(rank,))
        elif not suspects.ranks and match.origin.rank is not None:
            suspects = replace(suspects, ranks=(match.origin.rank,))
        return [self.finding(match, suspects=suspects)]

    def _process(self, seen: ProcessSeen, now_s: float) -> list[Finding]:
        """Only the first death of an attempt is a cause; those after it are its fallout."""
        if seen.state not in (ProcState.GONE, ProcState.ZOMBIE) or seen.origin.rank is None:
            return []
        rank = seen.origin.rank
        if seen.state is ProcState.GONE and seen.exit_code is None and seen.exit_signal is None:
            return self._ended_somehow(rank, seen, now_s)
        killed = seen.exit_signal is not None and seen.exit_signal not in (_SIGTERM, _SIGINT)
        failed = seen.exit_code is not None and seen.exit_code != 0
        if rank in self._dead or not (killed or failed):
            return []
        first = not self._dead
        self._dead.add(rank)
        self._note_end(rank, seen, now_s)
        how = f"signal {seen.exit_signal}" if killed else f"exit code {seen.exit_code}"
        return [
            Finding(
                kind=Kind.RANK_CRASH if killed else Kind.UNKNOWN_FAILURE,
                job=self.job,
                detector=self.id,
                role=Role.CAUSE if first and killed else Role.SYMPTOM,
                confidence=0.97,
                suspects=Suspects(ranks=(rank,), pids=(seen.origin.pid,) if seen.origin.pid else ())
                if first
                else Suspects(),
                evidence=(Evidence(f"rank {rank} (process {seen.origin.pid}) ended by {how}", t_s=seen.t_s or now_s),),
                onset_s=seen.t_s or now_s,
                confirmed=True,
                summary=f"rank {rank} ended by {how}",
            )
        ]

    def _ended_somehow(self, rank: int, seen: ProcessSeen, now_s: float) -> list[Finding]:
        """How it ended is known to its parent alone: ranks also go when training is done. So the launcher has a
        moment to say how the job ended; the first to go is suspected when that was no good end."""
        if any(rank == known for _, known in self._gone):
            return []
        self._note_end(rank, seen, now_s)
        if self._due_s is None and len(self._gone) == 1:
            self._due_s = now_s + self.thresholds.get("word_s", 1.0)
        return []

    def _note_end(self, rank: int, seen: ProcessSeen, now_s: float) -> None:
        self._gone.append((seen.t_s if seen.t_s is not None else now_s, rank))
        self._pids[rank] = seen.origin.pid or 0

    def _first_to_go(self) -> Finding:
        suspects = self._first_gone()
        at = min(at for at, _ in self._gone)
        names = [f"rank {rank} (process {self._pids[rank]})" for gone, rank in self._gone if gone == at]
        return Finding(
            kind=Kind.RANK_CRASH,
            job=self.job,
            detector=self.id,
            role=Role.CAUSE,
            confidence=0.9,
            suspects=suspects,
            evidence=(Evidence(f"{' and '.join(names)} ended before the others", t_s=at),),
            onset_s=at,
            replaces=True,
            summary=f"{' and '.join(names)} ended before the others",
        )

    def _job(self, seen: JobStateSeen, now_s: float) -> list[Finding]:
        """The launcher ended as a process ends that a signal ended (128 + number, as a shell says it)."""
        if seen.state in (JobPhase.RUNNING, JobPhase.UNKNOWN):
            return []
        self._due_s = None
        if seen.state is not JobPhase.FAILED:
            return []
        found = [self._first_to_go()] if self._gone and not self._dead else []
        number = seen.exit_signal
        if number is None and seen.exit_code is not None and 128 < seen.exit_code < 160:
            number = seen.exit_code - 128
        if number is None or number in (_SIGTERM, _SIGINT):
            return found
        at = seen.t_s if seen.t_s is not None else now_s
        return [
            *found,
            Finding(
                kind=Kind.RANK_CRASH,
                job=self.job,
                detector=self.id,
                role=Role.CAUSE,
                confidence=0.9,
                suspects=self._first_gone(),
                evidence=(Evidence(f"attempt {seen.attempt} ended by signal {number}", t_s=at),),
                onset_s=at,
                confirmed=True,
                summary=f"ended by signal {number}",
            ),
        ]

    def _first_gone(self) -> Suspects:
        """The rank that went before all others; nobody when several went in one look."""
        if not self._gone:
            return Suspects()
        first = min(at for at, _ in self._gone)
        ranks = [rank for at, rank in self._gone if at == first]
        return Suspects(ranks=tuple(ranks)) if len(ranks) == 1 else Suspects()


def build(job: JobId, thresholds: Thresholds) -> RankCrashDetector:
    """Return the detector of one job."""
    return RankCrashDetector(job, thresholds)
