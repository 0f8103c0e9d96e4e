"""``python -m lakefeed``: the same as the ``lakefeed`` command."""

from lakefeed.app.cli import main

main()
