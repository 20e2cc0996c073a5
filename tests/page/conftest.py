"""A server of the page, for each test its own."""

import pytest

from tests.page.pages import serve


@pytest.fixture
def server():
    server = serve()
    yield server
    server.close()
