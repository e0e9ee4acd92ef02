"""A file system of a given size, made for one test: a tmpfs in a mount namespace of its own, held by one process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

# A user namespace makes root unnecessary; where namespaces are forbidden, root can do without one.
_WAYS = (("--user", "--map-root-user", "--mount"), ("--mount",))
_HOLD = 'mount -t tmpfs -o "size=$2" tmpfs "$1" && echo mounted && read -r _'


class NoSmallDisk(Exception):
    """This machine does not allow a mount."""


class SmallDisk:
    """`path` leads into the namespace through the process that holds it, from any process of this user."""

    def __init__(self, mount_point: Path, size_bytes: int) -> None:
        mount_point.mkdir(parents=True, exist_ok=True)
        self._holder = self._hold(mount_point, size_bytes)
        self.path = Path(f"/proc/{self._holder.pid}/root") / mount_point.relative_to("/")
        if os.statvfs(self.path).f_blocks * os.statvfs(self.path).f_frsize != size_bytes:
            self.close()
            raise NoSmallDisk("the mounted file system cannot be reached through /proc")

    @staticmethod
    def _hold(mount_point: Path, size_bytes: int) -> subprocess.Popen[bytes]:
        if shutil.which("unshare") is None or shutil.which("mount") is None:
            raise NoSmallDisk("there is no unshare or no mount on this machine")
        complaint = b""
        for flags in _WAYS:
            holder = subprocess.Popen(
                ["unshare", *flags, "sh", "-c", _HOLD, "sh", str(mount_point), str(size_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            assert holder.stdout is not None
            if holder.stdout.readline() == b"mounted\n":
                return holder
            complaint = holder.communicate()[1]
        raise NoSmallDisk(f"mounting a tmpfs is not allowed here: {complaint.decode().strip()}")

    @property
    def free_bytes(self) -> int:
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    def close(self) -> None:
        if self._holder.poll() is None:
            os.killpg(self._holder.pid, signal.SIGKILL)
        self._holder.communicate()
