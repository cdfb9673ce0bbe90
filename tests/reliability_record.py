"""The battery: tests marked `reliability("R2")` run at their full figures, and are counted into a record.

    pytest -m reliability --reliability-record=results/reliability.json

Without the option a test that takes `sized` runs the few cases that `make test` has time for.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transnormer.environment import describe_environment
from transnormer.files import write_json
from transnormer.report.promises import PROMISES

_OPTION = "--reliability-record"
_NAMES = {promise.id: promise.name for promise in PROMISES}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_OPTION, metavar="FILE", help="run marked tests at their full figures and write how they ended")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "reliability(id): shows a promise of transnormer/report/promises.py")
    if config.getoption(_OPTION) and not hasattr(config, "workerinput"):  # of several processes the first one writes
        config.pluginmanager.register(_Recorder(Path(config.getoption(_OPTION))), "reliability-record")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("reliability"):
            if mark.args[0] not in _NAMES:
                raise pytest.UsageError(f"{item.nodeid}: no promise {mark.args[0]!r} in transnormer/report/promises.py")
            # Reports of other processes bring properties along, and no marks.
            item.user_properties.append(("reliability", mark.args[0]))


@pytest.fixture(scope="session")
def at_full_figures(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption(_OPTION))


@pytest.fixture
def count_cases(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """count_cases(12): this test is as many cases; without it, one."""
    return lambda cases: request.node.user_properties.append(("cases", cases))


@pytest.fixture
def sized(at_full_figures: bool, count_cases: Callable[[int], None]) -> Callable[[int, int], int]:
    """sized(4, 200): the number of cases to run, few in `make test`; it is counted."""

    def choose(quick: int, full: int) -> int:
        cases = full if at_full_figures else quick
        count_cases(cases)
        return cases

    return choose


class _Recorder:
    """Sums up reports by promise and writes them when the session ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._promises: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = list(report.user_properties)
        ended = report.when == "call" or report.outcome == "failed" or (report.when == "setup" and report.skipped)
        for name in [value for key, value in properties if key == "reliability"]:
            entry = self._promises.setdefault(str(name), _empty(str(name)))
            entry["seconds"] += report.duration
            if not ended:
                continue
            cases = sum(int(str(value)) for key, value in properties if key == "cases") or 1
            if report.skipped:
                entry["skipped"] += cases
                continue
            entry["cases"] += cases
            entry["passed" if report.passed else "failed"] += cases
            if report.nodeid not in entry["tests"]:
                entry["tests"].append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        for entry in self._promises.values():
            entry["seconds"] = round(entry["seconds"], 1)
            entry["tests"].sort()
        ordered = {name: self._promises[name] for name in _NAMES if name in self._promises}
        environment = describe_environment()
        environment["command"] = ["make", "reliability"]
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        write_json(
            self._path, {"battery": "reliability", "date": date, "promises": ordered, "environment": environment}
        )


def _empty(name: str) -> dict[str, Any]:
    return {"name": _NAMES[name], "cases": 0, "passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0, "tests": []}
