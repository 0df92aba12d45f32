"""Runs the tests of a file by pytest, on the bridge, and ends with "N passed, N failed", which tests/tools/run-tests adds up.

    build/mlx/bin/python tests/mlx/runner.py tests/mlx/test_x.py [-k name] [more of pytest's options]
"""

import json
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import mlxvk_mlx  # noqa: E402  (before mlx.core)
import pytest  # noqa: E402


class Count:
    """What each test came to: a test that fails and then fails to clean up has failed once."""

    def __init__(self):
        self.outcomes = {}

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            if self.outcomes.get(report.nodeid) != "failed":
                self.outcomes[report.nodeid] = report.outcome

    def pytest_collectreport(self, report):
        if report.failed:
            self.outcomes[report.nodeid] = "failed"

    def closing(self, status):
        counts = {outcome: list(self.outcomes.values()).count(outcome) for outcome in ("passed", "failed", "skipped")}
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            counts["failed"] = max(counts["failed"], 1)
        return "%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts


def keep_seen(test):
    """Which primitives ran on the GPU in this file's tests, for table.py. Not those of MLX's own suite."""
    if not os.path.samefile(os.path.dirname(test) or ".", os.path.dirname(__file__)):
        return
    folder = os.path.join(os.path.dirname(mlxvk_mlx.library()), "seen")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, os.path.splitext(os.path.basename(test))[0] + ".json"), "w") as file:
        json.dump([p["name"] for p in mlxvk_mlx.primitives() if p["ran"]], file)


def main():
    if not mlxvk_mlx.is_available():
        print("no Vulkan device: nothing to test\n0 passed, 1 failed")
        return 1
    print(mlxvk_mlx.device())
    count = Count()
    status = pytest.main(["-q", "--tb=short", "-p", "no:cacheprovider", "--durations=5"] + sys.argv[1:], plugins=[count])
    keep_seen(sys.argv[1])
    print(count.closing(status), flush=True)
    return int(status)


sys.exit(main())
