"""Telling whether this process waits for a disk, which sets a slow save apart from one that hangs."""

from __future__ import annotations

from pathlib import Path

# Where the kernel has a thread wait for another thread, a clock, a process, or what comes through a pipe or a socket;
# parts of names, which differ between versions. Any other place is taken for a disk: those have too many names.
_OTHER_WAITS = (
    *("futex", "sleep", "poll", "select", "woken", "wait_data", "more_packets", "accept", "pipe", "do_wait"),
    *("sigtimedwait", "sigsuspend", "unix_stream", "signal", "ptrace", "cqring"),
)


def waits_for_disk(threads: Path = Path("/proc/self/task")) -> bool:
    """Tell whether a thread of this process waits in the kernel for anything but threads, clocks, pipes and sockets.

    Network file systems count as disks. True as well where the system does not tell, as without Linux's /proc.
    """
    try:
        folders = list(threads.iterdir())
    except OSError:
        return True
    places = []
    for folder in folders:
        try:
            state = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            if state == "D":
                return True
            if state == "S":
                places.append((folder / "wchan").read_text(encoding="utf-8"))
        except OSError:  # this thread has ended
            continue
    told = [place for place in places if place not in ("", "0")]  # a thread that went on meanwhile has no place
    if places and not told:
        return True
    return any(not any(name in place for name in _OTHER_WAITS) for place in told)
