"""Where snapshots are kept: a directory, or a bucket of an S3-compatible object store.

Files have names with slashes, relative to their store. One appears under its name when it is
whole and on stable storage, and not before; so whoever writes what gives a meaning to all the rest
last can't be taken at half. A store travels to the tasks of a job: it holds no connection and no
credentials. Those are found where Amazon's own tools look for them (environment, files, role of
the machine).

Used by the snapshot job and by whoever restores. Knows nothing of what the files mean.
"""

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

from pgherd_sidecar.env.storage import durable

_S3 = "s3://"
_DELETED_AT_ONCE = 1000
_PIECE_BYTES = 16 << 20
_CONNECT_S, _ANSWER_S, _ATTEMPTS = 10, 20, 3
"""The last one unless the environment says otherwise (``AWS_MAX_ATTEMPTS``)."""


class StoreError(OSError):
    """The store can't do it; the message is one line that names it."""


class Store(ABC):
    """Files by name. All methods raise ``OSError`` if the store fails."""

    @abstractmethod
    def create(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """A file to write; it is there, whole, once the block has ended without an error."""

    @abstractmethod
    def read(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """A file to read from its beginning; FileNotFoundError if there is none."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """A file's bytes, None if it is not there."""

    @abstractmethod
    def folders(self) -> list[str]:
        """Names of the folders that hold files, in order."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file for good, if it is there."""

    @abstractmethod
    def clear(self, say: Callable[[str], None]) -> None:
        """Remove all files, and what writers that died have left of others; say if not that."""

    @abstractmethod
    def below(self, folder: str) -> "Store":
        """The store of one folder's files."""

    def put(self, name: str, content: bytes) -> None:
        """Write a file with this content."""
        with self.create(name) as file:
            file.write(content)

    def get(self, name: str) -> bytes:
        """A file's content; FileNotFoundError if there is none."""
        with self.read(name) as file:
            return file.read()

    def fetch(self, name: str, directory: Path) -> Path:
        """Copy a file into a directory of this machine."""
        target = directory / Path(name).name
        with self.read(name) as file, target.open("wb") as copy:
            shutil.copyfileobj(file, copy)
        return target


def at(location: str, endpoint: str | None = None) -> Store:
    """The store at a location.

    Args:
        location: a directory, or ``s3://BUCKET/PREFIX``.
        endpoint: URL of the S3-compatible server; by default Amazon's, or what the environment
            says (``AWS_ENDPOINT_URL``).

    Raises:
        StoreError: the location names no bucket.
    """
    if not location.startswith(_S3):
        return DirectoryStore(Path(location).absolute())
    bucket, _, prefix = location.removeprefix(_S3).partition("/")
    if not bucket:
        raise StoreError(f"{location} names no bucket: it should be like s3://bucket/prefix")
    return S3Store(bucket, prefix.strip("/"), endpoint)


@dataclass(frozen=True, slots=True)
class DirectoryStore(Store):
    """A directory, which every task can reach; folders are made when they are needed."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """See Store. Files are for their owner only."""
        target = self.root / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, new = tempfile.mkstemp(prefix=target.name, suffix=".new", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            Path(new).replace(target)
        except BaseException:
            Path(new).unlink(missing_ok=True)
            raise
        durable.sync_directory(target.parent)

    @contextmanager
    def read(self, name: str) -> Iterator[IO[bytes]]:
        """See Store."""
        with (self.root / name).open("rb") as file:
            yield file

    def size(self, name: str) -> int | None:
        """See Store."""
        try:
            return (self.root / name).stat().st_size
        except FileNotFoundError:
            return None

    def folders(self) -> list[str]:
        """See Store."""
        if not self.root.exists():
            return []
        return sorted(path.name for path in self.root.iterdir() if path.is_dir())

    def delete(self, name: str) -> None:
        """See Store."""
        durable.remove(self.root / name)

    def clear(self, say: Callable[[str], None]) -> None:
        """See Store."""
        shutil.rmtree(self.root)

    def below(self, folder: str) -> "DirectoryStore":
        """See Store."""
        return DirectoryStore(self.root / folder)


@dataclass(frozen=True, slots=True)
class S3Store(Store):
    """What begins with a prefix in a bucket.

    A file is made on this machine's disk first and sent, in pieces, when it is whole: so a piece
    can be sent again, and a writer that dies has sent no object.
    """

    bucket: str
    prefix: str
    endpoint: str | None

    def __str__(self) -> str:
        return f"{_S3}{self.bucket}/{self.prefix}"

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """See Store."""
        with tempfile.TemporaryFile() as file:
            yield cast(IO[bytes], file)
            file.seek(0)
            with self._client() as client:
                client.upload_fileobj(file, self.bucket, self._key(name), Config=_transfer())

    @contextmanager
    def read(self, name: str) -> Iterator[IO[bytes]]:
        """See Store."""
        with self._client() as client:
            yield client.get_object(Bucket=self.bucket, Key=self._key(name))["Body"]

    def size(self, name: str) -> int | None:
        """See Store."""
        try:
            with self._client() as client:
                found = client.head_object(Bucket=self.bucket, Key=self._key(name))
                return int(found["ContentLength"])
        except FileNotFoundError:
            return None

    def folders(self) -> list[str]:
        """See Store."""
        start = self._key("")
        return sorted(
            one["Prefix"].removeprefix(start).rstrip("/")
            for page in self._pages("list_objects_v2", Prefix=start, Delimiter="/")
            for one in page.get("CommonPrefixes", ())
        )

    def delete(self, name: str) -> None:
        """See Store."""
        with self._client() as client:
            client.delete_object(Bucket=self.bucket, Key=self._key(name))

    def clear(self, say: Callable[[str], None]) -> None:
        """See Store. Many may remove objects and may not see uploads, which a rule can end, too."""
        pages = self._pages("list_objects_v2", Prefix=self._key(""))
        keys = [{"Key": one["Key"]} for page in pages for one in page.get("Contents", ())]
        try:
            self._end_uploads()
        except OSError as refusal:
            say(f"uploads that were begun may be left: {refusal}")
        with self._client() as client:
            for first in range(0, len(keys), _DELETED_AT_ONCE):
                some = {"Objects": keys[first : first + _DELETED_AT_ONCE], "Quiet": True}
                answer = client.delete_objects(Bucket=self.bucket, Delete=some)
                for error in answer.get("Errors", ()):
                    raise StoreError(f"{self}: {error['Key']} can't be removed: {error['Message']}")

    def below(self, folder: str) -> "S3Store":
        """See Store."""
        return replace(self, prefix=self._key(folder))

    def _end_uploads(self) -> None:
        unfinished = [
            (one["Key"], one["UploadId"])
            for page in self._pages("list_multipart_uploads", Prefix=self._key(""))
            for one in page.get("Uploads", ())
        ]
        with self._client() as client:
            for key, upload in unfinished:
                client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def _pages(self, operation: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        with self._client() as client:
            yield from client.get_paginator(operation).paginate(Bucket=self.bucket, **arguments)

    @contextmanager
    def _client(self) -> Iterator[Any]:
        """What speaks with the server; its errors in words for whoever has to act on them."""
        client = _client(self.endpoint)
        from boto3.exceptions import Boto3Error  # noqa: PLC0415 - an extra
        from botocore.exceptions import (  # noqa: PLC0415
            BotoCoreError,
            ClientError,
            NoCredentialsError,
        )

        try:
            yield client
        except ClientError as error:
            raise self._refusal(error.response["Error"]) from error
        except NoCredentialsError as error:
            raise StoreError(
                f"{self}: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                "AWS_SHARED_CREDENTIALS_FILE"
            ) from error
        except (BotoCoreError, Boto3Error) as error:
            raise StoreError(f"{self}: {error}") from error

    def _refusal(self, error: dict[str, str]) -> OSError:
        code, words = error.get("Code", ""), error.get("Message", "")
        match code:
            case "NoSuchKey" | "404":
                return FileNotFoundError(f"{self}: there is no such file")
            case "NoSuchBucket":
                return StoreError(f"{self}: there is no bucket {self.bucket}: make it first")
            case "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "AccessDenied" | "403":
                return StoreError(f"{self}: the server refuses these credentials: {code} {words}")
        return StoreError(f"{self}: {code} {words}")


@cache
def _client(endpoint: str | None) -> Any:
    try:
        import boto3  # noqa: PLC0415 - an extra
        from botocore.config import Config  # noqa: PLC0415
    except ImportError as error:
        raise StoreError(
            "an S3 store needs boto3: install it with `scripts/setup spark`"
        ) from error
    attempts = {} if "AWS_MAX_ATTEMPTS" in os.environ else {"total_max_attempts": _ATTEMPTS}
    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_ANSWER_S,
        retries={"mode": "standard", **attempts},
        # A server of one's own seldom has a name in DNS for each bucket, or knows Amazon's newest
        # checksums. What was written is read back anyway.
        s3={"addressing_style": "path" if endpoint else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    region = boto3.session.Session().region_name or "us-east-1"
    return boto3.session.Session().client(
        "s3", endpoint_url=endpoint, region_name=region, config=config
    )


@cache
def _transfer() -> Any:
    from boto3.s3.transfer import TransferConfig  # noqa: PLC0415 - an extra

    return TransferConfig(
        multipart_threshold=_PIECE_BYTES, multipart_chunksize=_PIECE_BYTES, max_concurrency=4
    )
