"""The log stores with which Spark commits to Delta tables in object stores, each entry only if there is none.

Before Spark may commit, Lakefeed asks Delta which log store it would use (``commits_if_absent``). Delta's own ones for
Azure and Google are safe. Its log store for S3 checks whether a version exists and then puts it, so the second of two
processes replaces what the first has written. The class below makes Hadoop's connector send ``If-None-Match: *``.
Spark's own compiler for generated code compiles it in the JVM, and a setting names it to Delta as the log store of
``s3a``.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakefeed.lake.cloud.registry import cloud_of
from lakefeed.lake.spark.driver import Driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_CLASS = "lakefeed.IfAbsent"
_SOURCE = """
package lakefeed;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.Arrays;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

public class IfAbsent extends io.delta.storage.HadoopFileSystemLogStore {
  public IfAbsent(Configuration conf) { super(conf); }

  public void write(Path path, java.util.Iterator actions, Boolean overwrite, Configuration conf) throws IOException {
    ByteArrayOutputStream text = new ByteArrayOutputStream();
    while (actions.hasNext()) { text.write((((String) actions.next()) + "\\n").getBytes("UTF-8")); }
    byte[] data = text.toByteArray();
    FileSystem files = path.getFileSystem(conf);
    if (overwrite.booleanValue()) {
      FSDataOutputStream out = files.create(path, true);
      out.write(data);
      out.close();
      return;
    }
    try {
      FSDataOutputStreamBuilder builder = files.createFile(path);
      builder.must("fs.option.create.conditional.overwrite", true);
      FSDataOutputStream out = (FSDataOutputStream) builder.build();
      out.write(data);
      out.close();
    } catch (IOException refused) {
      // If an answer was lost, the connector has sent the request again: then the entry is this writer's own.
      if (!files.exists(path)) { throw refused; }
      if (!Arrays.equals(data, content(files, path))) {
        throw new java.nio.file.FileAlreadyExistsException(path.toString());
      }
    }
  }

  private static byte[] content(FileSystem files, Path path) throws IOException {
    FSDataInputStream in = files.open(path);
    try { return in.readAllBytes(); } finally { in.close(); }
  }

  public Boolean isPartialWriteVisible(Path path, Configuration conf) { return Boolean.FALSE; }
}
"""
_turn = threading.Lock()


def commits_if_absent(session: SparkSession, location: str) -> bool:
    """Make Spark's commits to the Delta table at an address of an object store, as Spark writes it, replace none. Does
    Delta confirm that they will not?

    False without a JVM (Spark Connect), if the JVM lacks a class for this, or if somebody has chosen another log store.
    """
    cloud = cloud_of(location)
    if cloud is None or not Driver(session).has_jvm:
        return False
    context: Any = session.sparkContext
    jvm = context._jvm
    with _turn:
        try:
            found = _log_store(jvm, session, location)
            if found != cloud.log_store:
                return found == _CLASS
            if cloud.is_log_store_safe:
                return True
            with tempfile.TemporaryDirectory(prefix="lakefeed-classes-") as place:  # until Java has loaded it
                _install(context, Path(place), f"spark.delta.logStore.{location.partition('://')[0]}.impl")
                return _log_store(jvm, session, location) == _CLASS
        except Exception as error:  # noqa: BLE001  # whatever the reason, Spark must not commit there
            log.warning("Spark cannot commit to %s: %s", location, error)
            return False


def _log_store(jvm: Any, session: SparkSession, location: str) -> str:
    """The class of the log store that Delta would commit with."""
    java: Any = session._jsparkSession
    store = getattr(getattr(jvm, "org.apache.spark.sql.delta.storage.LogStore$"), "MODULE$").apply(java)
    delegate = store.getDelegate(jvm.org.apache.hadoop.fs.Path(location))
    inner = getattr(delegate, "logStoreImpl", None)
    return str((inner() if inner is not None else delegate).getClass().getName())


def _install(context: Any, place: Path, setting: str) -> None:
    """Load the class from a directory, by the class loader that Spark has for added jars. Then clear Delta's cache of
    logs, which still have the old store."""
    jvm = context._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(_SOURCE)
    (place / "lakefeed").mkdir()
    for name, code in dict(compiler.getBytecodes()).items():
        (place / f"{name.replace('.', '/')}.class").write_bytes(bytes(code))
    loader.addURL(jvm.java.io.File(str(place)).toURI().toURL())
    context._jsc.sc().conf().set(setting, _CLASS)
    getattr(jvm, "org.apache.spark.sql.delta.DeltaLog").clearCache()
