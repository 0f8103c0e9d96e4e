"""Hadoop's local file system without a ``chmod`` process for each file.

Without its native library, which pyspark does not bring, Hadoop starts the program ``chmod`` for every file and
directory that it makes: seven times for one small commit to a Delta table (docs/decisions/0013-small-windows.md). The
class below asks the kernel directly. Spark's own compiler for generated code compiles it, and it replaces Hadoop's
class in the JVM of a local session that Lakefeed builds. Sessions of a cluster or of the user keep Hadoop's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

_SOURCE = """
package lakefeed;

public class LocalFiles extends org.apache.hadoop.fs.LocalFileSystem {
  public LocalFiles() { super(new Raw()); }

  public static class Raw extends org.apache.hadoop.fs.RawLocalFileSystem {
    public void setPermission(org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission permission)
        throws java.io.IOException {
      if (permission.getStickyBit()) { super.setPermission(path, permission); return; }
      java.nio.file.Files.setPosixFilePermissions(
          pathToFile(path).toPath(), java.nio.file.attribute.PosixFilePermissions.fromString(permission.toString()));
    }
  }
}
"""

_WITH_DEFAULTS = tuple(f"org.apache.hadoop.{name}" for name in (
    "mapred.JobConf", "yarn.conf.YarnConfiguration", "hdfs.HdfsConfiguration",
))  # fmt: skip


def use_local_files(context: SparkContext) -> bool:
    """Install the class, before Spark writes anything. False if the JVM lacks a part of this: then nothing changes."""
    jvm: Any = context._jvm
    gateway: Any = context._gateway
    try:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
        compiler.cook(_SOURCE)
        hadoop, uri = context._jsc.hadoopConfiguration(), jvm.java.net.URI.create("file:///")
        files = (
            compiler.getClassLoader()
            .loadClass("lakefeed.LocalFiles")
            .getDeclaredConstructors()[0]
            .newInstance(gateway.new_array(jvm.java.lang.Object, 0))
        )
        files.initialize(uri, hadoop)
        # Hadoop gives one cached instance to all who ask. Put ours into the cache.
        base = jvm.java.lang.Class.forName("org.apache.hadoop.fs.FileSystem")
        kinds = gateway.new_array(jvm.java.lang.Class, 3)
        kinds[0], kinds[1], kinds[2] = uri.getClass(), hadoop.getClass(), base
        given = gateway.new_array(jvm.java.lang.Object, 3)
        given[0], given[1], given[2] = uri, hadoop, files
        add = base.getDeclaredMethod("addFileSystemForTesting", kinds)
        add.setAccessible(True)
        add.invoke(None, given)
    except Exception as error:  # noqa: BLE001  # whatever the reason, nothing has changed
        log.info("Hadoop sets permissions of local files by chmod: %s", error)
        return False
    return True


def forget_sources(context: SparkContext) -> bool:
    """Hadoop's configuration without the names of the files that its settings come from. Returns whether it is so.

    It travels with each read and each write, and each of more than a thousand names, which nobody asks for, would be
    compressed by itself: milliseconds of a small window each time.
    """
    jvm: Any = context._jvm
    try:
        hadoop = context._jsc.hadoopConfiguration()
        # Each of these adds files of defaults when it is loaded, which would bring the names back.
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass("file", hadoop)
        for name in _WITH_DEFAULTS:
            jvm.java.lang.Class.forName(name)
        hadoop.size()  # the files are read
        names = jvm.java.lang.Class.forName("org.apache.hadoop.conf.Configuration").getDeclaredField("updatingResource")
        names.setAccessible(True)
        names.get(hadoop).clear()
    except Exception as error:  # noqa: BLE001  # whatever it is, nothing has changed
        log.info("Hadoop's configuration travels with the names of its files: %s", error)
        return False
    return True
