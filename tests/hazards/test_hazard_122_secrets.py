"""Hazard 122: a secret is shown nowhere: not in /proc, not by a command, not in a log message or an error.

A broker with its lake process, TLS on all listeners, and a canary in each place from which a secret may come. What they
and the commands print, serve and leave in /proc is searched for all of them. The same broker answers real TLS clients.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from icestream import errors
from icestream.cli.options import load_settings
from icestream.runtime.child_variables import child_variables
from icestream.settings import load
from icestream.settings.secret_source import is_reference
from tests.support.certificates import Certificates
from tests.support.curl import curl, ports_of
from tests.support.lake_run import children_of
from tests.support.secret_files import secret_file
from tests.support.serve_process import COMMAND, ServeProcess

STORE, CATALOG = "storage.iceberg_config.object_store", "storage.iceberg_config.catalog"
CANARIES = {place: f"canary-{place}-0123456789" for place in ("file", "config", "command", "header", "conf", "tokens")}


def run(*arguments: str) -> str:
    """Everything that a command prints."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


@pytest.mark.timeout(120)
def test_hazard_122_no_output_shows_a_secret_and_every_port_speaks_tls(tmp_path: Path) -> None:
    pem = Certificates(tmp_path / "pem")
    tokens = secret_file(tmp_path / "tokens", CANARIES["tokens"] + "-of-the-catalog")
    config = secret_file(
        tmp_path / "broker.yml",
        f"""
storage:
  iceberg_config:
    catalog:
      token: "{CANARIES["config"]}"
      headers: ["X-Tenant: {CANARIES["header"]}"]
    object_store:
      access_key_id: "env:PATH"
      secret_access_key: "file:{secret_file(tmp_path / "key", CANARIES["file"])}"
      session_token: "command:cat {secret_file(tmp_path / "session", CANARIES["command"])}"
pipeline: {{spark: {{conf: ["spark.hadoop.fs.s3a.secret.key={CANARIES["conf"]}", "spark.ui.enabled=false"]}}}}
tls: {json.dumps(pem.settings("optional"))}
""",
    )
    data_dir = tmp_path / "data"
    flags = ("--config", str(config), "--set", f"lake.token_file={tokens}")
    loaded = load(config).settings.storage.iceberg_config
    assert loaded.object_store.secret_access_key is not None, "the canaries are where they are looked for"
    assert loaded.object_store.secret_access_key.get_secret_value() == CANARIES["file"]
    assert loaded.object_store.session_token is not None
    assert loaded.object_store.session_token.get_secret_value() == CANARIES["command"]
    shown: dict[str, str] = {}
    with ServeProcess(data_dir, "--set", "lake.managed=true", "--set", "log.level=debug", *flags) as process:
        greeting = "\n".join(process.greeting())
        http_port, lake = ports_of(pem, greeting)
        # Real clients: with and without a certificate, and what must not get in.
        assert curl(pem, lake, "/v1/config").status == 401
        bearer = ("-H", f"Authorization: Bearer {tokens.read_text()}")
        client = ("--cert", str(pem.client), "--key", str(pem.client.with_suffix(".key")))
        assert curl(pem, lake, "/v1/config", *bearer, *client).status == 200
        for certificate in (pem.stranger, pem.expired):
            refused = ("--cert", str(certificate), "--key", str(certificate.with_suffix(".key")))
            assert curl(pem, lake, "/readyz", *refused).status == 0
            assert curl(pem, http_port, "/livez", *refused).status == 0
        assert curl(pem, lake, "/readyz", "--cacert", str(pem.client_ca)).code == 60, "an unknown authority"
        assert curl(pem, http_port, "/livez", "--tls-max", "1.1").code != 0
        # Hazard 123: a name that is not ours.
        for port in (lake, http_port):
            assert curl(pem, port, "/livez", "-H", "Host: evil.example").status == 421
        shown["greeting"] = greeting
        shown["metrics"] = curl(pem, http_port, "/metrics").text
        shown["api config"] = curl(pem, lake, "/api/v1/config", *bearer).text
        assert " 200 " in shown["api config"]
        for output in ("table", "json"):
            shown[f"config show {output}"] = run(
                "config", "show", "--set", f"data_dir={data_dir}", *flags, "--output", output
            )
            shown[f"doctor {output}"] = run("doctor", "--set", f"data_dir={data_dir}", *flags, "--output", output)
        assert "spark.ui.enabled=false" in shown["config show table"], "what is no secret is shown"
        assert "********" in shown["config show table"]
        for pid in (process.pid, *children_of(process.pid)):
            for name in ("cmdline", "environ"):
                shown[f"/proc {pid} {name}"] = Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
        assert len(children_of(process.pid)) == 1, "the lake process was looked at"
        _, stderr = process.stop(15)
        shown["log messages"] = stderr
    for wrong in (f"{CATALOG}.headers=[{CANARIES['header']}]", f"{STORE}.secret_access_key={CANARIES['file']}"):
        with pytest.raises(errors.ConfigurationError) as refusal:
            load_settings(config, [wrong])
        shown[f"error {wrong.partition('=')[0]}"] = f"{refusal.value} {refusal.value.hint}"
    private = "".join(pem.server.with_suffix(".key").read_text().splitlines()[1:2])
    for place, text in shown.items():
        for canary in (*CANARIES.values(), private):
            assert canary not in text, f"{place} shows {canary}"
    for path, mode in ((data_dir, 0o710), (data_dir / "wal", 0o700), (data_dir / "raft", 0o700)):
        assert stat.S_IMODE(path.stat().st_mode) == mode, path


def test_hazard_122_a_settings_file_with_a_secret_is_for_its_owner_only(tmp_path: Path) -> None:
    config = tmp_path / "broker.yml"
    config.write_text(f"storage: {{iceberg_config: {{catalog: {{token: {CANARIES['config']}}}}}}}\n")
    config.chmod(0o644)
    with pytest.raises(errors.ConfigurationError, match="mode 0644") as refused:
        load(config)
    assert f"chmod 600 {config}" in refused.value.hint
    assert CANARIES["config"] not in f"{refused.value}{refused.value.hint}"
    key = tmp_path / "key"
    key.write_text("x")
    key.chmod(0o640)
    config.write_text(f"storage: {{iceberg_config: {{catalog: {{token: 'file:{key}'}}}}}}\n")
    with pytest.raises(errors.ConfigurationError, match=f"chmod 600 {key}"):
        load(config)


@pytest.mark.parametrize(
    "reference", ["file:/nowhere", "env:NO_SUCH_NAME", "command:false", "command:/no/such/program"]
)
def test_hazard_122_a_secret_that_is_not_there_is_an_error(reference: str) -> None:
    assert is_reference(reference)
    with pytest.raises(errors.ConfigurationError, match=re.escape(f"{CATALOG}.token")):
        load(flags=[f"{CATALOG}.token={reference}"])


def test_hazard_122_children_get_a_listed_environment() -> None:
    given = {
        "PATH": "/bin", "LC_ALL": "C", "AWS_PROFILE": "p", "MINE": "1", "ICESTREAM_LOG__LEVEL": "debug",
        "ICESTREAM_STORAGE__ICEBERG_CONFIG__CATALOG__TOKEN": "canary", "DATABASE_PASSWORD": "canary",
    }  # fmt: skip
    assert set(child_variables(given)) == {"PATH", "LC_ALL", "AWS_PROFILE"}
    assert set(child_variables(given, ("MINE",))) == {"PATH", "LC_ALL", "AWS_PROFILE", "MINE"}
    assert child_variables(os.environ)["PATH"] == os.environ["PATH"]
