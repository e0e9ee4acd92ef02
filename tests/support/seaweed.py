"""SeaweedFS, from PyPI: an S3 store with its token service (STS), and a REST catalog that is not ours, in one process
without a container."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from icestream.catalogs.aws_signature import AwsKeys, AwsRequest, SigningScope, sign
from tests.support.free_ports import free_ports

KEY, SECRET = "icestream", "not-a-secret-0123456789"
TABLE_BUCKET, BUCKET, LOCKED_BUCKET = "lake", "objects", "locked"
TABLE_ROLE = "arn:aws:iam::000000000000:role/tables"  # may do everything; a session policy narrows it
WAIT_SECONDS = 60.0
_EVERYTHING = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*", "arn:aws:s3:::*/*"]}
_TRUST = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["sts:AssumeRole"]}
_ACCESS = {
    "sts": {"issuer": "tests", "signingKey": "bm90IGEgc2VjcmV0LCAwMTIzNDU2Nzg5MDEyMzQ1Njc4OQ=="},
    "policy": {"defaultEffect": "Deny"},
    "policies": [{"name": "all", "document": {"Version": "2012-10-17", "Statement": [_EVERYTHING]}}],
    "roles": [
        {
            "roleName": "tables",
            "roleArn": TABLE_ROLE,
            "trustPolicy": {"Version": "2012-10-17", "Statement": [_TRUST]},
            "attachedPolicies": ["all"],
        }
    ],
}


@dataclass(frozen=True)
class Seaweed:
    s3_port: int
    catalog_port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.s3_port}"

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.catalog_port}"


@contextmanager
def seaweed(folder: Path) -> Iterator[Seaweed]:
    """Runs SeaweedFS. Its gRPC ports are its ports + 10,000."""
    master, volume, filer, s3, catalog, lance = free_ports(6, also_at=(10_000,))
    weed = Path(sys.executable).with_name("weed")
    access = folder / "access.json"
    access.write_text(json.dumps(_ACCESS))
    command = [
        weed, "-logtostderr=true", "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}",
        f"-s3.port.iceberg={catalog}", f"-s3.port.lance={lance}", "-webdav=false", "-admin.ui=false",
        f"-filer.localSocket={folder}/filer.sock", f"-s3.localSocket={folder}/s3.sock",
        f"-tableBucket={TABLE_BUCKET}", f"-bucket={BUCKET}",
        f"-s3.iam.config={access}",
    ]  # fmt: skip
    surroundings = os.environ | {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "HOME": str(folder)}
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=surroundings, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        server = Seaweed(s3, catalog)
        _wait(process, server, folder / "weed.log")
        yield server
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def create_locked_bucket(server: Seaweed) -> None:
    """Creates LOCKED_BUCKET, which has object lock: S3 gives it to a bucket when it is created."""
    url, digest = f"{server.endpoint}/{LOCKED_BUCKET}", hashlib.sha256(b"").hexdigest()
    headers = {"x-amz-bucket-object-lock-enabled": "true"}
    request = AwsRequest("PUT", url, headers, digest)
    headers |= sign(request, AwsKeys(KEY, SECRET), SigningScope("us-east-1", "s3"), time.time_ns() // 1_000)
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=30).close()


def _wait(process: subprocess.Popen[bytes], server: Seaweed, log: Path) -> None:
    """Waits until both servers answer and the bucket of tables exists."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not _is_up(server):
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-4000:]
        time.sleep(0.05)


def _is_up(server: Seaweed) -> bool:
    form = {"grant_type": "client_credentials", "client_id": KEY, "client_secret": SECRET, "scope": "catalog"}
    try:
        with urllib.request.urlopen(f"{server.uri}/v1/oauth/tokens", urlencode(form).encode(), timeout=5) as answer:
            token = json.load(answer)["access_token"]
        request = urllib.request.Request(f"{server.uri}/v1/{TABLE_BUCKET}/namespaces")
        request.add_header("Authorization", f"Bearer {token}")
        urllib.request.urlopen(request, timeout=5).close()
        urllib.request.urlopen(f"{server.endpoint}/{BUCKET}", timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code == 403 and error.url.startswith(server.endpoint)  # it is there, and asks for keys
    except OSError:
        return False
    return True
