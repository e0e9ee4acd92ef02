"""A broker process with accounts: after `security init`, administered over HTTP."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.support.lake_run import LakeRun
from tests.support.serve_process import COMMAND

ADMIN = "correct horse battery"  # the password of `admin`


class SecuredRun:
    """The broker of a LakeRun, whose data directory is `data` in `folder`."""

    def __init__(self, run: LakeRun, folder: Path) -> None:
        run.until_api()
        self.uri = f"http://127.0.0.1:{run.lake_port}"
        password = folder / "admin.password"
        password.touch(0o600)
        password.write_text(ADMIN)
        command = ["security", "init", "admin", "--password-file", str(password), "--broker", str(folder / "data")]
        subprocess.run([*COMMAND, *command], check=True, capture_output=True)

    def token(self, name: str, password: str) -> str:
        form = {"grant_type": "client_credentials", "client_id": name, "client_secret": password}
        with urllib.request.urlopen(f"{self.uri}/v1/oauth/tokens", urlencode(form).encode(), timeout=30) as answer:
            return str(json.load(answer)["access_token"])

    def client(self, credential: str) -> dict[str, str]:
        """The settings of PyIceberg."""
        return {"uri": self.uri, "credential": credential, "oauth2-server-uri": f"{self.uri}/v1/oauth/tokens"}

    def administer(self, path: str, body: Any) -> None:
        headers = {"authorization": f"Bearer {self.token('admin', ADMIN)}", "content-type": "application/json"}
        url = f"{self.uri}/api/v1/security/{path}"
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=30).close()
