"""Builds the native extension (native/) into .venv where a Rust compiler exists, and says what is slower where not.

    build_native.py                          build if native/ changed since the last time; never fails
    build_native.py --required --planted     for tests: a failing build is an error; also build the planted variant

Each variant has a stamp in .venv/stamps with the digest of the sources it was made from and how that went. A build is
repeated when the digest differs, and a build that was not possible also when the compiler differs.

The planted variant (cargo feature `planted`) carries the deliberate bugs that the tests must catch. It is never
installed: it lies in .venv/planted, and a test that wants it puts that directory first on its path.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "native"
VENV = ROOT / ".venv"
STAMPS = VENV / "stamps"
LOG_LINES_SHOWN = 25
# How often a build says what it is doing: where a line is written over, and where it stays.
SIGN_SECONDS_TERMINAL = 1.0
SIGN_SECONDS = 30.0
CLEARED_LINE = "\r\033[K"

SLOWER = """\
setup: Icestream runs without its native extension: {reason}.
       A single node works, but slower: log writes and syncs run inline on the event loop instead of in a thread of
       their own, record encoding and scanning run in Python, and calls of Danube's clients cost ten times as much.
       A cluster needs the extension, which holds the Raft core.
       {remedy}"""


@dataclass(frozen=True)
class Stamp:
    """What was built, or why nothing was."""

    digest: str
    compiler: str
    built: bool
    reason: str = ""
    remedy: str = ""

    def stands(self, compiler: str, *, required: bool) -> bool:
        """Whether there is nothing to gain from another build of the same sources."""
        return self.built or (self.compiler == compiler and not required)


@dataclass(frozen=True)
class Compiler:
    """The cargo of this machine: its version, as in `1.95.0`, or why it does not start; both empty without one."""

    version: str = ""
    problem: str = ""

    @property
    def identity(self) -> str:
        """What a stamp keeps of it."""
        return self.version or self.problem


class BuildFailed(Exception):
    """The compiler is there and did not succeed."""


def sources() -> list[Path]:
    names = ("Cargo.toml", "pyproject.toml", "build.rs", "*.pyi", "src/**/*.rs", ".cargo/config.toml")
    return sorted(path for name in names for path in NATIVE.glob(name))


def digest_of_sources() -> str:
    digest = hashlib.sha256()
    for path in sources():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(NATIVE)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def installed_compiler() -> Compiler:
    if shutil.which("cargo") is None:
        return Compiler()
    answer = subprocess.run(["cargo", "--version"], cwd=ROOT, capture_output=True, text=True, check=False)
    words = answer.stdout.split()
    if answer.returncode == 0 and len(words) > 1:
        return Compiler(words[1])
    # A cargo of rustup is there without a toolchain, and fails: its first line has the reason.
    reason = next(iter(answer.stderr.split("\n")), "").strip().removeprefix("error: ").rstrip(".")
    return Compiler(problem=reason or f"exit code {answer.returncode}")


def obstacle(compiler: Compiler) -> tuple[str, str]:
    """Why no build is possible on this machine and what would help; two empty strings when it is possible."""
    manifest = NATIVE / "Cargo.toml"
    if not manifest.is_file():
        return "native/Cargo.toml is not there", "Its sources belong to the repository: fetch them and run again."
    if compiler.problem:
        remedy = "To have it, make that command work (`rustup default stable` for a missing toolchain) and run again."
        return f"`cargo --version` fails: {compiler.problem}", remedy
    if not compiler.version:
        return "there is no Rust compiler (cargo)", "To have it, install Rust (for example with rustup) and run again."
    needed = tomllib.loads(manifest.read_text(encoding="utf-8")).get("package", {}).get("rust-version", "0")
    if numbers(compiler.version) < numbers(needed):
        return (
            f"cargo is {compiler.version}, it needs {needed}",
            "To have it, update Rust (rustup update) and run again.",
        )
    return "", ""


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("-")[0].split("."))


def build_installed() -> None:
    wheels = VENV / "native-wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    maturin = [str(VENV / "bin" / "maturin"), "build", "--release", "--compatibility", "linux"]
    maturin += ["--interpreter", sys.executable, "--target-dir", "target", "--out", str(wheels)]
    run_logged(maturin, "native-build.log")
    wheel = next(wheels.glob("*.whl"))
    pip("install", "--force-reinstall", "--no-deps", str(wheel))


def build_planted() -> None:
    target = NATIVE / "target-planted"
    run_logged(
        ["cargo", "build", "--release", "--no-default-features", "--features", "planted", "--target-dir", str(target)],
        "planted-build.log",
    )
    directory = VENV / "planted"
    directory.mkdir(exist_ok=True)
    partial = directory / "icestream_native.partial"
    shutil.copyfile(target / "release" / "libicestream_native.so", partial)
    partial.replace(directory / "icestream_native.abi3.so")


def run_logged(command: list[str], log_name: str) -> None:
    """Runs a build in native/ with its output in a file; the end of that file is the error."""
    log = VENV / log_name
    log.write_bytes(b"")
    # Without this, PyO3 would link libpython into an extension that cargo builds alone.
    environment = {**os.environ, "PYO3_PYTHON": sys.executable, "PYO3_BUILD_EXTENSION_MODULE": "1"}
    with shown_signs() as tell:
        if "PROTOC" not in environment:
            environment["PROTOC"] = bundled_protoc(log, tell)
        code = run_telling(command, log, log, tell, environment)
    if code != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        raise BuildFailed("\n".join([*lines[-LOG_LINES_SHOWN:], f"(all of it: {log.relative_to(ROOT)})"]))


def run_telling(
    command: list[str],
    output: Path,
    log: Path,
    tell: Callable[[str], None],
    environment: dict[str, str] | None = None,
    pause_seconds: float | None = None,
) -> int:
    """Runs it in native/ with stdout and stderr added to files; tells now and then how it is going. Its exit code."""
    pause = pause_seconds or (SIGN_SECONDS_TERMINAL if sys.stdout.isatty() else SIGN_SECONDS)
    began = time.monotonic()
    with output.open("ab") as out, log.open("ab") as err:
        process = subprocess.Popen(command, cwd=NATIVE, stdout=out, stderr=err, env=environment)
    try:
        while True:
            try:
                return process.wait(pause)
            except subprocess.TimeoutExpired:
                tell(sign_of_life(log.read_text(encoding="utf-8", errors="replace"), time.monotonic() - began))
    finally:
        if process.poll() is None:  # Ctrl-C
            process.kill()
            process.wait()


def sign_of_life(log: str, seconds: float) -> str:
    """What the build does now: the last line of its log, such as `Compiling raft v0.7.0`."""
    doing = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "it has said nothing yet")
    return f"setup: still building after {seconds:.0f} s: {doing}"


@contextmanager
def shown_signs() -> Iterator[Callable[[str], None]]:
    """At a terminal one line that changes and goes away at the end, elsewhere a line each."""
    if not sys.stdout.isatty():
        yield lambda sign: print(sign, flush=True)
        return
    columns = shutil.get_terminal_size().columns - 1
    try:
        yield lambda sign: print(f"{CLEARED_LINE}{sign[:columns]}", end="", flush=True)
    finally:
        print(CLEARED_LINE, end="", flush=True)


def bundled_protoc(log: Path, tell: Callable[[str], None]) -> str:
    """The raft crate makes its messages with protoc, which lies in a crate that it needs anyway. Fetches the crates."""
    answer = VENV / "native-metadata.json"
    answer.write_bytes(b"")
    if run_telling(["cargo", "metadata", "--format-version", "1"], answer, log, tell) == 0:
        for package in json.loads(answer.read_bytes())["packages"]:
            if package["name"] == "protobuf-build":
                machine = {"aarch64": "aarch_64"}.get(platform.machine(), platform.machine())
                return str(Path(package["manifest_path"]).parent / "bin" / f"protoc-linux-{machine}")
    return "protoc"


def pip(*arguments: str) -> None:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    subprocess.run([sys.executable, "-m", "pip", *arguments, *quiet], cwd=ROOT, check=True)


def read_stamp(name: str) -> Stamp | None:
    try:
        return Stamp(**json.loads((STAMPS / name).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def bring_up_to_date(name: str, *, required: bool) -> Stamp:
    """Builds one variant if it is not what the sources say; returns how things stand."""
    digest = digest_of_sources()
    compiler = installed_compiler()
    before = read_stamp(name)
    if before is not None and before.digest == digest and before.stands(compiler.identity, required=required):
        return before
    (STAMPS / name).unlink(missing_ok=True)
    reason, remedy = obstacle(compiler)
    if not reason:
        print(f"setup: building the {name} extension (some minutes, once)", flush=True)
        try:
            build_planted() if name == "planted" else build_installed()
        except BuildFailed as error:
            print(error, file=sys.stderr)
            if required:
                sys.exit(f"setup: the {name} extension does not build (output above)")
            reason, remedy = (
                "its build failed",
                "It is tried again when native/ or the compiler changes, or by make test.",
            )
    if reason and name == "native" and importlib.util.find_spec("icestream_native") is not None:
        # An extension made from other sources must not stay behind: the two halves would no longer fit together.
        pip("uninstall", "--yes", "icestream-native")
    stamp = Stamp(digest, compiler.identity, built=not reason, reason=reason, remedy=remedy)
    (STAMPS / name).write_text(json.dumps(asdict(stamp)) + "\n", encoding="utf-8")
    return stamp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--required", action="store_true", help="a build that fails ends the run")
    parser.add_argument("--planted", action="store_true", help="also build the variant with planted bugs")
    options = parser.parse_args()
    STAMPS.mkdir(parents=True, exist_ok=True)
    stamp = bring_up_to_date("native", required=options.required)
    if not stamp.built:
        print(SLOWER.format(reason=stamp.reason, remedy=stamp.remedy), flush=True)
    elif options.planted:
        bring_up_to_date("planted", required=options.required)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
