"""How far a job is, for whoever asks over HTTP: the operator, while the job runs on Kubernetes.

Tells numbers and table counts, never names or rows: anybody who reaches the port may ask.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import click


class Progress:
    """What the job is doing; written by the job, read by another thread."""

    def __init__(self) -> None:
        self._now = ("starting", 0, 0)

    def say(self, text: str) -> None:
        """Begin with something else, and log it."""
        self._now = (text, 0, 0)
        click.echo(text)

    def count(self, done: int, tasks: int) -> None:
        """So many tasks of so many are done."""
        self._now = (self._now[0], done, tasks)

    def as_json(self) -> bytes:
        """What is answered."""
        doing, done, tasks = self._now
        return json.dumps({"doing": doing, "done": done, "tasks": tasks}).encode()


@contextmanager
def served(progress: Progress, port: int) -> Iterator[int]:
    """Answer every ``GET`` on this port while the block lasts; 0 is any free port.

    Raises:
        OSError: the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = progress.as_json()
            with suppress(ConnectionError):  # whoever asked has little patience
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nobody reads an access log of this."""

    with ThreadingHTTPServer(("", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
