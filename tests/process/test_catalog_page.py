"""The commands of docs/catalog.md work exactly as they are printed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from icestream.catalog.tokens import read_tokens
from icestream.lake.iceberg.routes import ROUTES
from tests.support.lake_run import LakeRun

PAGE = (Path(__file__).parents[2] / "docs" / "catalog.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_requests_of_the_page(tmp_path: Path) -> None:
    with LakeRun(tmp_path / "data") as run:
        run.until_api()
        script = BLOCKS[0].replace("127.0.0.1:8181", f"127.0.0.1:{run.lake_port}")
        done = subprocess.run(["sh", "-e", "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert '"owner":"me"' in done.stdout
        assert '{"identifiers":[{"namespace":["shop"],"name":"orders"}]' in done.stdout


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_tokens_of_the_page(tmp_path: Path) -> None:
    make, serve = BLOCKS[1].strip().splitlines()
    subprocess.run(["sh", "-e", "-c", make], cwd=tmp_path, check=True)
    tokens = read_tokens(tmp_path / "catalog-tokens")
    assert not tokens.allows(None)
    assert tokens.allows(f"Bearer {(tmp_path / 'catalog-tokens').read_text().strip()}")
    assert serve == "icestream serve --set lake.token_file=catalog-tokens"


def test_every_served_route_is_on_the_page() -> None:
    words = {path.rsplit("/", 1)[-1].strip("{}") for _, path in ROUTES} - {"namespace", "table", "view"}
    missing = [word for word in words if word.rstrip("s").replace("-view", "") not in PAGE]
    assert missing == []
