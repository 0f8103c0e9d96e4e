"""Read all tables of a lake at one moment of the database, with what no merge has brought there yet.

Try it on the demo's lake (`lakefeed demo` leaves one in ./demo):

    python examples/one_moment.py --lake demo/lake
    python examples/one_moment.py --lake demo/lake --at 3

--at is a change set's number, or a position such as sqlite=8@1794778483365; without it, the newest change set.
"""

from __future__ import annotations

import argparse

import lakefeed


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the rows of all tables at one moment of the database.")
    parser.add_argument("--lake", required=True, help="the lake's path")
    parser.add_argument("--at", help="a change set's number or a position; without it, now")
    options = parser.parse_args()
    at = int(options.at) if options.at and options.at.isdigit() else options.at

    spark = lakefeed.spark_session("one-moment", formats=("delta", "iceberg"))
    with lakefeed.pin(options.lake, seconds=600):  # what can be read now can be read until the end of the block
        for name, rows in lakefeed.snapshot(spark, options.lake, at).items():
            print(f"{name}: {rows.count()} rows")


if __name__ == "__main__":
    main()
