"""What every record of an analysis says beside its numbers: date, command, commit, versions, hardware."""

from __future__ import annotations

import datetime
from typing import Any

from transnormer.environment import describe_environment


def provenance() -> dict[str, Any]:
    """As JSON values."""
    return {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), **describe_environment()}
