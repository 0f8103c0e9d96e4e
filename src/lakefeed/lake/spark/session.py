"""Builds the Spark session that Lakefeed uses when the user brings none, and checks one that the user brings.

A built session is sized to the machine, quiet, and on loopback only. Its workers run this same interpreter. The JVM's
output, with the page that the jar resolver prints, goes to a log file that error messages name.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lakefeed.errors import CommitFailedError, LakeError, SparkSetupError
from lakefeed.lake.formats import FORMATS
from lakefeed.lake.spark.driver import CORES, Driver, installed, with_patience, workers_of
from lakefeed.lake.spark.error import first_line, server_lost, session_lost
from lakefeed.lake.spark.files import forget_sources, use_local_files
from lakefeed.lake.spark.jars import coordinates_of, excludes_of, remember_jars, resolving
from lakefeed.lake.spark.java import cache_directory, find_java
from lakefeed.lake.spark.progress import Reports

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

SPARK_VERSION = "4.1"

_SAME_EVERYWHERE = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}
"""The settings that can change the value of a rule's expression."""

_COMPILE_LATER = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000"
)
"""To HotSpot: let the compiler that optimizes wait for ten times as many calls of a method as by default. To plan a
query takes thousands of methods, each called a few times: that compiler took a third of the processor time of the first
hundreds of small windows (docs/decisions/0013-small-windows.md). What is called for each row gets there at once.
"""
_LOCAL_IP = "SPARK_LOCAL_IP"
_GIB = 1024**3
_KEPT_LOGS = 10
_building = threading.Lock()
_GATEWAY = "PYSPARK_GATEWAY_PORT"
"""spark-submit sets this variable to the port of the JVM that it has started."""
_OF_THE_JVM = (
    "spark.master",
    "spark.driver.memory",
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.driver.extraJavaOptions",
    "spark.driver.extraClassPath",
    "spark.sql.adaptive.enabled",
    "spark.sql.shuffle.partitions",
)


def spark_session(
    app_name: str = "lakefeed",
    *,
    log_dir: Path | None = None,
    settings: Mapping[str, str] | None = None,
    formats: Sequence[str] = ("delta",),
    stores: Sequence[str] = (),
    master: str | None = None,
    packages: bool = True,
) -> SparkSession:
    """The active session of this process, checked; or a new one.

    ``formats`` are the table formats that it can write, ``delta`` and ``iceberg``; ``stores`` the object stores:
    ``s3``, ``azure``, ``google``. ``master`` is a cluster's, or None for this machine; one small job checks the
    cluster's workers.
    ``packages=False``: the cluster has the jars. Under spark-submit the session takes spark-submit's master, memory and
    jars. ``settings`` override Lakefeed's own. SparkSetupError says what is missing (Java, jars) and how to get it.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with _building:
        if SparkContext._active_spark_context is not None:
            return checked_session(SparkSession.builder.getOrCreate(), formats)
        os.environ["JAVA_HOME"] = str(find_java().home)
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ["PYSPARK_PYTHON"] = (settings or {}).get("spark.pyspark.python", sys.executable)
        directory = log_dir or cache_directory() / "logs"
        directory.mkdir(parents=True, exist_ok=True)
        forget_logs(directory)
        log = directory / f"spark-{os.getpid()}.log"
        wanted = coordinates_of(formats, stores)
        is_submitted = _GATEWAY in os.environ  # the JVM runs already: spark-submit chose master, memory and jars
        packages = packages and not is_submitted
        with resolving(wanted) if packages else nullcontext(()) as jars:
            conf = session_conf(app_name, jars, log.parent, formats, stores)
            if not packages:
                conf = _without(conf, "spark.jars.packages", "spark.jars.excludes")
            if is_submitted:
                conf = _without(conf, *_OF_THE_JVM)
            if master is not None:
                conf = _on_cluster(conf, master, jars)
            session = _start(conf.setAll(list((settings or {}).items())), log, wanted)
            if not jars and conf.get("spark.jars.packages", "") == wanted:
                remember_jars(session.sparkContext.getConf().get("spark.jars", "").split(","), wanted)
        if not Driver(session).address.startswith("local"):
            check_workers(session)
        return session


def connecting(remote: str, settings: Mapping[str, str], formats: Sequence[str]) -> Callable[[], SparkSession]:
    """A function that gives a session of a Spark Connect server: always the same one, until the server loses it."""
    turn = threading.Lock()
    made: list[SparkSession] = []

    def session() -> SparkSession:
        with turn:
            try:
                for known in made:
                    known.conf.get(CORES)
            except Exception as error:  # noqa: BLE001  # raised again, unless a new session may do
                _require_lost_session(error)
                made.clear()
            if not made:
                made.append(connect_session(remote, settings, formats=formats))
            return made[0]

    return session


def _require_lost_session(error: Exception) -> CommitFailedError:
    """Our error, if a server of Spark Connect answers and has lost the session, so that a new session may do.

    A server loses its sessions when it restarts, and those that were idle for long. Raises every other error: ours for
    a server that does not answer, else ``error`` itself.
    """
    lost = server_lost(error)
    if lost is None:
        raise error
    if not session_lost(error):
        raise lost from error
    return lost


def connect_session(
    remote: str, settings: Mapping[str, str] | None = None, *, formats: Sequence[str] = ("delta",)
) -> SparkSession:
    """A new session of the Spark Connect server at ``remote`` (sc://host:port). SparkSetupError as ``spark_session``.

    ``settings`` are a session's; whoever starts the server gives it the server's own.
    """
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    place = remote.partition("/;")[0]  # the rest may have a token
    # Lakefeed reports errors in its own sentences; these loggers would print pages of Java for each.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")
    if SparkContext._active_spark_context is not None:
        raise SparkSetupError(
            f"this process has a classic Spark session, so pyspark can open none at {place}",
            remedy="Stop the classic session first, or connect in another process.",
        )
    try:
        session = with_patience(SparkSession.builder.remote(remote).create())
    except (ImportError, PySparkException) as error:
        if isinstance(error, PySparkException) and not isinstance(error, ImportError):
            raise SparkSetupError(
                f"pyspark cannot open a session at {place}: {first_line(error)}",
                remedy="Correct spark.remote; it looks like sc://host:15002, or sc://host:443/;use_ssl=true;token=….",
            ) from error
        raise SparkSetupError(
            f"the Spark Connect client lacks a package: {first_line(error)}",
            remedy='Install it: pip install "lakefeed[connect]"',
        ) from error
    for name, value in (settings or {}).items():
        try:
            session.conf.set(name, value)
        except PySparkException as error:
            raise server_lost(error) or SparkSetupError(
                f"the server at {place} does not let a client set {name}: {first_line(error)}",
                remedy=f"Set {name} where the server is started, and remove it from spark.conf here.",
            ) from error
    return checked_session(session, formats)


def _without(conf: SparkConf, *names: str) -> SparkConf:
    from pyspark import SparkConf

    return SparkConf(loadDefaults=False).setAll([(name, value) for name, value in conf.getAll() if name not in names])


def _on_cluster(conf: SparkConf, master: str, jars: tuple[str, ...]) -> SparkConf:
    """The settings for another master: its workers get the jars, and reach the driver by its address in the network."""
    conf = conf.setMaster(master)
    if master.startswith("local"):
        return conf
    conf = _without(conf, "spark.driver.host", "spark.driver.bindAddress", "spark.sql.adaptive.enabled")
    return conf.set("spark.jars", ",".join(jars)) if jars else conf


def check_workers(session: SparkSession) -> None:
    """One small job: do workers run, with a Python that has this version of Lakefeed? SparkSetupError if not."""
    driver = Driver(session)
    if not driver.has_jvm and session.conf.get(CORES, None) is not None:
        return  # an earlier check of the session, or of its parent, has set this
    address = driver.address
    try:
        found = workers_of(session)
    except Exception as error:
        raise server_lost(error) or SparkSetupError(
            f"a first job on {address} failed: {first_line(error)}",
            remedy="Install lakefeed for the same Python on every worker; spark.pyspark.python names it.",
        ) from error
    if wrong := sorted(set(found) - {installed()}):
        raise SparkSetupError(
            f"the workers of {address} have {wrong[0]}, this process has {installed()}",
            remedy="Install the same lakefeed for the same Python on every worker; spark.pyspark.python names it.",
        )
    if not driver.has_jvm:
        session.conf.set(CORES, str(len(found)))


def session_conf(
    app_name: str,
    jars: tuple[str, ...],
    scratch: Path,
    formats: Sequence[str] = ("delta",),
    stores: Sequence[str] = (),
) -> SparkConf:
    """The settings of a built session. Each number has its reason here."""
    from pyspark import SparkConf

    cores = os.cpu_count() or 1
    settings = {
        "spark.master": f"local[{cores}]",
        "spark.app.name": app_name,
        "spark.driver.memory": f"{driver_memory_bytes() // 1024**2}m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-XX:+UseParallelGC -XX:-UsePerfData {_COMPILE_LATER}",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        # Spark's own pattern, and the keys of a REST catalog's secrets: UI and event log do not show their values.
        "spark.redaction.regex": "(?i)secret|password|passwd|token|credential|(access|account)[.-]?key",
        "spark.ui.showConsoleProgress": "false",
        # pyspark would note the line of Python for each expression, by a dozen calls into the JVM.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Even without a UI Spark keeps in memory what it would show. Keep little: the process runs for months.
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "5",
        # Spark makes the text of every plan, even without a UI: the short form takes half as long.
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": str(cores),
        # With so few partitions it has nothing to coalesce, and it takes time to plan again between stages.
        "spark.sql.adaptive.enabled": "false",
        # Up to so many files Spark lists in the driver; more, in a job, here on the same machine. A window has a file
        # for each change set.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "2000",
        # Keep generated code: each table has a dozen pieces, and compiling one takes longer than running it.
        "spark.sql.codegen.cache.maxEntries": "2000",
        # Listed files are remembered, 250 MB of them; those of a window are read once.
        "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
        "spark.databricks.delta.snapshotPartitions": str(min(cores, 2)),
        **_format_settings(formats),
    }
    if jars:
        settings["spark.driver.extraClassPath"] = os.pathsep.join(jars)
    else:
        settings["spark.jars.packages"] = coordinates_of(formats, stores)
        settings |= {"spark.jars.excludes": excludes_of(stores)} if stores else {}
    return SparkConf().setAll(list(settings.items()))


def _format_settings(formats: Sequence[str]) -> dict[str, str]:
    wanted = [FORMATS[name] for name in sorted(set(formats))]
    found = {"spark.sql.extensions": ",".join(known.extension for known in wanted)}
    for known in wanted:
        found |= known.settings
    return found


def forget_logs(directory: Path) -> None:
    """Remove all but the newest logs. Other processes may do the same: a log that is gone already is no error."""
    ages: dict[Path, float] = {}
    for path in directory.glob("spark-*.log"):
        with suppress(FileNotFoundError):
            ages[path] = path.stat().st_mtime
    for old in sorted(ages, key=lambda path: ages[path])[:-_KEPT_LOGS]:
        old.unlink(missing_ok=True)


def driver_memory_bytes() -> int:
    """A quarter of the memory this process may use, between 1 and 16 GiB: Python and the source need some, too."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    with suppress(OSError, ValueError):  # no cgroup, or "max"
        total = min(total, int(limit.read_text()))
    return max(_GIB, min(total // 4, 16 * _GIB))


def _start(conf: SparkConf, log: Path, packages: str) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    with log.open("ab") as sink, _on_loopback(conf):
        try:
            gateway = launch_gateway(conf, popen_kwargs={"stdout": sink, "stderr": sink})  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            text = log.read_text(errors="replace")
            # Ivy, which fetches the jars, gives no error code: only what it prints says so.
            if "unresolved dependency" in text or "UNRESOLVED DEPENDENCIES" in text or "download failed" in text:
                raise SparkSetupError(
                    f"the jars of {packages} are not on this machine, and Spark could not download them",
                    remedy="Connect to the internet once, or set spark.jars.repositories in spark-defaults.conf.",
                ) from error
            raise SparkSetupError("Spark's JVM did not start", remedy=f"Read the reason in {log}.") from error
    context = SparkContext(conf=conf, gateway=gateway)
    if str(context.master).startswith("local"):
        use_local_files(context)
        forget_sources(context)
    return SparkSession(context)


@contextmanager
def _on_loopback(conf: SparkConf) -> Iterator[None]:
    """A JVM of this machine alone asks for no address of the machine's name: in containers, and behind some VPNs, that
    name has none, and Spark would not start."""
    if _LOCAL_IP in os.environ or not conf.get("spark.master", "").startswith("local"):
        yield
        return
    os.environ[_LOCAL_IP] = "127.0.0.1"
    try:
        yield
    finally:
        del os.environ[_LOCAL_IP]


def checked_session(session: SparkSession, formats: Sequence[str] = ("delta",)) -> SparkSession:
    """The user's own session, if Lakefeed can work in it; else SparkSetupError with the settings to add."""
    driver = Driver(session)
    try:
        version, extensions = session.version, session.conf.get("spark.sql.extensions", "")
    except Exception as error:
        if (lost := server_lost(error)) is None:
            raise
        raise lost from error
    wanted = _format_settings(formats)
    loaded = (extensions or "").split(",")
    lacking = [
        name for name in formats
        if FORMATS[name].extension not in map(str.strip, loaded)
        or any(session.conf.get(key, "") != value for key, value in FORMATS[name].settings.items())
    ]  # fmt: skip
    if lacking:
        settings = ", ".join(f"{key}={value}" for key, value in wanted.items())
        builder = "Build it" if driver.has_jvm else f"Start the server at {driver.address}"
        raise SparkSetupError(
            f"the Spark session was built without {' and '.join(sorted({name.title() for name in lacking}))}",
            remedy=f"{builder} with {settings} and spark.jars.packages={coordinates_of(formats)}; separate several "
            "extensions or packages by commas.",
        )
    if not version.startswith(SPARK_VERSION + "."):
        raise SparkSetupError(
            f"the Spark session runs Spark {version}, Lakefeed needs {SPARK_VERSION}",
            remedy=f'Install "pyspark~={SPARK_VERSION}.0" and build the session again.',
        )
    if not driver.has_jvm:
        check_workers(session)
        return session
    # By default local workers run the system's python3, which lacks this environment's packages.
    context = session.sparkContext
    worker = str(context.pythonExec)
    found = shutil.which(worker)
    # Without following links: an environment's python is one, and the link makes the environment.
    is_own = found is not None and Path(found).absolute().parent == Path(sys.executable).absolute().parent
    if str(context.master).startswith("local") and not is_own:
        raise SparkSetupError(
            f"the Spark session runs its workers with '{worker}', not with this environment's interpreter",
            remedy=f"Set PYSPARK_PYTHON={sys.executable} before the session is built.",
        )
    return session


class Sessions:
    """Makes child sessions of one session. Calls ``spark`` for that one with the first child."""

    def __init__(self, spark: Callable[[], SparkSession], settings: Mapping[str, str]) -> None:
        self._spark = spark
        self._settings = settings
        self._lock = threading.Lock()
        self._parent: SparkSession | None = None
        self.reports = Reports()
        """What a server of Spark Connect has reported to these sessions."""

    @property
    def started(self) -> SparkSession | None:
        """The session whose children these are; None before the first child."""
        return self._parent

    def parent(self) -> SparkSession:
        """The session whose children these are, made if it must be."""
        with self._lock:
            if self._parent is None:
                self._parent = self._spark()
            return self._parent

    def require_local(self) -> None:
        """LakeError if Spark's workers do not see the directories of this machine."""
        if not (address := Driver(self.parent()).address).startswith("local"):
            raise LakeError(f"the workers of {address} do not see the directories of this machine")

    def child(self) -> SparkSession:
        with self._lock:
            if self._parent is None:
                self._parent = self._spark()
            try:
                session = Driver(self._parent).child()
            except Exception as error:
                lost = _require_lost_session(error)
                last, self._parent = self._parent, None
                self._parent = self._spark()
                if self._parent is last:
                    raise lost from error
                session = Driver(self._parent).child()
        for name, value in {**_SAME_EVERYWHERE, **self._settings}.items():
            session.conf.set(name, value)
        Driver(session).report_to(self.reports.note)
        return session
