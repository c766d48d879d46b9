"""Runs one attempt of a job, at most once, and outlives whoever asked for it.

    python -I -S shim.py ATTEMPT_DIR [--claim NAME] [--stdout FILE] [--stderr FILE] -- CMD…

Standard library only and few imports: it starts in about twenty milliseconds and must never break a job.

Order of events, each durable before the next:

1. `claim` is created with O_EXCL: whoever comes second exits with 17 and has changed nothing.
2. The job's process is forked but held.
3. `start.json` is written: pid, start ticks, boot id, argv, cwd, time.
4. The job's process is released and executes the command. No `start.json`, no command ever ran.
5. The caller is told (exit code 0): the shim itself goes on as a daemon in a session of its own.
6. When the command ends, `exit.json` is written. The shim stays while descendants live, as their reaper.

SIGHUP and SIGINT of the caller's terminal do not reach it; SIGTERM is passed on to the job's process group.
"""

# importing pathlib alone takes as long as all of this
# ruff: noqa: PTH100, PTH103, PTH104, PTH109, PTH118, PTH123

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import time

STARTED, FAILED, TAKEN, USAGE = 0, 1, 17, 64
PR_SET_CHILD_SUBREAPER = 36


def main(argv: list[str]) -> int:
    """Forks the daemon and waits for its word."""
    try:
        folder, options, command = parse(argv)
    except ValueError as bad:
        sys.stderr.write(f"shim: {bad}\n")
        return USAGE
    word_r, word_w = os.pipe()
    if os.fork() == 0:
        os.close(word_r)
        os._exit(daemon(folder, options, command, word_w))
    os.close(word_w)
    word = b""
    while chunk := os.read(word_r, 4096):
        word += chunk
    if not word:
        sys.stderr.write("shim: ended before the job was started\n")
        return FAILED
    if len(word) > 1:
        sys.stderr.write("shim: {}\n".format(word[1:].decode(errors="replace")))
    return word[0]


def parse(argv: list[str]) -> tuple[str, dict[str, str], list[str]]:
    """Splits the command line; getopt and argparse cost more than the rest of the shim."""
    if "--" not in argv:
        raise ValueError("no command: … ATTEMPT_DIR -- CMD…")
    cut = argv.index("--")
    head, command = argv[:cut], argv[cut + 1 :]
    if not head or not command or len(head) % 2 != 1:
        raise ValueError("usage: shim.py ATTEMPT_DIR [--claim NAME] [--stdout FILE] [--stderr FILE] -- CMD…")
    options = dict(zip(head[1::2], head[2::2]))  # noqa: B905  # lengths are equal by the check above
    unknown = sorted(set(options) - {"--claim", "--stdout", "--stderr"})
    if unknown:
        raise ValueError(f"unknown option {unknown[0]}")
    return os.path.abspath(head[0]), options, command


def daemon(folder: str, options: dict[str, str], command: list[str], word_w: int) -> int:
    """Claims, starts, tells, waits."""
    detach()
    try:
        claim(folder, options.get("--claim", "claim"))
    except FileExistsError:
        os.write(word_w, bytes([TAKEN]) + b"this attempt was started before; nothing done")
        return TAKEN
    except OSError as bad:
        os.write(word_w, bytes([FAILED]) + (f"cannot claim: {bad}").encode())
        return FAILED
    try:
        child, failure_r = start(folder, options, command)
    except OSError as bad:
        os.write(word_w, bytes([FAILED]) + (f"cannot start: {bad}").encode())
        return FAILED
    os.write(word_w, bytes([STARTED]))
    os.close(word_w)
    return watch(folder, child, failure_r)


def detach() -> None:
    """Own session, no terminal signals, orphans of the job come to us."""
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # orphans are then found by their environment alone


def claim(folder: str, name: str) -> None:
    """The one step that only one shim can take."""
    os.makedirs(folder, exist_ok=True)
    fd = os.open(os.path.join(folder, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    os.write(fd, json.dumps(identity(os.getpid())).encode())
    os.fsync(fd)
    os.close(fd)
    sync_folder(folder)


def start(folder: str, options: dict[str, str], command: list[str]) -> tuple[int, int]:
    """Forks the job's process, writes start.json, and only then lets it run."""
    out = os.open(options.get("--stdout") or folder + "/stdout.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    err = os.open(options.get("--stderr") or folder + "/stderr.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    go_r, go_w = os.pipe()
    failure_r, failure_w = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go_w)
        os.close(failure_r)
        become(command, out, err, go_r, failure_w)
    for fd in (go_r, failure_w, out, err):
        os.close(fd)
    forward_to(child)
    record = identity(child)
    record.update(argv=command, cwd=os.getcwd(), time=time.time(), shim=identity(os.getpid()))
    write_json(folder, "start.json", record)
    os.write(go_w, b"1")
    os.close(go_w)
    return child, failure_r


def become(command: list[str], out: int, err: int, go_r: int, failure_w: int) -> None:
    """In the forked child: waits for the word, then is the job. Never returns."""
    try:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(out, 1)
        os.dup2(err, 2)
        if os.read(go_r, 1) != b"1":  # the shim died: the job must not run unrecorded
            os._exit(125)
        os.execvp(command[0], command)  # noqa: S606  # an argv list, as the user gave it
    except OSError as bad:
        text = f"cannot run {command[0]}: {bad.strerror or bad}"
        os.write(2, (f"jobwatchdog: {text}\n").encode())
        os.write(failure_w, text.encode())
        os._exit(126 if bad.errno in (errno.EACCES, errno.ENOEXEC) else 127)
    finally:
        os._exit(125)


def forward_to(child: int) -> None:
    """SIGTERM for the shim is meant for the job."""

    def forward(number: int, frame: object) -> None:
        with contextlib.suppress(OSError):
            os.killpg(child, number)

    signal.signal(signal.SIGTERM, forward)


def watch(folder: str, child: int, failure_r: int) -> int:
    """Reaps until nothing is left; writes exit.json as soon as the command itself has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return 0
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            write_json(
                folder,
                "exit.json",
                {
                    "code": code if code >= 0 else None,
                    "signal": -code if code < 0 else None,
                    "time": time.time(),
                    "error": os.read(failure_r, 4096).decode(errors="replace") or None,
                },
            )


def identity(pid: int) -> dict[str, object]:
    """What names a process for good: pid, start ticks, and the boot (of which machine) in which both count."""
    with open(f"/proc/{pid}/stat", "rb") as stat, open("/proc/sys/kernel/random/boot_id") as boot:
        return {
            "pid": pid,
            "ticks": int(stat.read().rpartition(b")")[2].split()[19]),
            "boot": boot.read().strip(),
            "host": os.uname().nodename,
        }


def write_json(folder: str, name: str, value: dict[str, object]) -> None:
    """Whole or not at all, also after a power cut."""
    temporary = f"{folder}/.{name}.{os.getpid()}"
    fd = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.write(fd, json.dumps(value).encode())
    os.fsync(fd)
    os.close(fd)
    os.rename(temporary, f"{folder}/{name}")
    sync_folder(folder)


def sync_folder(folder: str) -> None:
    """A new name is durable only when its folder is."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    os.fsync(fd)
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
