"""Entry point of `maskloom` and `python -m maskloom`; handles signals to stop before anything heavy is imported."""

from __future__ import annotations

import os
import signal

_EXIT_QUEUE_AGAIN, _EXIT_INTERRUPTED = 75, 130


def main() -> None:
    """Run the command line; a signal to stop during its imports ends the process immediately with one line.

    An exception would be raised inside some library, which might print it, wrap it or lose it. The exit codes are those
    of `maskloom.cli.main`.
    """
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
                signal.signal(number, _leave)
    except KeyboardInterrupt:
        _leave(signal.SIGINT)
    from maskloom.cli import main as run_command

    run_command()


def _leave(number: int, *_: object) -> None:
    if os.environ.get("RANK", "0") == "0":
        os.write(2, f"stopped by {signal.Signals(number).name}; start again with the same command\n".encode())
    os._exit(_EXIT_INTERRUPTED if number == signal.SIGINT else _EXIT_QUEUE_AGAIN)


if __name__ == "__main__":
    main()
