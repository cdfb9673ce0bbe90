"""The `transnormer` command, which `python -m transnormer` is, too: `torchrun -m transnormer train ...` uses it."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line, whose imports Ctrl-C may stop as well; the exit code is what shells call SIGINT."""
    try:
        from transnormer.cli.app import main as run

        run()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would end in a traceback of what is ending
        sys.stderr.write("stopped\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
