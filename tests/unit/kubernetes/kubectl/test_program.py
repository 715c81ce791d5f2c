"""kubectl is bounded in time and in what is read of it, and none is left running, however a command ends."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from kvpressure.cli import installed
from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.kubectl import program
from kvpressure.kubernetes.kubectl.program import Kubectl, complaint_of, items_of
from tests.stubs.kubectl import Cluster, engine_pod
from tests.support.engine_kit import GOOD_PAGE
from tests.support.kube_watch import until
from tests.support.servers import FaultServer, page

pytestmark = pytest.mark.process

EXPORTER = Path(program.__file__).parents[3]
READERS = [
    (["triage", "pod/llama-0", "--duration", "60"], "port-forward"),
    (["triage", "pod/llama-0", "--watch"], "port-forward"),
    (["record", "pod/llama-0", "-o", "x.jsonl"], "port-forward"),
    (["whatif", "pod/llama-0", "--set", "max_num_seqs=8", "--duration", "60"], "port-forward"),
    (["plan", "--url", "pod/llama-0", "--duration", "60"], "port-forward"),
    (["audit", "--cluster"], "get"),
]
"""Commands that read pods, and what they ask kubectl for."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path)
    made.on_path(monkeypatch)
    made.add("pods", engine_pod())
    made.write()
    return made


async def test_a_list_an_object_and_nothing_are_lists_of_objects(cluster: Cluster) -> None:
    kubectl = Kubectl()
    cluster.add("pods", engine_pod("llama-1"))
    cluster.write()
    assert len(items_of(await kubectl.get("pods"))) == 2
    assert len(items_of(await kubectl.get("pods", "llama-0"))) == 1
    assert items_of(await kubectl.get("pods", "gone", "--ignore-not-found")) == []
    assert await kubectl.namespace() == "prod"
    assert await kubectl.names("pods") == ["llama-0", "llama-1"]


@pytest.mark.parametrize(
    ("absent", "forbidden", "status", "said"),
    [
        ("pods", "", 404, "doesn't have a resource type"),
        ("", "get pods", 403, "you may not get pods llama-0: Error from server"),
    ],
)
async def test_a_failure_has_the_status_of_what_kubectl_says(
    cluster: Cluster, absent: str, forbidden: str, status: int, said: str
) -> None:
    cluster.objects.clear()
    cluster.absent, cluster.forbidden = {absent}, {forbidden}
    cluster.write()
    with pytest.raises(KubeError, match=said) as failed:
        await Kubectl().get("pods", "llama-0")
    assert failed.value.status == status


@pytest.mark.fault("kubectl waits for a login, or hangs", "it is ended after a minute, and what it said is told")
async def test_a_kubectl_that_does_not_end_is_ended(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "DEADLINE_SECONDS", 0.7)
    cluster.hangs = True
    cluster.write()
    with pytest.raises(KubeError, match=r"did not end .* \(it says: To sign in.*does it wait for a login"):
        await Kubectl().get("pods")
    assert not cluster.alive()


@pytest.mark.fault("kubectl prints without an end", "reading ends at a bound, and kubectl is ended")
async def test_what_is_read_of_kubectl_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MAX_JSON_BYTES", 1 << 20)
    cluster.floods = True
    cluster.write()
    with pytest.raises(KubeError, match="printed more than 1 MiB"):
        await Kubectl().get("pods")
    assert len(await Kubectl().logs("prod", "llama-0", cap_bytes=1000)) == 1000
    assert not cluster.alive()


def test_the_lines_of_kubectls_own_log_are_left_out() -> None:
    text = b'E0102 03:04:05.678901 1 memcache.go:265] "Unhandled Error"\nThe connection was refused\n'
    assert complaint_of(text) == "The connection was refused"
    assert complaint_of(text.splitlines()[0]).startswith("E0102")


@pytest.mark.fault(
    "a Ctrl-C, SIGTERM or lost terminal while a command reads pods through kubectl", "no kubectl is left running"
)
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("words", "asked"),
    [(words, asked) for words, asked in READERS if words[0] in installed()],
    ids=lambda word: word[0] if isinstance(word, list) else "",
)
async def test_nothing_is_left_running_when_a_command_is_ended(
    cluster: Cluster, tmp_path: Path, ending: signal.Signals, words: list[str], asked: str
) -> None:
    async with FaultServer(page(GOOD_PAGE)) as engine:
        cluster.engines["llama-0", 8000] = "127.0.0.1", engine.port
        cluster.hangs = asked == "get"
        cluster.write()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvpressure", *words),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(EXPORTER)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        for _ in range(10):  # a busy machine takes seconds to start Python
            with contextlib.suppress(AssertionError):
                await until(lambda: any(line.startswith(asked) for line in cluster.asked()) and cluster.alive())
                await until(lambda: asked == "get" or engine.requests)
                break
        process.send_signal(ending)
        _, complaint = await asyncio.wait_for(process.communicate(), 20)
        assert b"Traceback" not in complaint, complaint.decode()
        assert not cluster.alive()
