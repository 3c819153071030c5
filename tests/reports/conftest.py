"""The same surroundings as for the tests of the search."""

from tests.search.conftest import one_thread as one_thread
