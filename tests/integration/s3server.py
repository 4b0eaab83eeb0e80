"""A real S3-compatible server for the tests of the stores.

One that runs already (``PGHERD_TEST_S3_ENDPOINT``, with credentials as Amazon's tools take them),
or ``versitygw`` in a directory of ours: one program, from
``go install github.com/versity/versitygw/cmd/versitygw@latest``.
"""

import contextlib
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from places import free_port

_GATEWAY = shutil.which("versitygw")
_RUNNING = os.environ.get("PGHERD_TEST_S3_ENDPOINT")
_SECRETS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret-of-this-test"}
NEEDS_S3 = pytest.mark.skipif(
    not (_GATEWAY or _RUNNING),
    reason="NO S3 SERVER: stores in a bucket are NOT tested. Put versitygw into the PATH, or set "
    "PGHERD_TEST_S3_ENDPOINT",
)


@dataclass(slots=True)
class Server:
    """versitygw, which keeps objects in a directory."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; return when it listens."""
        assert _GATEWAY is not None
        objects, metadata = self.directory / "objects", self.directory / "metadata"
        for one in (objects, metadata):
            one.mkdir(parents=True, exist_ok=True)
        root = {
            "ROOT_ACCESS_KEY": _SECRETS["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": _SECRETS["AWS_SECRET_ACCESS_KEY"],
        }
        command = [_GATEWAY, "--quiet", "--port", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(
            [*command, "posix", "--sidecar", str(metadata), str(objects)],
            env=os.environ | root,
            stdout=subprocess.DEVNULL,
        )
        while True:
            assert self.process.poll() is None, "versitygw has ended"
            with (
                contextlib.suppress(ConnectionError),
                socket.create_connection(("127.0.0.1", self.port), 1),
            ):
                break

    def kill(self) -> None:
        """End it, if it runs; what it has stored is there when it is started again."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """An empty bucket, and the environment of programs that are to reach it."""

    endpoint: str
    name: str
    environment: dict[str, str]
    server: Server | None
    """Ours, None if it ran before."""

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def client(self) -> Any:
        """Amazon's client."""
        import boto3  # noqa: PLC0415 - an extra

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"],
        )

    def objects(self) -> list[str]:
        """The keys of all objects."""
        found = self.client().list_objects_v2(Bucket=self.name)
        return [one["Key"] for one in found.get("Contents", ())]


@contextlib.contextmanager
def bucket(directory: Path) -> Iterator[Bucket]:
    """A new bucket, on a server in ``directory`` unless one runs already."""
    with contextlib.ExitStack() as stack:
        server = None
        if _RUNNING is not None:
            endpoint = _RUNNING
            environment = {
                name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
            }
        else:
            server = Server(directory, free_port())
            stack.callback(server.kill)
            server.start()
            endpoint, environment = server.endpoint, _SECRETS
        made = Bucket(endpoint, f"pgherd-{random.getrandbits(40):x}", environment, server)
        made.client().create_bucket(Bucket=made.name)
        yield made
