"""Makes the Python modules of Danube's messages from our .proto files: `make wire`. They are committed.

Committed, because whoever installs Icestream should not need a compiler for four hundred lines that change once a year;
a tidy test makes them again and compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src"
WIRE = SOURCES / "icestream" / "frontends" / "danube" / "wire"


def generate(folder: Path) -> list[Path]:
    """Writes what the .proto files give below `folder`, as they lie below src/; which files."""
    from grpc_tools import protoc

    sources = [path.relative_to(SOURCES) for path in sorted(WIRE.glob("*.proto"))]
    arguments = ["protoc", f"-I{SOURCES}", f"--python_out={folder}", f"--pyi_out={folder}"]
    if protoc.main([*arguments, *map(str, sources)]) != 0:
        sys.exit("protoc could not read the .proto files")
    return [folder / source.with_name(f"{source.stem}_pb2{end}") for source in sources for end in (".py", ".pyi")]


if __name__ == "__main__":
    for path in generate(SOURCES):
        print(f"wire: {path.name}")
