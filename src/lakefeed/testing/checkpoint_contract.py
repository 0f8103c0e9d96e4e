"""The contract suite of CheckpointStore. Every backend runs it:

class TestMyStore(CheckpointStoreContract):
    def make_store(self) -> CheckpointStore:
        return MyStore()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from lakefeed.change.watermark import Mark, Watermark
from lakefeed.embed.checkpoint import MAX_KEY_BYTES, Checkpoint, CheckpointStore, PositionType
from lakefeed.errors import CheckpointError, CheckpointRewindError, ConfigError, StateError

KEY = "mydb.public.users"
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER_UUID = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
BAD_KEYS = [
    "", "a/b", "/etc/passwd", "a\\b", "..", "../up", "a..b", ".hidden", ".", "a\0b", "a\nb", "a\x7fb", "a\ud800",
    "k" * (MAX_KEY_BYTES + 1), "é" * (MAX_KEY_BYTES // 2 + 1),
]  # fmt: skip
FORWARD = [
    (Checkpoint.postgres_lsn(9), Checkpoint.postgres_lsn(10)),
    (Checkpoint.mysql_binlog("bin.000009", 900), Checkpoint.mysql_binlog("bin.000010", 4)),
    (Checkpoint.mysql_binlog("bin.999999", 4), Checkpoint.mysql_binlog("bin.1000000", 4)),
    (Checkpoint.gtid("mysql", f"{UUID}:1-5"), Checkpoint.gtid("mysql", f"{UUID}:1-6,{OTHER_UUID}:1")),
    (Checkpoint.gtid("mariadb", "0-1-9"), Checkpoint.gtid("mariadb", "0-2-10,1-1-1")),
]
UNORDERED = [
    (Checkpoint.gtid("mysql", f"{UUID}:1-5"), Checkpoint.gtid("mysql", f"{UUID}:2-9")),
    (Checkpoint.gtid("mariadb", "0-1-9"), Checkpoint.gtid("mariadb", "0-2-9")),
    (Checkpoint.mysql_binlog("a.000001", 4), Checkpoint.mysql_binlog("b.000002", 4)),
    (
        Checkpoint.from_position(Watermark.of({"s.a": Mark(1, (1,)), "s.b": Mark(2, (1,))}), source_type="sqlite"),
        Checkpoint.from_position(Watermark.of({"s.a": Mark(2, (1,)), "s.b": Mark(1, (1,))}), source_type="sqlite"),
    ),
    (Checkpoint.mysql_binlog("bin.000001", 4), Checkpoint.gtid("mysql", f"{UUID}:1-5")),
]


class CheckpointStoreContract(ABC):
    """What holds for every CheckpointStore."""

    @abstractmethod
    def make_store(self) -> CheckpointStore:
        """An empty store. The suite closes it."""

    @pytest.fixture
    def store(self) -> Iterator[CheckpointStore]:
        made = self.make_store()
        yield made
        made.close()

    def test_d24_what_is_saved_is_loaded_with_every_field(self, store: CheckpointStore) -> None:
        saved = Checkpoint(
            "postgres", PositionType.POSTGRES_LSN, "1/0", 1_700_000_000, "tx-7", {"slot": "é", "n": "1"}, "sys-1", 42
        )
        store.save(KEY, saved)
        assert store.load(KEY) == saved

    def test_d16_a_key_that_was_never_saved_loads_as_none(self, store: CheckpointStore) -> None:
        assert store.load("nothing") is None

    def test_d17_a_deleted_key_is_gone_and_deleting_it_again_succeeds(self, store: CheckpointStore) -> None:
        store.save(KEY, Checkpoint.postgres_lsn(1))
        store.delete(KEY)
        store.delete(KEY)
        assert store.load(KEY) is None
        assert store.list() == ()
        assert store.all() == {}

    def test_d18_list_and_all_show_every_key(self, store: CheckpointStore) -> None:
        first, second = Checkpoint.postgres_lsn(1), Checkpoint.mysql_binlog("mysql-bin.000003", 5)
        store.save("b", second)
        store.save("a", first)
        assert store.list() == ("a", "b")
        assert store.all() == {"a": first, "b": second}
        assert store.damaged() == {}

    def test_d25_many_dotted_keys_live_side_by_side(self, store: CheckpointStore) -> None:
        keys = [f"db{n}.public.users" for n in range(20)] + ["db1.public", "db1", "db1.public.users.json"]
        for number, key in enumerate(keys):
            store.save(key, Checkpoint.postgres_lsn(number))
        store.delete("db1.public")
        assert store.load("db1.public") is None
        loaded = {key: store.load(key) for key in keys if key != "db1.public"}
        for key, checkpoint in loaded.items():
            assert checkpoint is not None
            assert checkpoint.parse_postgres_lsn() == keys.index(key)
        assert set(store.list()) == set(loaded)

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_d13_d21_a_bad_key_is_refused_by_save_load_and_delete(self, store: CheckpointStore, key: str) -> None:
        with pytest.raises(ConfigError, match="Invalid checkpoint key"):
            store.save(key, Checkpoint.postgres_lsn(1))
        with pytest.raises(ConfigError, match="Invalid checkpoint key"):
            store.load(key)
        with pytest.raises(ConfigError, match="Invalid checkpoint key"):
            store.delete(key)
        assert store.list() == ()

    @pytest.mark.parametrize("key", ["a", "a b", "ключ", "a.b-c_d:e", "k" * MAX_KEY_BYTES])
    def test_d13_a_good_key_is_taken(self, store: CheckpointStore, key: str) -> None:
        store.save(key, Checkpoint.postgres_lsn(1))
        assert store.list() == (key,)

    @pytest.mark.parametrize(("old", "new"), FORWARD)
    def test_d23_a_stream_goes_forward_and_never_back(
        self, store: CheckpointStore, old: Checkpoint, new: Checkpoint
    ) -> None:
        store.save(KEY, old)
        store.save(KEY, new)
        with pytest.raises(CheckpointRewindError) as refused:
            store.save(KEY, old)
        assert old.position in str(refused.value)
        assert new.position in str(refused.value)
        assert store.load(KEY) == new

    @pytest.mark.parametrize(("old", "new"), UNORDERED)
    def test_d23_positions_that_are_not_ordered_do_not_replace_each_other(
        self, store: CheckpointStore, old: Checkpoint, new: Checkpoint
    ) -> None:
        store.save(KEY, old)
        with pytest.raises(CheckpointRewindError):
            store.save(KEY, new)
        assert store.load(KEY) == old

    def test_d23_the_same_position_may_be_saved_again_with_other_details(self, store: CheckpointStore) -> None:
        store.save(KEY, Checkpoint.gtid("mysql", f"{UUID}:1-3"))
        again = Checkpoint.gtid("mysql", f"{UUID.upper()}:1-2:3").with_metadata("why", "retry")
        store.save(KEY, again)
        assert store.load(KEY) == again

    def test_d23_going_back_on_purpose_takes_a_delete(self, store: CheckpointStore) -> None:
        store.save(KEY, Checkpoint.postgres_lsn(9))
        store.delete(KEY)
        store.save(KEY, Checkpoint.postgres_lsn(1))
        loaded = store.load(KEY)
        assert loaded is not None
        assert loaded.position == "0/1"

    @pytest.mark.parametrize("identity", ["server-2", None])
    def test_d23_the_identity_of_the_source_is_neither_changed_nor_forgotten(
        self, store: CheckpointStore, identity: str | None
    ) -> None:
        store.save(KEY, Checkpoint("postgres", PositionType.POSTGRES_LSN, "0/1"))
        store.save(KEY, Checkpoint("postgres", PositionType.POSTGRES_LSN, "0/2", identity="server-1"))
        with pytest.raises(CheckpointRewindError, match="server-1"):
            store.save(KEY, Checkpoint("postgres", PositionType.POSTGRES_LSN, "0/3", identity=identity))

    def test_d23_another_source_type_is_refused(self, store: CheckpointStore) -> None:
        store.save(KEY, Checkpoint.gtid("mysql", ""))
        with pytest.raises(CheckpointRewindError, match="mariadb"):
            store.save(KEY, Checkpoint.gtid("mariadb", "0-1-1"))

    def test_d23_a_position_that_cannot_be_read_is_refused_even_as_the_first(self, store: CheckpointStore) -> None:
        with pytest.raises(CheckpointError, match="1/123456789"):
            store.save(KEY, Checkpoint("postgres", PositionType.POSTGRES_LSN, "1/123456789"))
        assert store.load(KEY) is None

    def test_d23_the_count_of_committed_events_never_falls(self, store: CheckpointStore) -> None:
        store.save(KEY, Checkpoint("postgres", PositionType.POSTGRES_LSN, "0/1", committed=10))
        with pytest.raises(CheckpointRewindError, match="10 events"):
            store.save(KEY, Checkpoint("postgres", PositionType.POSTGRES_LSN, "0/2", committed=9))

    def test_custom_positions_have_no_order_so_the_count_of_committed_events_stands_for_it(
        self, store: CheckpointStore
    ) -> None:
        store.save(KEY, Checkpoint("mine", PositionType.CUSTOM, "z", committed=5))
        store.save(KEY, Checkpoint("mine", PositionType.CUSTOM, "a", committed=6))
        with pytest.raises(CheckpointRewindError):
            store.save(KEY, Checkpoint("mine", PositionType.CUSTOM, "z", committed=5))

    def test_a_finished_snapshot_gives_way_to_the_stream_and_not_the_other_way_round(
        self, store: CheckpointStore
    ) -> None:
        snapshot = Checkpoint.custom("postgres_snapshot", '{"snapshot_watermark": 5}')
        store.save(KEY, snapshot)
        store.save(KEY, Checkpoint.postgres_lsn(5))
        with pytest.raises(CheckpointRewindError, match="postgres_snapshot"):
            store.save(KEY, snapshot)

    def test_d24_threads_may_save_and_load_at_once_and_the_newest_position_wins(self, store: CheckpointStore) -> None:
        def advance(lsn: int) -> int:
            with suppress(CheckpointRewindError):  # a thread with a later position may have been faster
                store.save(KEY, Checkpoint.postgres_lsn(lsn))
            store.save(f"own.{lsn}", Checkpoint.postgres_lsn(lsn))
            loaded = store.load(KEY)
            assert loaded is not None
            return loaded.parse_postgres_lsn() or 0

        with ThreadPoolExecutor(8) as pool:
            seen = list(pool.map(advance, range(1, 41)))
        assert all(now >= mine for now, mine in zip(seen, range(1, 41), strict=True))
        final = store.load(KEY)
        assert final is not None
        assert final.parse_postgres_lsn() == 40
        assert len(store.list()) == 41

    def test_a_closed_store_says_so_and_closing_it_again_is_harmless(self, store: CheckpointStore) -> None:
        store.close()
        store.close()
        with pytest.raises(StateError, match="closed"):
            store.save(KEY, Checkpoint.postgres_lsn(1))
        with pytest.raises(StateError, match="closed"):
            store.load(KEY)
