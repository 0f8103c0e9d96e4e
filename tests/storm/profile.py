"""Profiles: how often each kind of action comes. Data only: a kind moves from wild to mild by moving its entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_ROWS: Mapping[str, float] = {
    "insert": 14, "update": 14, "delete": 6, "upsert": 5, "update_key": 2,
    "insert_shared": 6, "update_shared": 8, "delete_shared": 2,
    "transaction": 5, "rolled_back": 2, "savepoint": 3, "truncate": 0.5, "create_table": 3,
}  # fmt: skip
_TABLES: Mapping[str, float] = {
    "drop_table": 1, "recreate_table": 0.5, "rename_table": 0.5,
    "add_column": 3, "add_column_default": 1, "drop_column": 1.5, "rename_column": 1.5,
}  # fmt: skip
_DEFAULTS: Mapping[str, float] = {"set_default": 1, "drop_default": 0.5, "analyze": 0.5}

MILD: Mapping[str, Mapping[str, float]] = {
    "postgres": {**_ROWS, "create_partitioned": 1, "add_partition": 1, **_TABLES, **_DEFAULTS},
    "mysql": {**_ROWS, "create_partitioned": 1, "add_partition": 1, **_TABLES, **_DEFAULTS, "replace": 2},
    "sqlite": {**_ROWS, "create_without_rowid": 1, **_TABLES, "analyze": 0.5, "replace": 2},
}  # fmt: skip

_WILD: Mapping[str, Mapping[str, float]] = {
    "postgres": {
        "add_column_and_update": 2, "add_column_volatile": 0.7, "add_column_default_dropped": 0.7,
        "add_column_locked": 0.4, "add_generated": 0.7, "drop_expression": 0.5, "add_identity": 0.5,
        "set_not_null": 1, "drop_not_null": 0.5,
        "widen_type": 1, "change_type": 0.7, "rewrite_same_type": 0.7, "change_typmod": 1,
        "rename_enum_value": 0.4, "add_enum_value": 0.5, "add_composite_attribute": 0.3,
        "truncate_cascade": 0.3, "swap_tables": 0.4, "move_schema": 0.3, "create_child": 0.7,
        "create_child_elsewhere": 0.4, "create_keyless": 0.5, "create_unlogged": 0.3, "set_unlogged": 0.3,
        "rename_partitioned": 0.4, "attach_partition": 0.7, "detach_partition": 0.5, "drop_partition": 0.4,
        "truncate_partition": 0.4, "unlogged_partition": 0.2, "change_key": 0.5, "drop_key": 0.3,
        "identity_full": 0.7, "identity_default": 0.5, "identity_nothing": 0.3, "identity_index": 0.4,
        "odd_value": 0.4, "bulk_insert": 0.5, "index_concurrently": 1, "reindex_concurrently": 0.3,
        "vacuum_full": 0.7, "cluster": 0.3, "vacuum_full_catalog": 0.15,
        "long_transaction": 0.6, "long_rollback": 0.2, "prepared_transaction": 0.5,
        "lock_share_update": 0.4, "lock_exclusive": 0.4,
    },
    "mysql": {
        "add_column_and_update": 2, "add_column_default_dropped": 0.7, "add_column_copied": 1, "add_column_first": 0.7,
        "add_generated": 0.7, "widen_type": 1, "change_type": 0.7, "change_typmod": 1.5, "convert_charset": 0.3,
        "rename_and_back": 0.4, "swap_tables": 0.5, "ghost_swap": 0.5, "move_schema": 0.4, "create_keyless": 0.5,
        "rename_partitioned": 0.4, "drop_partition": 0.4, "truncate_partition": 0.4, "exchange_partition": 0.4,
        "remove_partitioning": 0.2, "change_key": 0.5, "drop_key": 0.3, "odd_value": 0.3, "bulk_insert": 0.5,
        "index": 0.7, "rebuild": 0.7, "optimize": 0.3, "flush_logs": 0.5, "flush_tables": 0.4,
        "long_transaction": 0.6, "long_rollback": 0.2, "long_reader": 0.7, "lock_table": 0.4,
        "xa_commit": 0.3, "xa_rollback": 0.2,
    },
    "sqlite": {
        "add_column_and_update": 2, "add_generated": 0.7, "create_keyless": 0.7, "create_generated": 0.5,
        "rebuild_table": 0.7, "swap_tables": 0.5, "change_key": 0.5, "trigger": 0.7, "trigger_on_itself": 0.5,
        "unique_index": 0.5, "odd_value": 0.5, "bulk_insert": 0.5, "vacuum": 0.4, "checkpoint": 0.5, "reindex": 0.3,
        "long_transaction": 0.4, "long_reader": 0.7,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profile:
    """``actions_per_second``: of all sessions together. ``tables_per_session``: more are not made, so that the load is
    bounded. ``prelude``: what each session makes before Lakefeed starts. ``on_settled``: kinds that take only tables
    from before the storm, which Lakefeed has copied by then. ``evolution``: that section of the configuration."""

    name: str
    weights: Mapping[str, float]
    sessions: int
    actions_per_second: float
    tables_per_session: int
    prelude: tuple[str, ...]
    on_settled: frozenset[str] = frozenset()
    evolution: Mapping[str, str] = field(default_factory=dict)


def _of(source: str) -> dict[str, Profile]:
    prelude = ("create_table", "create_table", "create_without_rowid" if source == "sqlite" else "create_partitioned")
    return {
        "mild": Profile(
            "mild",
            MILD[source],
            sessions=2,
            actions_per_second=8,
            tables_per_session=4,
            prelude=prelude,
            on_settled=frozenset({"drop_column", "rename_column", "drop_table", "recreate_table", "rename_table"}),
        ),
        "wild": Profile(
            "wild",
            {**MILD[source], **_WILD[source]},
            sessions=5,
            actions_per_second=15,
            tables_per_session=8,
            prelude=prelude,
            evolution={"change_type": "rebuild"},
        ),
    }


PROFILES = {source: _of(source) for source in MILD}
PROFILES["mariadb"] = PROFILES["mysql"]
