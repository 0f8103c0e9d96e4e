"""Driver: what Lakefeed asks of a Spark session beside DataFrames, of a classic one or of one of Spark Connect.

A classic session has its driver in a JVM of this process, which is reached through the SparkContext. A session of Spark
Connect has it in a server, which takes plans, settings and tags, and gives no JVM. ``Driver(session)`` knows which it
is; nothing else in the package asks.
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
"""The setting of a session that names whose jobs these are: where Spark's scheduler is fair, each gets its share."""
CORES = "lakefeed.cores"
"""The setting by which a session of Spark Connect, once its workers were checked, and its children know the cores."""
_MOST_CORES = 4096
_open: WeakSet[Any] = WeakSet()


class Job(ABC):
    """``with Driver(session).job(session, name):`` around an action, in the thread that does it; other threads may ask
    whether it has begun, and cancel it."""

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
        """Has a first job of the action been seen?"""

    @abstractmethod
    def cancel(self) -> None:
        """Whatever of it runs in Spark."""


class _ClassicJob(Job):
    def __enter__(self) -> None:
        context, pool = self._session.sparkContext, self._session.conf.get(POOL, None)
        context.setJobGroup(self._id, self._name)
        context.setLocalProperty("spark.scheduler.pool", pool or "default")
        for form in ("short", "long"):  # else Spark looks for it in a stack trace, for each of its objects
            context.setLocalProperty(f"callSite.{form}", self._name)

    def __exit__(self, *error: object) -> None:
        """Its thread ends with it."""

    @property
    def has_begun(self) -> bool:
        return bool(self._session.sparkContext.statusTracker().getJobIdsForGroup(self._id))

    def cancel(self) -> None:
        self._session.sparkContext.cancelJobGroup(self._id)


class _ConnectJob(Job):
    """The server reports what runs every two seconds, or as its spark.connect.progress.reportInterval says."""

    def __init__(self, session: SparkSession, name: str) -> None:
        super().__init__(session, name)
        self._tag = f"{name.replace(',', ' ')} {self._id}"  # which Spark's pages show
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
    """``Driver(session)`` is this one for a classic session, and a ``_Connect`` for one of Spark Connect."""

    has_jvm = True
    """Can classes of the driver's JVM be called, and plans be looked into?"""
    job: type[Job] = _ClassicJob

    def __new__(cls, session: SparkSession) -> Driver:
        is_remote = type(session).__module__.startswith("pyspark.sql.connect")
        return super().__new__(_Connect if is_remote else Driver)

    def __init__(self, session: SparkSession) -> None:
        self.session: Any = session

    @property
    def cores(self) -> int:
        """How many tasks can run at a time."""
        return int(self.session.sparkContext.defaultParallelism)

    @property
    def address(self) -> str:
        """Where it is, for people. Without secrets."""
        return str(self.session.sparkContext.master)

    def child(self) -> SparkSession:
        """A session of its own in the same Spark, with settings of its own."""
        made: SparkSession = self.session.newSession()
        return made

    def map_in_arrow(self, rows: DataFrame, function: InArrow, columns: str) -> DataFrame:
        """``rows.mapInArrow(function, columns)``; without pandas, for which pyspark's own asks first, though neither
        side uses it."""
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

    def map_in_arrow(self, rows: DataFrame, function: InArrow, columns: str) -> DataFrame:
        return rows.mapInArrow(function, columns)


def with_patience(session: Any) -> SparkSession:
    """A session of Spark Connect that gives up on a silent server after twenty seconds, and ends with the process."""
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
    """Before the interpreter ends: it would wait for ever for gRPC's threads, which are gone by then. A server that
    answers is told that it need not keep the sessions."""
    answers = True
    for session in list(_open):
        session.client.set_retry_policies([])
        if answers:
            try:
                session.client.release_session()
            except Exception as error:  # noqa: BLE001  # it lets go of the session by itself, later
                answers = False
                log.debug("a session of Spark Connect was not released: %s", error)
        session.client.close()


def in_tasks(session: SparkSession, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """``[function(item) for item in items]``, each in a Spark task of its own, all at once.

    ``function``, items and results are pickled; what ``function`` raises becomes text, as with every Spark task.
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
    """What each of as many tasks as can run at a time has of Lakefeed and Python, or lacks: one small job.

    Spark cuts a range, unless it is told otherwise, into as many parts as it can run tasks.
    """
    rows = Driver(session).map_in_arrow(session.range(_MOST_CORES), _asked(), "installed string")
    return [str(row["installed"]) for row in rows.collect()]


def installed() -> str:
    """The same of this process."""
    return next(iter(_asked()(()))).column(0)[0].as_py()  # type: ignore[no-any-return]


def _asked() -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that travels as it is: a worker may not have the package that it stands in."""

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
