"""The Arrow type of each kind of column: what clients are given, tasks write and the lake reads.

It imports pyarrow: modules that can do without pyarrow import it late.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from icestream.model.envelope import ColumnKind

ARROW_TYPES: Final[dict[ColumnKind, Any]] = {
    ColumnKind.INT32: pa.int32(),
    ColumnKind.INT64: pa.int64(),
    ColumnKind.TIMESTAMP_US: pa.timestamp("us", tz="UTC"),
    ColumnKind.BOOLEAN: pa.bool_(),
    ColumnKind.BINARY: pa.binary(),
    ColumnKind.STRING: pa.utf8(),
    ColumnKind.HEADERS: pa.map_(pa.utf8(), pa.utf8()),
}
