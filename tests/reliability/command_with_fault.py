"""`transnormer` with a fault, as a script for torchrun: command_with_fault.py '["slow", {...}]' train ..."""

from __future__ import annotations

import json
import sys

import faults

from transnormer.cli.app import main

if __name__ == "__main__":
    name, options = json.loads(sys.argv[1])
    getattr(faults, name)(**options)
    main(sys.argv[2:])
