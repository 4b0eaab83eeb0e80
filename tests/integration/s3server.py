"""A server for the tests of the stores that speaks S3, and knows who may ask.

One that runs already (``PGHERD_TEST_S3_ENDPOINT``, with credentials as Amazon's tools take them);
or ``versitygw`` in a directory of ours, where it is in the ``PATH``: one program, from
``go install github.com/versity/versitygw/cmd/versitygw@latest``; or else moto, a Python package,
which keeps all in memory. So that moto can die and be back, what dies is the way to it.
"""

import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from places import free_port

_GATEWAY = shutil.which("versitygw")
_RUNNING = os.environ.get("PGHERD_TEST_S3_ENDPOINT")
_MOTO = all(map(importlib.util.find_spec, ("boto3", "moto", "flask", "flask_cors")))
_ID, _SECRET = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
_MAY_DO_ALL = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
_REQUESTS_TO_BEGIN_WITH = "3"
NEEDS_S3 = pytest.mark.skipif(
    not (_GATEWAY or _RUNNING or _MOTO),
    reason="NO S3 SERVER: stores in a bucket are NOT tested. Run `scripts/setup spark`, or set "
    "PGHERD_TEST_S3_ENDPOINT",
)


class Server(ABC):
    """One of ours. What was stored is there when it is started again.

    Attributes:
        port: of loopback.
        environment: with which programs are let in.
    """

    environment: dict[str, str]

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; return when it listens."""
        self._process = self._serve()
        _wait(self._process, self.port)

    def kill(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def fall_silent(self) -> None:
        """Have it accept connections and requests, and answer none."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def answer(self) -> None:
        """Have it go on where it was."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End all of it."""
        self.kill()

    @abstractmethod
    def _serve(self) -> "subprocess.Popen[bytes]":
        """Start what clients speak with."""


class _Gateway(Server):
    """versitygw, which keeps objects in a directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.environment = {_ID: "tester", _SECRET: "secret-of-this-test"}
        self._objects, self._metadata = directory / "objects", directory / "metadata"

    def _serve(self) -> "subprocess.Popen[bytes]":
        assert _GATEWAY is not None
        for one in (self._objects, self._metadata):
            one.mkdir(parents=True, exist_ok=True)
        root = {
            "ROOT_ACCESS_KEY": self.environment[_ID],
            "ROOT_SECRET_KEY": self.environment[_SECRET],
        }
        command = [_GATEWAY, "--quiet", "--port", f"127.0.0.1:{self.port}"]
        return subprocess.Popen(
            [*command, "posix", "--sidecar", str(self._metadata), str(self._objects)],
            env=os.environ | root,
            stdout=subprocess.DEVNULL,
        )


class _Moto(Server):
    """moto, which makes up credentials itself, and believes the first who ask."""

    def __init__(self) -> None:
        super().__init__()
        inner = free_port()
        self._inner = inner
        self._memory = subprocess.Popen(
            [sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(inner)],
            env=os.environ | {"INITIAL_NO_AUTH_ACTION_COUNT": _REQUESTS_TO_BEGIN_WITH},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait(self._memory, inner)
            self.environment = _credentials(f"http://127.0.0.1:{inner}")
        except BaseException:
            self.close()
            raise

    def _serve(self) -> "subprocess.Popen[bytes]":
        forwarder = Path(__file__).with_name("forwarder.py")
        return subprocess.Popen([sys.executable, forwarder, str(self.port), str(self._inner)])

    def close(self) -> None:
        """See Server."""
        super().close()
        self._memory.kill()
        self._memory.wait()


def _credentials(endpoint: str) -> dict[str, str]:
    """Those of a new user, who may do all."""
    import boto3  # noqa: PLC0415 - an extra

    users = boto3.client(
        "iam",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="nobody",
        aws_secret_access_key="nothing",
    )
    policy = {"Version": "2012-10-17", "Statement": [_MAY_DO_ALL]}
    users.create_user(UserName="tester")
    users.put_user_policy(UserName="tester", PolicyName="all", PolicyDocument=json.dumps(policy))
    key = users.create_access_key(UserName="tester")["AccessKey"]
    return {_ID: key["AccessKeyId"], _SECRET: key["SecretAccessKey"]}


def _wait(process: "subprocess.Popen[bytes]", port: int) -> None:
    while True:
        assert process.poll() is None, f"{process.args!r} has ended"
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", port), 1),
        ):
            return
        time.sleep(0.05)


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
            aws_access_key_id=self.environment[_ID],
            aws_secret_access_key=self.environment[_SECRET],
        )

    def objects(self) -> list[str]:
        """The keys of all objects."""
        found = self.client().list_objects_v2(Bucket=self.name)
        return [one["Key"] for one in found.get("Contents", ())]


@contextlib.contextmanager
def bucket(directory: Path) -> Iterator[Bucket]:
    """A new bucket, on a server of ours, in ``directory``, unless one runs already."""
    with contextlib.ExitStack() as stack:
        server = None
        if _RUNNING is not None:
            endpoint = _RUNNING
            environment = {name: os.environ[name] for name in (_ID, _SECRET)}
        else:
            server = _Gateway(directory) if _GATEWAY else _Moto()
            stack.callback(server.close)
            server.start()
            endpoint, environment = server.endpoint, server.environment
        made = Bucket(endpoint, f"pgherd-{random.getrandbits(40):x}", environment, server)
        made.client().create_bucket(Bucket=made.name)
        yield made
