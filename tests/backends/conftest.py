"""The same surroundings as for the tests of the search, and a PostgreSQL server for those who ask for it."""

from tests.postgresql import postgresql as postgresql
from tests.postgresql import postgresql_url as postgresql_url
from tests.search.conftest import one_thread as one_thread
