"""The public surface is a list that changes on purpose."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import lakefeed
from lakefeed import errors

NAMES = """
Append ChangeCapture ChangeSet Checkpoint CheckpointDamagedError CheckpointError CheckpointRewindError CheckpointStore
Column CommitFailedError CommitUnknownError ConfigError CycleResult DecodeError Delivery Delta DescribedTable Dialect
Evolution FileCheckpointStore FileWatermarkStore Finding FullDiff HangError Iceberg JournalDamagedError JournalError
JournalFullError JournalOptions Lag LakeError LakefeedError Layout LeaseError LeaseLostError Listener
MaintenanceOptions MemoryCheckpointStore MemoryWatermarkStore Mirror Mysql OP Operation Origin Pace Pin Pipeline
PipelineOptions PipelineStatus Plan Polling PollingSource PositionLostError Postgres PostgresPolling Query
RebuildNeededError Retry RowOptions Rule Runtime RuntimeOptions SEQ Session SoftDelete SourceChangedError SourceError
SourceSetupError SourceUnavailableError SparkSetupError Sqlite SqlitePolling StateError StorageUnavailableError TableId
TableRule TableSchema TableStatus TableStoppedError Temporal as_of current pin read_at register_source register_tables
register_views snapshot spark_session table to_arrow
"""

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.LakefeedError)]


def test_the_public_names_are_these_and_sorted() -> None:
    assert lakefeed.__all__ == NAMES.split()
    assert all(hasattr(lakefeed, name) for name in lakefeed.__all__)
    assert dir(lakefeed) == lakefeed.__all__


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(Path(str(lakefeed.__file__)).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == lakefeed._MODULES


def test_every_error_is_public() -> None:
    assert {kind.__name__ for kind in CLASSES} <= set(lakefeed.__all__)


def test_importing_lakefeed_imports_neither_spark_nor_a_delta_reader() -> None:
    program = "import sys, lakefeed; print([name for name in ('pyspark', 'deltalake', 'delta') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_has_a_remedy_and_a_policy_and_survives_a_spark_task(kind: type[errors.LakefeedError]) -> None:
    error = kind("what is wrong")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.message, again.remedy, str(again)) == (error.message, error.remedy, str(error))
    assert str(error) == ("what is wrong" if kind is errors.StateError else f"what is wrong\nRemedy: {error.remedy}")
    assert error.remedy.endswith(".")
    assert isinstance(kind.retry, errors.Retry)
    assert kind.exit_code in (2, 3)


def test_the_tree_at_the_top_of_the_errors_names_every_class() -> None:
    assert errors.__doc__ is not None
    assert [kind.__name__ for kind in CLASSES if kind.__name__ not in errors.__doc__] == []
