"""The journal in an object store: what it keeps, what it finds damaged, what it removes, what it asks for."""

from __future__ import annotations

from pathlib import Path

import obstore
import pyarrow as pa
import pytest

from lakefeed.errors import ConfigError, JournalDamagedError, SourceChangedError, StorageUnavailableError
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.reading import moment
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at
from lakefeed.storage.object_store import ObjectStorage
from lakefeed.testing.builders import at, batch, change_set, read_window, table
from lakefeed.testing.server.object_store import Seaweed
from lakefeed.testing.server.proxy import HttpProxy

T, U = (table(f"main.{name}", {"id": pa.int64()}, key=("id",)) for name in "tu")
KEEP = JournalOptions(keep_seconds=0, keep_change_sets=1, lease_seconds=30)


@pytest.fixture
def place(seaweed: Seaweed, address: str) -> Storage:
    return storage_at(address, seaweed.options)


def append(journal: Journal, number: int, *, segments: int = 1) -> None:
    rows = [batch(one, [("insert", {"id": number})], start_seq=seq) for seq, one in enumerate((T, U)[:segments])]
    journal.append(change_set(journal.end, number, *rows))


def ids(journal: Journal, after: int, upto: int) -> list[int]:
    window = journal.window(T.table, after, upto)
    journal.check(window)
    return [row["id"] for row in read_window(window)]


def test_what_is_appended_is_read_by_another_process_and_survives_being_opened_again(place: Storage) -> None:
    with Journal.open(place, identity="db", options=KEEP) as journal:
        for number in range(1, 6):
            append(journal, number, segments=2)
        reader = Journal.read(place)
        assert (reader.head, reader.end, reader.identity, ids(reader, 1, 5)) == (5, at(5), "db", [2, 3, 4, 5])
        append(journal, 6)
        reader.refresh()
        assert ids(reader, 5, 6) == [6]
        assert reader.verify() == 11
        assert journal.trim(6).trimmed == 5
    with Journal.open(place, identity="db", options=KEEP) as journal:
        assert (journal.head, journal.trimmed, journal.last_seq, journal.committed_rows) == (6, 5, 11, 11)
        assert place.names("commits") == ["commits/00000000000000000006.json"]
        assert len(place.names("segments")) == 1
        append(journal, 7)
        assert ids(journal, 5, 7) == [6, 7]
    with pytest.raises(SourceChangedError):
        Journal.open(place, identity="another", options=KEEP)


def test_copies_on_this_machine_go_once_every_table_has_them_and_come_back_when_they_are_wanted(place: Storage) -> None:
    with Journal.open(place, options=JournalOptions(lease_seconds=30)) as journal:
        for number in (1, 2):
            append(journal, number)
        assert ids(journal, 0, 2) == [1, 2]
        paths = [Path(segment.path) for segment in journal.window(T.table, 0, 2).segments]
        assert all(path.exists() for path in paths)
        journal.trim(1)
        assert [path.exists() for path in paths] == [False, True], "the store still has both"
        assert ids(journal, 0, 2) == [1, 2]


def test_damage_is_named_and_not_repaired_by_forgetting(place: Storage) -> None:
    with Journal.open(place, options=KEEP) as journal:
        for number in (1, 2, 3):
            append(journal, number)
    segment = place.names("segments")[1]
    data = place.read(segment)
    place.replace(segment, data[:-1] + b"x")
    place.release([segment])  # this process has written it, and would not fetch it
    with Journal.open(place, options=KEEP) as journal, pytest.raises(JournalDamagedError, match="fails its checksum"):
        ids(journal, 0, 3)
    place.remove([segment])
    with pytest.raises(JournalDamagedError, match=f"{segment} is missing; change set 2 names it"):
        Journal.open(place, options=KEEP)
    place.replace(segment, data)
    place.remove(["commits/00000000000000000002.json"])
    with pytest.raises(JournalDamagedError, match=r"commits/0+2.json is missing, but change set 3 exists"):
        Journal.open(place, options=KEEP)
    place.remove([*place.names("commits"), "commits/.folder"])
    with pytest.raises(JournalDamagedError, match="commits is missing, but"):
        Journal.open(place, options=KEEP)


def test_segments_that_no_commit_can_name_any_more_are_removed_and_those_of_the_next_change_set_stay(
    place: Storage,
) -> None:
    with Journal.open(place, options=KEEP) as journal:
        append(journal, 1)
    for number in (1, 2):  # of a writer that may still be alive
        place.replace(f"segments/main.t/{number:020d}-9-0-0.parquet", b"half")
    with Journal.open(place, options=KEEP) as journal:
        left = place.names("segments")
        assert f"segments/main.t/{1:020d}-9-0-0.parquet" not in left
        assert f"segments/main.t/{2:020d}-9-0-0.parquet" in left
        append(journal, 2)
    with Journal.open(place, options=KEEP):
        assert f"segments/main.t/{2:020d}-9-0-0.parquet" not in place.names("segments")


def test_a_change_set_is_two_requests_and_idle_is_none_but_the_lease(seaweed: Seaweed, address: str) -> None:
    with HttpProxy(seaweed.port) as proxy:
        place = storage_at(address, {**seaweed.options, "endpoint": proxy.endpoint})
        with Journal.open(place, options=KEEP) as journal:
            append(journal, 1)  # and its schema
            proxy.requests.clear()
            for number in range(2, 12):
                append(journal, number)
                assert ids(journal, number - 1, number) == [number]
            assert proxy.requests == {"PUT": 20}, "a segment and a commit; what was written here is not fetched"


def test_a_store_that_is_away_is_an_error_that_is_tried_again_and_nothing_is_lost(
    seaweed: Seaweed, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakefeed.storage.object_store._RETRY_SECONDS", 0.5)
    with HttpProxy(seaweed.port) as proxy:
        place = storage_at(address, {**seaweed.options, "endpoint": proxy.endpoint})
        journal = Journal.open(place, options=KEEP)
        append(journal, 1)
        proxy.cut()
        with pytest.raises(StorageUnavailableError, match="a request to the store for s3://"):
            append(journal, 2)
        proxy.restore()
        append(journal, 2)
        journal.close()
        with Journal.open(place, options=KEEP) as journal:
            assert ids(journal, 0, 2) == [1, 2]


def test_a_store_that_ignores_conditions_is_refused(place: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    real = obstore.put
    monkeypatch.setattr(obstore, "put", lambda *given, **options: real(*given, **{**options, "mode": "overwrite"}))
    with pytest.raises(ConfigError, match="ignores conditions of a put"):
        Journal.open(place, options=KEEP)


def test_secrets_are_in_no_message_and_no_text_of_a_storage(seaweed: Seaweed) -> None:
    options = {**seaweed.options, "secret_access_key": "hush-hush", "endpoint": "http://127.0.0.1:1"}
    place = ObjectStorage.open("s3a://lakefeed/x/", options)
    assert str(place) == "s3://lakefeed/x"
    with pytest.raises(StorageUnavailableError) as caught:
        place.below().read("a")
    shown = [
        str(caught.value),
        repr(place),
        repr(vars(place)),
        str(caught.value.__cause__),
        str(caught.value.__context__),
    ]
    assert not any("hush-hush" in text for text in shown)
    with pytest.raises(ConfigError) as wrong:
        ObjectStorage.open("s3://lakefeed/x", {**options, "no_such_option": "hush-hush"})
    assert "hush-hush" not in f"{wrong.value} {wrong.value.__cause__}"


def test_a_journal_that_was_made_again_is_another_one_for_a_process_that_has_read_the_one_before(
    place: Storage,
) -> None:
    """The same tables, numbers and names of segments, and commit files of the same size: only the rows are others."""

    def life(first: int) -> None:
        with Journal.open(place, identity="db", options=KEEP) as journal:
            for number in range(1, 4):
                rows = batch(T, [("insert", {"id": first + number})])
                journal.append(change_set(journal.end, number, rows))

    def read() -> list[int]:
        journal, _ = moment._journal(place)
        return ids(journal, 0, 3)

    life(10)
    assert read() == [11, 12, 13]
    place.remove_folder()
    life(20)
    assert read() == [21, 22, 23]
