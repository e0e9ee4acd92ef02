"""The readiness check of the log's disk, as a function of its values."""

from __future__ import annotations

import pytest

from icestream.limits import GIB, MIB
from icestream.processes.node.node_health import DiskState, disk_check

# A disk of 200 GiB with half of it free: the quota of 50 GiB follows from that.
WELL = DiskState(
    used_bytes=GIB,
    quota_bytes=50 * GIB,
    slow_bytes=40 * GIB,
    is_quota_set=False,
    free_bytes=99 * GIB,
    total_bytes=200 * GIB,
    file_bytes=64 * MIB,
)


def test_a_disk_with_space_is_healthy_and_reports_its_use() -> None:
    check = disk_check(WELL)
    assert (check.ok, check.reason) == (True, "the log uses 1.0 GiB of 50.0 GiB")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"is_ballast_in_use": True}, "disk full: the emergency reserve (ballast) is in use"),
        ({"prepare_error": "No space left on device"}, "cannot create another log file: No space left on device"),
        ({"used_bytes": 50 * GIB}, "quota reached: producers are refused"),
        ({"used_bytes": 40 * GIB}, "quota nearly reached: producers are slowed down"),
        ({"free_bytes": 4 * GIB}, "disk nearly full (4.0 GiB of 200.0 GiB are free); free some space"),
        # at the start there were 12 GiB: half of them is the quota
        ({"free_bytes": 12 * GIB, "quota_bytes": 6 * GIB, "slow_bytes": 5 * GIB}, "the quota fell with the free space"),
        # another process took the space since the start
        (
            {"free_bytes": 48 * GIB},
            "the free space is smaller than the rest of the quota (48.0 GiB of 200.0 GiB are free)",
        ),
    ],
)
def test_disk_problems_are_reported_and_leave_the_node_ready(change: dict[str, int], words: str) -> None:
    check = disk_check(WELL._replace(**change))
    assert not check.ok
    assert not check.is_needed
    assert check.reason.startswith(words)
    assert ": the log uses " in check.reason


def test_a_quota_that_is_set_has_not_fallen() -> None:
    small = WELL._replace(free_bytes=12 * GIB, quota_bytes=6 * GIB, slow_bytes=5 * GIB, is_quota_set=True)
    assert disk_check(small).ok


def test_a_small_disk_is_not_called_full_by_the_measure_of_a_large_one() -> None:
    small = DiskState(0, 100 * MIB, 80 * MIB, True, 200 * MIB, 1000 * MIB, 64 * 1024)
    assert disk_check(small).ok
    assert not disk_check(small._replace(free_bytes=49 * MIB, quota_bytes=10 * MIB, slow_bytes=8 * MIB)).ok
