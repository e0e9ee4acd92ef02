"""Makes a damaged log open again, and says exactly what that costs. Nothing changes without `apply_repair`.

Goes through every record of every file in LSN order, not only through those behind the checkpoint.
    a bad section     of a record whose header is good: exactly its offsets are lost. A GAP note takes its place, the
                      other sections of the record stay
    missing records   bytes without a good header, or a file that is gone: a REPAIR record takes their place. Its LSN is
                      the last one that is missing; it keeps the sections that are good by themselves and has a GAP note
                      for the offsets that turn out to be missing, when their shard goes on or at the checkpoint
    an unknown end    a shard that does not go on behind the last missing record: how far it had come is not known. A
                      closing record, in a file of its own behind all others, skips more offsets than can have been
                      lost, so that none is given out twice. It is a REPAIR record: the next start accepts that others
                      know positions beyond the end of the log, and declares them lost too
A file that needs a change is written anew beside the log, its original is kept as `damaged-…`, and it takes the
original's place by a rename. The closing file comes first: until the last file is mended a start still finds damage,
so a repair that is interrupted can be made again from what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import batched
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.model.shard import Gap, GapState, ShardKey, Topic
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory
from icestream.wal import block, log_file, notes
from icestream.wal import format as wire
from icestream.wal.footer import read_footer
from icestream.wal.log_file import FileHeader, Seal
from icestream.wal.recovery import examine
from icestream.wal.rewrite import Copy, publish_copy
from icestream.wal.scan import find_headers, scan_records
from icestream.wal.survey import Survey, survey
