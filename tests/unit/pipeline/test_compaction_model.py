"""Runs of the model of table care (tests/support/care_model.py), read by PyIceberg and DuckDB. Spark reads the rows of
some in tests/engines/test_rows_after_care.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.care_model import run_model

pytestmark = pytest.mark.asyncio


async def test_whatever_happens_beside_compaction_every_row_stays(tmp_path: Path) -> None:
    counts = [await run_model(tmp_path / str(seed), seed) for seed in range(4)]
    assert sum(compactions for compactions, _ in counts) >= 4, "a model without compactions shows nothing"
    assert sum(erased for _, erased in counts) >= 4, "nor does one without erasures"


@pytest.mark.chaos
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("first", range(100, 300, 50))
async def test_whatever_happens_beside_compaction_every_row_stays_for_long(tmp_path: Path, first: int) -> None:
    counts = [await run_model(tmp_path / str(seed), seed) for seed in range(first, first + 50)]
    assert sum(compactions for compactions, _ in counts) >= 50
    assert sum(erased for _, erased in counts) >= 100
