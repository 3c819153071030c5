"""The same surroundings as for the tests of the search."""

from tests.cli.conftest import made as made
from tests.search.conftest import one_thread as one_thread
