"""A process with a log of its own, for tests that kill it. Its one argument is the plan.

PLAN is the JSON of a `WriterPlan` (writer_plan.py). Events are printed to stdout, one JSON list a line, after the fact
(an intent: before it); a line is one write, so a killed process prints no partial line. A line "stop" on stdin ends the
process cleanly; the end of stdin, when the parent has died, immediately.

    opening                                     before the log is opened
    opened        report, seconds               after it
    not_opened    code, text                    the log refused to open; the end
    shard         key, earliest, next, gaps     once for each shard, then what it holds:
    read          key, base, writer, number     a batch that a reader was given, at the start and under load
    ready                                       the start has been told
    send          writer, number, key           before it is handed to the log
    ack           writer, number, key, base     after the log answered; base is null where it is no longer known
    known         writer, number                a producer came back with a new epoch: all batches before it are stored
    floor         key, offset                   before the floor moves
    refused       code, text, writer, number    it is not stored, or that is unknown
    resting                                     work "rest": all is acked and synced
    closed
    failed        text                          anything else; the end
"""

from __future__ import annotations

import sys

from tests.support.writer_load import run
from tests.support.writer_plan import WriterPlan


def main() -> None:
    run(WriterPlan.from_json(sys.argv[1]))
