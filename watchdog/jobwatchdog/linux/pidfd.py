"""How a process ended that is not our child."""

from __future__ import annotations

import fcntl
import signal
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# include/uapi/linux/pidfd.h: PIDFD_GET_INFO, since Linux 6.15 with the exit status of processes that are gone
_GET_INFO: Final = 3 << 30 | 64 << 16 | 0xFF << 8 | 11
_INFO_EXIT: Final = 1 << 3
_STATUS_AT: Final = 60  # int32 in struct pidfd_info
_STATUS_FIELD: Final = 52 - 3  # of proc(5)'s stat, counted from the state (field 3)


@dataclass(frozen=True, slots=True)
class Ended:
    """Exit code, or the signal that ended it."""

    code: int | None = None
    signal: int | None = None

    @property
    def badly(self) -> bool:
        """By an error of its own or a signal that nobody sends to end a job in peace."""
        if self.signal is not None:
            return self.signal not in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        return bool(self.code)


def how_it_ended(fd: int, pid: int, ticks: int) -> Ended | None:
    """Return how the process behind a pidfd ended; None where that cannot be told (yet).

    A process whose parent has asked for its status is known to Linux 6.15 and later alone; one that still waits for
    its parent (a zombie) shows it in the process table, to its own user.
    """
    info = bytearray(64)
    struct.pack_into("Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(fd, _GET_INFO, info)
    except OSError:
        return _of_zombie(pid, ticks)
    if struct.unpack_from("Q", info)[0] & _INFO_EXIT:
        return _from_status(struct.unpack_from("i", info, _STATUS_AT)[0])
    return _of_zombie(pid, ticks)


def _of_zombie(pid: int, ticks: int) -> Ended | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) <= _STATUS_FIELD or int(fields[19]) != ticks or fields[0] != b"Z":
        return None
    status = int(fields[_STATUS_FIELD])
    return _from_status(status) if status else None  # those who may not know it are shown 0


def _from_status(status: int) -> Ended:
    number = status & 0x7F
    return Ended(signal=number) if number else Ended(code=status >> 8 & 0xFF)
