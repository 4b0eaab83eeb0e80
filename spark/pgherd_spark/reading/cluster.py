"""Apache Spark as the jobs see it: many tasks, and results that are merged by key.

With ``datasource`` the only module that knows PySpark, which it imports when it is started: it is
an extra, and the rest of this package can be had without. On a laptop the cluster is this process's
own JVM (``local[*]``); on Kubernetes ``spark-submit`` has said what it is.
"""

import asyncio
import importlib.util
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

Task = TypeVar("Task")
Value = TypeVar("Value")
Key = TypeVar("Key")
Result = TypeVar("Result")

_EXCEPTION = re.compile(r"(?!pyspark|py4j|org\.)[\w.]*(Error_?|Exception|errors\.\w+): ")
"""What a traceback ends with."""
_JAVA = (": ", "Caused by: ")
"""What Java's exceptions begin with in Py4J's words: the one that was raised, and its causes."""
_GONE = "Spark's Java process has ended: it was killed, or there was no memory left; begin again"
_CANCEL_S = 0.5
"""So often a job is looked for, to end it."""
_BRIEF = 600
"""Characters; without its compiler Java matches about 1200 on a stack of the usual size."""
_BRIEF_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Without the optimizing compiler, which takes more time than it saves where rows pass by Java."""
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "false",
    "spark.task.maxFailures": "4",
}
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class NoSparkError(Exception):
    """There is no PySpark or no Java runtime on this machine."""


class JobError(Exception):
    """A task failed for good; the message is its last words."""


class Cluster:
    """Runs tasks. Used by one thread at a time, but for ``cancel``.

    Args:
        session: Spark's.
        failures: what PySpark raises when a job has failed.

    Attributes:
        on_progress: called, in another thread, with the number of tasks done and of all.
    """

    def __init__(self, session: Any, failures: tuple[type[Exception], ...]) -> None:
        self.session = session
        self.on_progress: Callable[[int, int], None] = lambda done, all_tasks: None
        self._context = session.sparkContext
        self._failures = failures

    @property
    def cores(self) -> int:
        """Tasks that are done at a time."""
        return int(self._context.defaultParallelism)

    def each(
        self,
        tasks: Sequence[Task],
        run: Callable[[Task], Value],
        *,
        before: int = 0,
        after: int = 0,
    ) -> list[Value]:
        """Run each task; return the results in the order of the tasks.

        Args:
            tasks: what to run it with.
            run: a task.
            before: so many like these were done before, as far as progress is told.
            after: so many will follow.

        Raises:
            JobError: one failed, as often as it may.
        """
        if not tasks:
            return []
        counted = self._counted(run, tasks, before, after)
        return self._collect(self._spread(tasks).map(counted))

    def by_key(
        self,
        tasks: Sequence[Task],
        run: Callable[[Task], Iterable[tuple[Key, Value]]],
        merge: Callable[[Value, Value], Value],
        keep: Callable[[tuple[Key, Value]], bool],
    ) -> list[tuple[Key, Value]]:
        """Run each task, merge the values of equal keys, and return those that are to be kept.

        Merged and sorted out where the tasks ran: only what is kept comes to the driver.

        Raises:
            JobError: one failed, as often as it may.
        """
        return self._collect(self._merged(tasks, run, merge).filter(keep)) if tasks else []

    def each_key(
        self,
        tasks: Sequence[Task],
        run: Callable[[Task], Iterable[tuple[Key, Value]]],
        merge: Callable[[Value, Value], Value],
        then: Callable[[tuple[Key, Value]], Result],
    ) -> list[Result]:
        """Run each task, merge the values of equal keys, and do something with each of these.

        All where the tasks ran: only what that returns comes to the driver.

        Raises:
            JobError: one failed, as often as it may.
        """
        return self._collect(self._merged(tasks, run, merge).map(then)) if tasks else []

    def rows_by_key(
        self,
        frame: Any,
        split: Callable[[dict[str, Any]], Iterable[tuple[Key, Value]]],
        then: Callable[[tuple[Key, Iterable[Value]]], Result],
    ) -> list[Result]:
        """Make each row of a DataFrame something under some keys, and do something with each key.

        As ``each_key``; of the rows no more than those of one key are in memory at a time.

        Raises:
            JobError: a task failed, as often as it may.
        """
        found = frame.rdd.map(_as_dict).flatMap(split)
        return self._collect(found.groupByKey(self._context.defaultParallelism).map(then))

    def for_batches(self, take: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        """What does something with each batch of a stream, so that the stream can be stopped.

        When a stream is stopped in the middle of a batch, Spark looks for its own interruption in
        the text of what that fails with, by a regular expression that takes stack for every
        character: a Java traceback ends its thread by a StackOverflowError.
        """
        failures: tuple[type[Exception], ...] = (JobError, *self._failures)

        def take_briefly(batch: Any, number: int) -> None:
            try:
                take(batch, number)
            except failures as error:
                raise JobError(_in_brief(error)) from None

        return take_briefly

    async def in_thread(self, action: Callable[[], Value]) -> Value:
        """Run what waits for Spark beside the event loop; end it when the caller is cancelled."""
        working = asyncio.ensure_future(asyncio.to_thread(action))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            while not working.done():  # it may be between two jobs
                self.cancel()
                await asyncio.wait({working}, timeout=_CANCEL_S)
            working.exception()
            raise

    def write_parquet(self, path: Path, rows: Sequence[tuple[Any, ...]], schema: str) -> None:
        """Write a table as one Parquet file in a directory of that name.

        Raises:
            JobError: it can't be written.
        """
        try:
            frame = self.session.createDataFrame(list(rows), schema)
            frame.coalesce(1).write.mode("overwrite").parquet(path.absolute().as_uri())
        except self._failures as error:
            raise JobError(_last_words(str(error))) from error

    def cancel(self) -> None:
        """End what is running; it fails with ``JobError``. For other threads."""
        self._context.cancelAllJobs()

    def _counted(
        self, run: Callable[[Task], Value], tasks: Sequence[Task], before: int = 0, after: int = 0
    ) -> Callable[[Task], Value]:
        """The same, but the driver hears of each task that is done."""
        every = before + len(tasks) + after
        told = _Told(lambda done: self.on_progress(before + min(done, len(tasks)), every))
        return partial(_and_count, run, self._context.accumulator(0, told))

    def _merged(
        self,
        tasks: Sequence[Task],
        run: Callable[[Task], Iterable[tuple[Key, Value]]],
        merge: Callable[[Value, Value], Value],
    ) -> Any:
        found = self._spread(tasks).flatMap(self._counted(run, tasks))
        places = min(len(tasks), self._context.defaultParallelism)
        return found.reduceByKey(merge, places)

    def _spread(self, tasks: Sequence[Task]) -> Any:
        return self._context.parallelize(tasks, len(tasks))

    def _collect(self, data: Any) -> list[Any]:
        try:
            return list(data.collect())
        except self._failures as error:
            raise JobError(_last_words(str(error))) from error
        except OSError as error:  # Python's own: nobody answers on the other side any more
            raise JobError(_GONE) from error


class _Count:
    """How PySpark adds up what tasks have counted."""

    def zero(self, value: int) -> int:
        return 0

    def addInPlace(self, value: int, more: int) -> int:
        return value + more


class _Told(_Count):
    """The same on the driver, which tells somebody; where tasks run nobody is told."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell

    def addInPlace(self, value: int, more: int) -> int:
        self._tell(value + more)
        return value + more

    def __reduce__(self) -> tuple[type[_Count], tuple[()]]:
        return _Count, ()


def _as_dict(row: Any) -> dict[str, Any]:
    fields: dict[str, Any] = row.asDict()
    return fields


def _and_count(run: Callable[[Task], Value], done: Any, task: Task) -> Value:
    result = run(task)
    done.add(1)
    return result


@contextmanager
def cluster(name: str, master: str | None, memory: str = "1g") -> Iterator[Cluster]:
    """Start Spark, or join the one that ``spark-submit`` has prepared.

    Args:
        name: of the application.
        master: ``local[2]``, say; None where ``spark-submit`` has said it.
        memory: heap of a Spark of our own, as Java writes it.

    Raises:
        NoSparkError: there is nothing to start.
        JobError: it does not start.
    """
    require_installed()
    _silence_threads()
    from py4j.protocol import Py4JError  # noqa: PLC0415 - see above
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ["PYTHONSAFEPATH"] = "1"  # workers begin in a directory that may hold anything
    builder = SparkSession.builder.appName(name)
    settings = _SETTINGS if master is None else _SETTINGS | _local(master, memory)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _python_of_workers():
            session = builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        raise JobError(f"Spark does not start: {_last_words(str(error))}") from error
    try:
        yield Cluster(session, (Py4JError, PySparkException))
    finally:
        with suppress(Py4JError, OSError):  # where Java has ended, nothing is left to stop
            session.stop()


@contextmanager
def _python_of_workers() -> Iterator[None]:
    """Have the workers of a Spark that starts run with this Python, unless somebody says otherwise.

    Our environment is as it was afterwards: what this process starts may run as an account that
    can't read this Python.
    """
    chosen = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = chosen or sys.executable
    try:
        yield
    finally:
        if chosen is None:
            del os.environ["PYSPARK_PYTHON"]


def _silence_threads() -> None:
    """Have PySpark's and Py4J's threads not write tracebacks when Java has ended: we say so."""
    from pyspark import accumulators  # noqa: PLC0415

    accumulators.AccumulatorTCPServer.handle_error = lambda *_: None
    logging.getLogger().addHandler(logging.NullHandler())


def _local(master: str, memory: str) -> dict[str, str]:
    """Settings of a JVM of our own, which talks to nobody but us, and is silent."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    properties = Path(__file__).parents[1].joinpath("log4j2.properties").as_uri()
    return _LOCAL | {
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={properties} {_BRIEF_JAVA}",
    }


def require_installed() -> None:
    """Check that there is something to start.

    Raises:
        NoSparkError: there is not.
    """
    if not is_installed():
        raise NoSparkError("PySpark or a Java runtime is missing")


def is_installed() -> bool:
    """Say whether PySpark is there, and will find a Java runtime."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") if home is None else shutil.which(str(Path(home) / "bin" / "java"))
    return java is not None and importlib.util.find_spec("pyspark") is not None


def _in_brief(error: BaseException) -> str:
    """What failed; an error of Py4J under the name that Spark looks for, without a traceback."""
    found = error.__cause__ or error
    if not type(found).__module__.startswith("py4j."):
        return _last_words(str(error))
    lines = str(found).splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith(("at ", "... ")))
    return f"{type(found).__module__}.{type(found).__name__}: {text}"[:_BRIEF]


def _last_words(text: str) -> str:
    """The Python exception's own line in what Spark makes of a failed task.

    The last one: what it was raised from comes before it. Where Python raised nothing, what Java
    raised, and its first cause, which a stack trace names last.
    """
    lines = [line.strip() for line in text.splitlines()]
    raised = [line for line in lines if _EXCEPTION.match(line)]
    java = [line.split(": ", 1)[1] for line in lines if line.startswith(_JAVA)]
    if not raised and java:
        return "; caused by ".join(dict.fromkeys((java[0], java[-1])))
    return next(iter(raised[-1:] or filter(None, lines)), "Spark gave no reason")
