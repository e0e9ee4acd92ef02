"""Calls the command line and says in the end which of our modules it had to load for that."""

from __future__ import annotations

import json
import sys

from icestream.cli.main import main


def call() -> None:
    before = {*sys.modules}
    try:
        main()
    finally:
        print(json.dumps(sorted(name for name in {*sys.modules} - before if name.startswith("icestream"))))
