"""The tiers of the tests: which of them `make test` runs, in which order, and what each tier costs.

A test without a mark runs in this process and starts none, except the workers of torch's `DataLoader`, which are forked
and do not outlive the test: that is checked. It is "unit" if it trains nothing, else "in process". A test that starts
processes, imports packages that take seconds to import, takes more than a second, or has many cases, carries one of
`KINDS` and belongs to the full tier; one of each real thing carries ``smoke`` besides, and runs in `make test`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

_WITH_PROCESSES = ("process", "ray", "distributed", "docs", "fault", "packages")
KINDS = (*_WITH_PROCESSES, "slow")
TIERS = ("unit", "in process", "smoke", "full")
_PROGRAMS = ("python", "torchrun", "accelerate", "hpsearch", "ray")
_SECONDS = 1.5  # of a test without a mark, above which `--tiers` names it: half as many again, as machines are noisy
_happened: set[str] = set()  # in the test that runs now: "process", "training"


class _OneRay(LoadFileScheduling):
    """Gives a file of tests to a process, and all that use Ray to one, so that they share one instance."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return "ray" if "/test_ray" in scope else scope


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _OneRay:
    return _OneRay(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tiers", action="store_true", help="print the number of tests and the seconds of each tier")


def pytest_configure(config: pytest.Config) -> None:
    sys.addaudithook(_notice_processes)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest: the tests of Ray, which one process runs, then the rest of the full tier.

    Of those of Ray the ones that share an instance come first, so that it is started once.
    """
    items.sort(key=lambda item: "ray_instance" not in getattr(item, "fixturenames", ()))
    items.sort(key=lambda item: [each for each in ("ray", *KINDS) if item.get_closest_marker(each)] == [])
    items.sort(key=lambda item: item.get_closest_marker("ray") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    from hpsearch.training.run import TrainingRun

    begin = TrainingRun.__init__

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        _happened.add("training")
        begin(self, *args, **kwargs)

    _happened.clear()
    TrainingRun.__init__ = noted  # type: ignore[method-assign]
    try:
        return (yield)
    finally:
        TrainingRun.__init__ = begin  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    report.user_properties = [("tier", _tier(item))]
    if call.when == "call" and report.passed and "process" in _happened and not _is_of(_WITH_PROCESSES, item):
        report.outcome = "failed"
        report.longrepr = f"This test starts a process: mark it with one of {', '.join(_WITH_PROCESSES)}."
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--tiers"):
        return
    tiers: dict[str, str] = {}
    seconds: dict[str, float] = defaultdict(float)
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        tier = dict(getattr(report, "user_properties", [])).get("tier")
        if tier is not None:
            # What was "unit" while its fixtures were made is "in process" if it trains then.
            tiers[report.nodeid] = max(tier, tiers.get(report.nodeid, tier), key=TIERS.index)
            seconds[report.nodeid] += report.duration
    terminalreporter.section("tiers")
    for tier in TIERS:
        its = [test for test in tiers if tiers[test] == tier]
        spent = sum(seconds[test] for test in its)
        terminalreporter.write_line(f"{tier:12}{len(its):6} tests{spent:9.0f} s")
    for test in sorted(tiers, key=lambda test: -seconds[test]):
        if seconds[test] > _SECONDS and TIERS.index(tiers[test]) < TIERS.index("smoke"):
            terminalreporter.write_line(f"{seconds[test]:6.1f} s, make it cheaper or mark it slow: {test}")


def _tier(item: pytest.Item) -> str:
    if item.get_closest_marker("smoke"):
        return "smoke"
    if _is_of(KINDS, item):
        return "full"
    return "in process" if "training" in _happened else "unit"


def _is_of(kinds: Sequence[str], item: pytest.Item) -> bool:
    return any(item.get_closest_marker(kind) for kind in kinds)


def _notice_processes(event: str, arguments: tuple[Any, ...]) -> None:
    is_fork = event == "os.fork" and not _is_by_data_loader()
    is_program = event == "subprocess.Popen" and Path(str(arguments[0])).name.startswith(_PROGRAMS)
    if is_fork or is_program or event == "tests.support.warm":
        _happened.add("process")


def _is_by_data_loader() -> bool:
    """Tell whether torch's `DataLoader` has made the call that is being made."""
    frame = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != "torch.utils.data.dataloader":
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None
