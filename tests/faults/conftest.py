from collections.abc import AsyncIterator

import pytest

from tests.stubs.kube_api import KubeApi, engine_pod, node


@pytest.fixture
async def api() -> AsyncIterator[KubeApi]:
    """An API server with one engine on its node."""
    async with KubeApi() as server:
        server.put("pods", engine_pod("a-0"))
        server.put("nodes", node())
        yield server
