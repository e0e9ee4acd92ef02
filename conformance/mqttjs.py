"""MQTT.js as a peer: mqttjs_peer.js under Node.js, with the package from npm, which is installed once into .venv."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from conformance.kit import ROOT, Missing
from conformance.mqtt_broker import broker_name, started_broker

VERSION: Final = "5.16.0"
PROGRAM: Final = ROOT / "conformance" / "mqttjs_peer.js"
SECONDS_MAX: Final = 300


def folder() -> Path:
    return ROOT / ".venv" / "kit" / f"mqttjs-{VERSION}"


def is_installed() -> bool:
    """True if the package and Node.js are here."""
    return folder().is_dir() and shutil.which("node") is not None


def command(host: str, port: int) -> list[str]:
    return ["node", str(PROGRAM), host, str(port)]


def environment() -> dict[str, str]:
    """Where Node.js finds the package."""
    return {"NODE_PATH": str(folder() / "node_modules")}


def main() -> bool:
    """True if every case passed. Raises Missing."""
    if not is_installed():
        _install()
    with started_broker() as (host, port):
        print(f"conformance: MQTT.js {VERSION} against {broker_name()}", flush=True)
        done = subprocess.run(
            command(host, port), env={**os.environ, **environment()}, timeout=SECONDS_MAX, check=False
        )
    return done.returncode == 0


def _install() -> None:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Missing(f"there is no {program}, which MQTT.js needs: `apt install nodejs npm`")
    print(f"conformance: installing MQTT.js {VERSION} (once)", flush=True)
    coming = folder().with_suffix(".coming")
    shutil.rmtree(coming, ignore_errors=True)
    coming.mkdir(parents=True)
    npm = ["npm", "install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--prefix", str(coming)]
    done = subprocess.run([*npm, f"mqtt@{VERSION}"], cwd=coming, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Missing(f"npm cannot install MQTT.js:\n{(done.stdout + done.stderr)[-2000:]}")
    coming.rename(folder())
