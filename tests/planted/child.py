"""The program that the tests of the native path start: one story in a real directory, with or without a planted bug.

    python -m tests.planted.child '{"story": "flips", "root": "…", "answer": "…", "bug": ""}'

Puts what is wrong into the file `answer`, as a JSON list, and which native extension it used.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from icestream.model.sync_mode import SyncMode
from icestream.runtime.native import native
from tests.planted import checkers
from tests.planted.bugs import plant
from tests.planted.stores import DirectoryStore


def main() -> None:
    order = json.loads(sys.argv[1])
    assert native is not None, "the native extension is not there"
    if order["bug"]:
        plant(order["bug"], setattr)
    store = DirectoryStore(Path(order["root"]))
    if order["story"] == "traffic":
        violations = checkers.traffic(
            store, SyncMode(order["mode"]), inline_sync_below_us=order["inline_sync_below_us"]
        )
    else:
        violations = getattr(checkers, order["story"])(store)
    answer = {"violations": violations, "native": native.__file__}
    Path(order["answer"]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
