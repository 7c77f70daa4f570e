"""Entry point of `maskloom` and `python -m maskloom`; handles Ctrl-C before anything heavy is imported."""

from __future__ import annotations

import os
import signal

_EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line; Ctrl-C during its imports ends the process immediately with one line and exit code 130.

    A KeyboardInterrupt would be raised inside some library, which might print it, wrap it or lose it.
    """
    try:
        if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
            signal.signal(signal.SIGINT, _leave)
    except KeyboardInterrupt:
        _leave()
    from maskloom.cli import main as run_command

    run_command()


def _leave(*_: object) -> None:
    os.write(2, b"stopped\n")
    os._exit(_EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
