"""The words of the whole system as frozen dataclasses; imports nothing but the standard library."""

from jobwatchdog.model.action import (
    DESTRUCTIVE,
    Action,
    ActionId,
    ActionOrdered,
    ApprovalWanted,
    Check,
    Decision,
    DetectorFailed,
    IncidentChanged,
    Json,
    Mode,
    Outcome,
    PastAction,
    Plan,
    PlanId,
    PlanMade,
    PlanRefused,
    Receipt,
    Verb,
    Verify,
)
from jobwatchdog.model.event import (
    ActionFinished,
    ActionStarted,
    ApprovalGiven,
    BreakerClosed,
    Event,
    HistoryLoaded,
    JobRegistered,
    LogEnded,
    SignalsObserved,
    Tick,
)
from jobwatchdog.model.incident import (
    NOBODY,
    Evidence,
    Finding,
    Incident,
    IncidentId,
    IncidentState,
    Suspects,
)
from jobwatchdog.model.job import Job, RankInfo
from jobwatchdog.model.kinds import KIND_DEFAULTS, CauseClass, Kind, KindDefaults, RestartHelps
from jobwatchdog.model.signal import (
    NO_JOB,
    NOWHERE,
    GpuSample,
    JobId,
    JobPhase,
    JobStateSeen,
    LogMatch,
    Origin,
    OutputSeen,
    Phase,
    PhaseChanged,
    ProcessSeen,
    ProcState,
    Role,
    Signal,
    SourceLost,
    StackSeen,
    StepReport,
)

__all__ = [
    "DESTRUCTIVE", "KIND_DEFAULTS", "NOBODY", "NOWHERE", "NO_JOB", "Action", "ActionFinished", "ActionId",
    "ActionOrdered", "ActionStarted", "ApprovalGiven", "ApprovalWanted", "BreakerClosed", "CauseClass", "Check",
    "Decision", "DetectorFailed", "Event", "Evidence", "Finding", "GpuSample", "HistoryLoaded", "Incident",
    "IncidentChanged", "IncidentId", "IncidentState", "Job", "JobId", "JobPhase", "JobRegistered",
    "JobStateSeen", "Json", "Kind", "KindDefaults", "LogEnded", "LogMatch", "Mode", "Origin", "Outcome",
    "OutputSeen", "PastAction", "Phase", "PhaseChanged", "Plan", "PlanId", "PlanMade", "PlanRefused",
    "ProcState", "ProcessSeen", "RankInfo", "Receipt", "RestartHelps", "Role", "Signal", "SignalsObserved",
    "SourceLost", "StackSeen", "StepReport", "Suspects", "Tick", "Verb", "Verify",
]  # fmt: skip
