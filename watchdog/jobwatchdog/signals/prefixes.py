"""What launchers and collectors put before a line, and what it says: rank, local rank, node, pid."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

_LAYERS_MAX: Final = 5

_RANK: Final = re.compile(r"\[rank ?(?P<rank>\d+)\]:? ?", re.IGNORECASE)
_SHAPES: Final = tuple(
    re.compile(shape)
    for shape in (
        r"\[rank(?P<rank>\d+)\]: ?",  # torch >= 2.2
        r"\[(?:default|trainer|worker)(?P<local_rank>\d+)\]: ?",  # torchrun --tee / --log-dir roles
        r"(?P<rank>\d{1,5}): (?=\S)",  # srun -l
        r" {1,4}(?P<rank>\d{1,5}): (?=\S)",  # srun -l pads to the width of the highest rank
        r"\[\d+,(?P<rank>\d+)\]<(?:stdout|stderr|stddiag)>: ?",  # Open MPI --tag-output
        r"\((?P<actor>[\w.<>-]+(?:\([^)]*\))?)? ?pid=(?P<pid>\d+)(?:, ip=(?P<node>[\w.:-]+))?\) ?",  # Ray
        r"[\w.-]+ \[(?:stdout|stderr)\] ?",
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.:+Z-]* (?P<node>[\w.-]+) (?=kernel: |[\w./()-]+\[\d+\]: )",  # syslog, ISO
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) (?:(?:stdout|stderr) [FP] )?",  # docker, CRI
        # pdsh: hosts have numbers, and what follows is a launcher's or a logger's prefix, so `Epoch: [3/90]` is none
        (
            r"(?P<node>(?![Rr]ank|[Ss]tep|[Ee]poch)(?=[\w.-]*\d|localhost:)[A-Za-z][\w.-]*): +"
            r"(?=\[(?:rank|default|[IWEF]\d|[IWEF] |20\d\d-|\d+,\d+\]<)|\d{1,5}: )"
        ),
        r"(?P<node>[A-Za-z][\w.-]*):(?P<pid>\d+):\d+ \[(?P<local_rank>\d+)\] (?=.{0,80}NCCL |.*:\d+ -> )",  # NCCL
        r"(?P<node>[A-Za-z][\w.-]*):(?P<pid>\d+):\d+ (?=NCCL )",
        r"<\d{1,3}>(?=\S| *\[)",  # kernel level
        r"\[ *\d+\.\d{3,9}\](?:\[[TC ]*\d+\])? ",  # kernel uptime
        r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d(?:\.\d+)? \d{4}\] ",  # dmesg -T
        r"[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)? (?P<node>[\w.-]+) (?=[\w./()-]+(?:\[\d+\])?: )",  # syslog
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.,:+Z-]* (?P<node>[\w.-]+) (?=[\w./()-]+(?:\[\d+\])?: )",  # no zone
        r"kernel: ",
    )
)


# Most lines have no prefix; trying only the shapes that may begin with their first letter makes that cheap.
def _first_of(letter: str) -> str:
    return "0" if letter.isdigit() else "a" if letter.isalnum() or letter == "_" else letter


def _may_begin(shape: str, first: str) -> bool:
    begins = {"[": r"\[", "(": r"\(", "<": "<", " ": " "}
    if first in begins:
        return shape.startswith(begins[first])
    return not shape.startswith(tuple(begins.values()))


_BY_FIRST: Final = {
    first: tuple(shape for shape in _SHAPES if _may_begin(shape.pattern, first))
    for first in ("[", "(", "<", " ", "0", "a")
}
_DEFAULT_GROUP: Final = re.compile(
    r"\(default_pg\) Rank (?P<rank>\d+)\]"
)  # in the group of all, as torch >= 2.5 says it
_RANK_WORD: Final = re.compile(r"\[RANK:(?P<rank>\d+)\]")
_WORDS: Final = ("rank", "local_rank", "node", "pid")


@dataclass(frozen=True, slots=True)
class Prefixed:
    """What the prefixes of a line say, and the rest of it."""

    rest: str
    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    pid: int | None = None


def split_prefix(line: str) -> Prefixed:
    """Peel up to five layers of prefixes off a line."""
    found: dict[str, str] = {}
    at = 0
    for _ in range(_LAYERS_MAX):
        shapes = _BY_FIRST.get(_first_of(line[at : at + 1]), ())
        match = next((m for shape in shapes if (m := shape.match(line, at))), None)
        if match is None:
            break
        for word, value in match.groupdict().items():
            if value is not None and word in _WORDS:
                found.setdefault(word, value)
        at = match.end()
    if (
        "rank" not in found
        and ("ank" in line or "ANK" in line)
        and (loose := _DEFAULT_GROUP.search(line) or _RANK.search(line) or _RANK_WORD.search(line))
    ):
        # After a progress bar without a line break the rank stands in the middle of the line. `[Rank 3]` of
        # the NCCL watchdog counts within its group, so a `[rank7]:` anywhere goes first.
        exact = re.search(r"\[rank(\d+)\]:", line)
        found["rank"] = exact[1] if exact else loose["rank"]
    return Prefixed(
        rest=line[at:],
        rank=int(found["rank"]) if "rank" in found else None,
        local_rank=int(found["local_rank"]) if "local_rank" in found else None,
        node=found.get("node"),
        pid=int(found["pid"]) if "pid" in found else None,
    )


_PATHS: Final = (
    re.compile(r"attempt_\d+/(?P<local_rank>\d+)/(?:stdout|stderr)\.log$"),  # torchrun --log-dir
    re.compile(r"(?:^|[/_.-])rank[_-]?(?P<rank>\d+)(?=[/_.-]|$)"),
    re.compile(r"(?:^|/)slurm-\d+(?:_\d+)?[._-](?P<node>[A-Za-z][\w-]*\d+)[._-](?P<rank>\d+)\.(?:out|err|log)$"),
    re.compile(
        r"(?:^|/)(?P<node>(?!slurm|rank|log|job|run|train|part|std|step|epoch|attempt|gpu)[A-Za-z][A-Za-z-]*\d+)(?:\.dmesg|\.kern|\.syslog)?\.(?:log|out|err|txt)$"
    ),
)


def origin_from_path(path: str) -> Prefixed:
    """Return what a log file's path says of rank and node; `rest` is the path."""
    found = Prefixed(rest=path)
    for shape in _PATHS:
        if match := shape.search(path):
            part = match.groupdict()
            return replace(
                found,
                rank=int(part["rank"]) if part.get("rank") else None,
                local_rank=int(part["local_rank"]) if part.get("local_rank") else None,
                node=part.get("node"),
            )
    return found
