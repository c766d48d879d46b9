"""The stages of a job under watch, and the moves that are allowed between them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Stage(StrEnum):
    """What the engine is doing about one job; one plan at a time follows from there being one stage."""

    WATCHING = "watching"  # nothing of ours is under way
    ASKING = "asking"  # a plan waits for a person
    ACTING = "acting"  # a plan runs: one action in flight, or held until the job can be seen
    VERIFYING = "verifying"  # the actions are done; steps must advance
    ENDED = "ended"  # succeeded or cancelled: nothing is done any more


_W, _S, _A, _V, _E = Stage.WATCHING, Stage.ASKING, Stage.ACTING, Stage.VERIFYING, Stage.ENDED

ALLOWED: Final[frozenset[tuple[Stage, Stage]]] = frozenset(
    {
        (_W, _S),  # a plan was made that needs approval
        (_W, _A),  # a plan was made that may act, or the ledger remembers an action without receipt
        (_W, _E),  # the job ended on its own, or its user ended it
        (_S, _A),  # approved
        (_S, _W),  # refused, gone stale, or the cause changed under it
        (_S, _E),  # the job ended while we waited
        (_A, _V),  # the last action is done and there is something to verify
        (_A, _W),  # done with nothing to verify, or an action failed
        (_A, _E),  # the job ended under our hands: what is not yet ordered never will be
        (_V, _W),  # steps advanced, or they did not
        (_V, _E),  # the job ended while we looked
        (_E, _W),  # somebody started it again
    }
)
