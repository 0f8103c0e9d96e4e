"""Driver: what Lakefeed asks of a Spark session beside DataFrames, of a classic session or of Spark Connect.

The driver of a classic session is a JVM of this process, reached through the SparkContext. That of Spark Connect is in
a server, which takes plans, settings and tags, and gives no JVM. ``Driver(session)`` knows which one it is; nothing
else in the package asks.
"""

from __future__ import annotations

import atexit
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    InArrow = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]

log = logging.getLogger(__name__)

POOL = "lakefeed.pool"
"""The session's setting that names its scheduler pool: Spark's fair scheduler gives each pool its share."""
CORES = "lakefeed.cores"
"""The setting that keeps the number of cores in a session of Spark Connect, and in its children, after the check of the
workers."""
_MOST_CORES = 4096
_open: WeakSet[Any] = WeakSet()


class Job(ABC):
    """Names and cancels the Spark jobs of one action: ``with Driver(session).job(session, name):`` around the action,
    in its thread. Other threads may ask ``has_begun`` and call ``cancel``."""

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session: Any = session
        self._name = name
        self._id = f"lakefeed-{uuid.uuid4()}"

    @abstractmethod
    def __enter__(self) -> None: ...

    @abstractmethod
    def __exit__(self, *error: object) -> None: ...

    @property
    @abstractmethod
    def has_begun(self) -> bool:
        """Has Spark begun a job of the action?"""

    @abstractmethod
    def cancel(self) -> None:
        """Cancel all of the action's jobs that Spark runs."""


class _ClassicJob(Job):
    def __enter__(self) -> None:
        context, pool = self._session.sparkContext, self._session.conf.get(POOL, None)
        context.setJobGroup(self._id, self._name)
        context.setLocalProperty("spark.scheduler.pool", pool or "default")
        for form in ("short", "long"):  # else Spark looks for it in a stack trace, for each of its objects
            context.setLocalProperty(f"callSite.{form}", self._name)

    def __exit__(self, *error: object) -> None:
        """Nothing to undo: the job group belongs to the thread, which ends with the action."""

    @property
    def has_begun(self) -> bool:
        return bool(self._session.sparkContext.statusTracker().getJobIdsForGroup(self._id))

    def cancel(self) -> None:
        self._session.sparkContext.cancelJobGroup(self._id)


class _ConnectJob(Job):
    """The server reports what runs every two seconds, or as its spark.connect.progress.reportInterval says."""

    def __init__(self, session: SparkSession, name: str) -> None:
        super().__init__(session, name)
        self._tag = f"{name.replace(',', ' ')} {self._id}"  # Spark's UI shows it
        self._has_begun = False

    def __enter__(self) -> None:
        self._session.addTag(self._tag)
        self._session.registerProgressHandler(self._note)

    def __exit__(self, *error: object) -> None:
        self._session.removeProgressHandler(self._note)
        self._session.removeTag(self._tag)

    def _note(self, *, stages: Any, **_: Any) -> None:
        self._has_begun = self._has_begun or bool(stages)

    @property
    def has_begun(self) -> bool:
        return self._has_begun

    def cancel(self) -> None:
        self._session.interruptTag(self._tag)


class Driver:
    """``Driver(session)`` makes a ``Driver`` for a classic session, and a ``_Connect`` for one of Spark Connect."""

    has_jvm = True
    """Can Lakefeed call classes of the driver's JVM, and inspect plans?"""
    job: type[Job] = _ClassicJob

    def __new__(cls, session: SparkSession) -> Driver:
        is_remote = type(session).__module__.startswith("pyspark.sql.connect")
        return super().__new__(_Connect if is_remote else Driver)

    def __init__(self, session: SparkSession) -> None:
        self.session: Any = session

    @property
    def cores(self) -> int:
        """The number of tasks that can run at a time."""
        return int(self.session.sparkContext.defaultParallelism)

    @property
    def address(self) -> str:
        """The driver's address for people, without secrets."""
        return str(self.session.sparkContext.master)

    def child(self) -> SparkSession:
        """A new session of the same Spark, with settings of its own."""
        made: SparkSession = self.session.newSession()
        return made

    def report_to(self, note: Callable[..., None]) -> None:
        """Have a server tell how far the session's operations are; a classic session is asked (``progress``)."""

    def checkpoint(self, rows: DataFrame) -> DataFrame:
        """``rows.localCheckpoint()``, of the session that has the rows."""
        return rows.localCheckpoint()

    def map_in_arrow(self, rows: DataFrame, function: InArrow, columns: str) -> DataFrame:
        """``rows.mapInArrow(function, columns)`` without pandas, which pyspark's own method asks for and never uses."""
        from pyspark.sql import DataFrame
        from pyspark.sql.udf import UserDefinedFunction
        from pyspark.util import PythonEvalType

        from lakefeed.lake.spark.type import quoted

        made: Any = UserDefinedFunction(function, columns, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
        java: Any = rows._jdf
        given = made(*(rows[quoted(name)] for name in rows.columns))._jc
        return DataFrame(java.mapInArrow(given, False, None), rows.sparkSession)


class _Connect(Driver):
    has_jvm = False
    job = _ConnectJob

    @property
    def cores(self) -> int:
        known = self.session.conf.get(CORES, None)
        return int(known) if known is not None else len(workers_of(self.session))

    @property
    def address(self) -> str:
        return f"sc://{self.session.client.host}"

    def child(self) -> SparkSession:
        made: Any = self.session.cloneSession()
        return with_patience(made)

    def report_to(self, note: Callable[..., None]) -> None:
        self.session.registerProgressHandler(note)

    def checkpoint(self, rows: DataFrame) -> DataFrame:
        """pyspark takes the result for one of the active session, which has no such rows."""
        made: Any = rows.localCheckpoint()
        made._session = made._plan._spark_session = self.session
        return made  # type: ignore[no-any-return]

    def map_in_arrow(self, rows: DataFrame, function: InArrow, columns: str) -> DataFrame:
        return rows.mapInArrow(function, columns)


def with_patience(session: Any) -> SparkSession:
    """Make a session of Spark Connect give up on a silent server after twenty seconds, and end with the process."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    atexit.unregister(_close_all)
    atexit.register(_close_all)  # once
    _open.add(session)
    # Spark's own default is ten minutes.
    policy = DefaultPolicy(max_retries=8, initial_backoff=50, backoff_multiplier=4.0, max_backoff=4000)
    session.client.set_retry_policies([policy])
    made: SparkSession = session
    return made


def _close_all() -> None:
    """Close all clients before the interpreter ends, which would otherwise wait for ever for gRPC's threads. Release
    the sessions, if the server answers."""
    answers = True
    for session in list(_open):
        session.client.set_retry_policies([])
        if answers:
            try:
                session.client.release_session()
            except Exception as error:  # noqa: BLE001  # the server drops the session by itself, later
                answers = False
                log.debug("a session of Spark Connect was not released: %s", error)
        session.client.close()


def in_tasks(session: SparkSession, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """``[function(item) for item in items]``, each in a Spark task of its own, all at once.

    Spark pickles ``function``, items and results. An error of ``function`` comes back as text, as from any Spark task.
    """
    from pyspark import cloudpickle

    pickle: Any = cloudpickle
    given = [pickle.dumps(item) for item in items]

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0):
                index = int(number.as_py())
                result = pickle.dumps(function(pickle.loads(given[index])))
                yield pa.RecordBatch.from_pydict({"item": [index], "result": [result]})

    rows = session.range(0, len(given), 1, len(given))  # one to a partition
    found = Driver(session).map_in_arrow(rows, work, "item long, result binary").collect()
    return [pickle.loads(bytes(row["result"])) for row in sorted(found, key=lambda row: int(row["item"]))]


def workers_of(session: SparkSession) -> list[str]:
    """The versions of Lakefeed and Python in as many tasks as can run at a time, or what they lack. One small job.

    By default Spark cuts a range into as many partitions as it can run tasks.
    """
    rows = Driver(session).map_in_arrow(session.range(_MOST_CORES), _asked(), "installed string")
    return [str(row["installed"]) for row in rows.collect()]


def installed() -> str:
    """The versions in this process, in the same words."""
    return next(iter(_asked()(()))).column(0)[0].as_py()  # type: ignore[no-any-return]


def _asked() -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that Spark pickles by value: a worker may lack the package that this module is in."""

    def ask(batches: Iterable[Any]) -> Iterator[Any]:
        import sys
        from importlib.metadata import PackageNotFoundError, version

        import pyarrow as arrow

        for _ in batches:
            pass
        try:
            import lakefeed.lake.loader  # noqa: F401  # what tasks of a copy need

            has = f"lakefeed {version('lakefeed')}"
        except (ImportError, PackageNotFoundError) as error:
            has = f"no lakefeed ({error})"
        text = f"{has} and Python {sys.version_info[0]}.{sys.version_info[1]}"
        yield arrow.RecordBatch.from_pydict({"installed": [text]})

    return ask
