"""The causal table: which kind explains which, read from data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from jobwatchdog.model import Kind


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a cause reaches: from itself to the symptom, and how late it may be written down."""

    within_s: float
    late_s: float


@dataclass(frozen=True, slots=True)
class CausalTable:
    """Who explains whom, weights for independent faults, and what texts alone do not prove."""

    explains: Mapping[tuple[Kind, Kind], Reach]
    weights: Mapping[Kind, int]
    survivable: frozenset[Kind]
    teardown: frozenset[Kind]
    own_fault: frozenset[Kind]
    window_s: float

    @classmethod
    def parse(cls, text: str, file: str = "causes.yaml") -> CausalTable:
        """Read the table; ValueError names the file and the word that is wrong."""
        raw = yaml.load(text, Loader=yaml.CSafeLoader)
        try:
            window, late = float(raw["window_s"]), float(raw["late_s"])
            fallout = [Kind(kind) for kind in raw["fallout"]]
            explains: dict[tuple[Kind, Kind], Reach] = {}
            weights: dict[Kind, int] = {}
            for name, row in raw["causes"].items():
                cause = Kind(name)
                weights[cause] = int(row["weight"])
                reach = Reach(float(row.get("within_s", window)), float(row.get("late_s", late)))
                also = fallout if row.get("fallout", True) else []
                for effect in {*map(Kind, row["explains"]), *also} - {cause}:
                    explains[cause, effect] = reach
            survivable = frozenset(map(Kind, raw["survivable"]))
            teardown = frozenset(map(Kind, raw["teardown"]))
            own_fault = frozenset(map(Kind, raw["own_fault"]))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{file}: bad causal table: {error}") from error
        return cls(explains, weights, survivable, teardown, own_fault, window)

    def reaches(self, cause: Kind, cause_s: float | None, effect: Kind, effect_s: float | None) -> bool:
        """Say whether the one may explain the other; unknown times never rule it out."""
        reach = self.explains.get((cause, effect))
        if reach is None:
            return False
        if cause_s is None or effect_s is None:
            return True
        return -reach.late_s <= effect_s - cause_s <= reach.within_s

    def weight(self, kind: Kind) -> int:
        """Return how much a kind weighs among independent ones."""
        return self.weights.get(kind, 0)
