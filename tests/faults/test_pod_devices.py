from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kvpressure.config.settings.model import PodResourcesSettings
from kvpressure.model.environment import Assignment, ContainerId
from kvpressure.model.errors import SourceError
from kvpressure.sources.pod_devices import KEEP_SECONDS, PodDevicesSource
from kvpressure.sources.pod_devices.ids import ClaimDevice, ContainerDevices, KernelNames, PluginDevice
from kvpressure.sources.pod_devices.kubelet import list_devices
from tests.stubs.kubelet import Answers, Kubelet, claim, container, pod
from tests.support.engine_kit import VirtualClock

FIXTURES = Path(__file__).parents[1] / "fixtures" / "pod_resources"
A, B = "GPU-8f2c1d5e-0b1a-4c2d-9e3f-0123456789ab", "GPU-9a3b7c5d-1122-3344-5566-778899aabbcc"
LLAMA = ContainerId("serving", "llama-0", "vllm")
ONE_ENGINE = {"pod_resources": [pod("llama-0", container("vllm", {"nvidia.com/gpu": [A]}))]}


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


def source_of(socket: Path, clock: VirtualClock | None = None, **settings: object) -> PodDevicesSource:
    given = PodResourcesSettings(socket_dir=socket.parent, enabled="true", **settings)  # type: ignore[arg-type]
    return PodDevicesSource(given, clock, names=KernelNames)


async def once(source: PodDevicesSource) -> None:
    await source._guard.attempt(source._ask, source._take)


async def failure(socket: Path) -> SourceError:
    with pytest.raises(SourceError) as caught:
        async with asyncio.timeout(200):
            await list_devices(socket)
    return caught.value


@asynccontextmanager
async def raw_server(socket: Path, serve: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[None]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        await serve(writer)
        writer.close()

    server = await asyncio.start_unix_server(handle, socket)
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(200):
        while not true():  # noqa: ASYNC110 - what is waited for is another task's doing, which sets no event
            await asyncio.sleep(0.01)


async def test_devices_and_claims_of_containers_arrive_as_the_kubelet_holds_them(socket: Path):
    device = {
        "driver_name": "gpu.nvidia.com",
        "device_name": "gpu-2",
        "share_id": "6d2f",
        "cdi_devices": [{"name": "k8s.gpu.nvidia.com/claim=x-gpu-2"}],
    }
    answers = {
        "pod_resources": [
            pod("llama-0", container("vllm", {"nvidia.com/gpu": [A, B], "rdma/hca": ["mlx5_0"]}), container("sidecar")),
            pod("qwen", container("vllm", None, claim(device, name="qwen-gpu"))),
        ],
    }
    async with Kubelet(socket, answers):
        answer = await list_devices(socket)
    plugin = tuple(PluginDevice("nvidia.com/gpu", uuid) for uuid in (A, B))
    claimed = ClaimDevice("serving/qwen-gpu", "gpu.nvidia.com", "gpu-2", ("k8s.gpu.nvidia.com/claim=x-gpu-2",), "6d2f")
    assert answer == (
        ContainerDevices(LLAMA, (*plugin, PluginDevice("rdma/hca", "mlx5_0"))),
        ContainerDevices(ContainerId("serving", "qwen", "vllm"), (), (claimed,)),
    )


async def test_bytes_marshalled_by_the_kubelets_own_code_are_read(socket: Path):
    from kvpressure.sources.pod_devices import kubelet as messages  # noqa: PLC0415 - protobuf, as late as the source itself

    listed = messages.ListPodResourcesResponse.FromString((FIXTURES / "list.bin").read_bytes())
    assert [(p.namespace, p.name, [c.name for c in p.containers]) for p in listed.pod_resources] == [
        ("serving", "llama-0", ["vllm", "sidecar"]),
        ("serving", "qwen", ["vllm"]),
        ("default", "web", ["nginx"]),
    ]
    assert [[*d.device_ids] for d in listed.pod_resources[0].containers[0].devices] == [[A], [B], ["mlx5_0"]]
    device = listed.pod_resources[1].containers[0].dynamic_resources[0].claim_resources[0]
    assert (device.driver_name, device.device_name) == ("gpu.nvidia.com", "gpu-2")
    assert (device.share_id, device.cdi_devices[0].name[:25]) == ("6d2f", "k8s.gpu.nvidia.com/claim=")


@pytest.mark.parametrize(
    ("answers", "reason", "words"),
    [
        ({"status": "UNIMPLEMENTED"}, "unsupported", "older than 1.20"),
        ({"status": "RESOURCE_EXHAUSTED", "message": "rejected by rate limit"}, "rate_limited", "rejected by rate"),
        ({"status": "UNAVAILABLE", "message": "a\nb" * 900}, "unavailable", "refused: a b"),
    ],
)
async def test_a_refusal_says_what_the_kubelet_said(socket: Path, answers: Answers, reason: str, words: str):
    async with Kubelet(socket, answers):
        error = await failure(socket)
    assert error.reason == reason
    assert words in error.sentence
    assert len(error.sentence) < 400


async def test_a_socket_that_is_not_there_and_one_that_nobody_listens_on_are_told_apart(socket: Path):
    assert (await failure(socket)).reason == "missing"
    async with Kubelet(socket, {}):
        os.link(socket, socket.parent / "left-over")
    assert (await failure(socket.parent / "left-over")).reason == "refused"


async def test_a_socket_that_may_not_be_used_says_which_user_may(socket: Path):
    async with Kubelet(socket, {}):
        socket.chmod(0)  # noqa: ASYNC240 - a moment
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            error = await failure(socket)
        finally:
            os.seteuid(user)
    assert error.reason == "no_permission"
    assert "user 0" in error.sentence


@pytest.mark.parametrize(
    "junk",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", os.urandom(2048), b"\0" * 4096, b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * 9],
)
async def test_a_server_that_speaks_something_else_is_garbage_and_nothing_more(socket: Path, junk: bytes):
    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(junk)

    async with raw_server(socket, serve):
        error = await failure(socket)
    assert error.reason in ("garbage", "connection")


async def test_an_answer_that_is_no_protobuf_is_garbage(socket: Path, monkeypatch: pytest.MonkeyPatch):
    from grpclib.encoding.proto import ProtoCodec  # noqa: PLC0415

    encode = ProtoCodec.encode

    def corrupted(self: ProtoCodec, message: object, kind: type) -> bytes:
        sound = encode(self, message, kind)  # type: ignore[arg-type]
        return b"\x0a\xff\xff\xff\x7f" + sound if sound else sound

    monkeypatch.setattr(ProtoCodec, "encode", corrupted)
    async with Kubelet(socket, ONE_ENGINE):
        assert (await failure(socket)).reason == "garbage"


async def test_a_kubelet_that_hangs_costs_the_deadline_and_the_last_answer_stays(socket: Path):
    async with Kubelet(socket, ONE_ENGINE) as kubelet:
        source = source_of(socket)
        source._guard.deadline_seconds = 5.0
        await once(source)
        kubelet.answers = {"hang": True}
        source._guard.deadline_seconds = 0.1
        await once(source)
        assert source.health()[0].reason == "timeout"
        assert "did not answer within 0.1 s" in source.health()[0].error
        assert source.devices == {LLAMA: Assignment((A,))}


async def test_a_restarted_kubelet_is_asked_again_on_its_new_socket(socket: Path):
    clock = VirtualClock()
    source = source_of(socket, clock, interval_seconds=10.0)
    kubelet = Kubelet(socket, ONE_ENGINE)
    await kubelet.start()
    await once(source)
    await kubelet.stop()
    await once(source)
    assert (source.health()[0].reason, source.health()[0].last_success) == ("missing", clock.wall())
    assert LLAMA in source.devices
    kubelet.answers = {"pod_resources": [pod("qwen", container("vllm", {"nvidia.com/gpu": [A]}))]}
    await kubelet.start()
    await once(source)
    assert source.health()[0].up
    assert list(source.devices) == [ContainerId("serving", "qwen", "vllm")]
    await kubelet.stop()


async def test_what_a_silent_kubelet_said_last_is_dropped_when_it_is_too_old(socket: Path):
    clock = VirtualClock()
    source = source_of(socket, clock)
    async with Kubelet(socket, ONE_ENGINE):
        await once(source)
    await clock.advance(KEEP_SECONDS)
    await once(source)
    assert source.devices == {LLAMA: Assignment((A,))}
    await clock.advance(0.1)
    assert source.devices == {}


async def test_on_auto_a_directory_that_is_not_there_is_told_once_and_used_when_it_appears(tmp_path: Path):
    directory = tmp_path / "pod-resources"
    clock = VirtualClock()
    source = PodDevicesSource(PodResourcesSettings(socket_dir=directory), clock, names=KernelNames)
    with capture_logs() as logs:
        task = asyncio.create_task(source.run())
        await until(lambda: bool(clock._sleepers))
        for _ in range(3):
            await clock.advance(30)
            await until(lambda: bool(clock._sleepers))
        assert source.health() == ()
        assert [(log["event"], log["reason"]) for log in logs] == [
            ("the kubelet's pod-resources are not read", "No such file or directory")
        ]
        directory.mkdir()
        async with Kubelet(directory / "kubelet.sock", ONE_ENGINE):
            await clock.advance(30)
            await until(lambda: bool(source.health()) and bool(clock._sleepers))
            await clock.advance(10)
            await until(lambda: bool(source.devices))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert source.health()[0].up


async def test_switched_on_a_missing_directory_is_a_failure_and_switched_off_nothing_runs(tmp_path: Path):
    source = source_of(tmp_path / "nowhere" / "kubelet.sock")
    await once(source)
    assert source.health()[0].reason == "missing"
    off = PodDevicesSource(PodResourcesSettings(socket_dir=tmp_path, enabled="false"))
    await off.run()
    assert (off.health(), dict(off.devices)) == ((), {})


async def test_kernel_names_that_hang_delay_an_answer_and_do_not_keep_it(socket: Path):
    release = asyncio.Event()
    loop = asyncio.get_running_loop()
    started: list[int] = []

    def hangs() -> KernelNames:
        started.append(1)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        return KernelNames(nvidia_minors={0: B})

    device = {"driver_name": "gpu.nvidia.com", "device_name": "gpu-0"}
    answers = {"pod_resources": [pod("llama-0", container("vllm", None, claim(device)))]}
    source = PodDevicesSource(PodResourcesSettings(socket_dir=socket.parent, enabled="true"), names=hangs)
    source._guard.deadline_seconds = 4.0
    async with Kubelet(socket, answers):
        await once(source)
        await once(source)
        assert source.devices[LLAMA].gpus == ("0",)
        assert len(started) == 1
        source._guard.deadline_seconds = 60.0
        release.set()
        await once(source)
        assert source.devices[LLAMA].gpus == (B,)


async def test_a_process_that_never_asks_loads_neither_grpc_nor_protobuf():
    code = (
        "import sys; from kvpressure.sources.pod_devices import PodDevicesSource;"
        "from kvpressure.config.settings.model import PodResourcesSettings as S; PodDevicesSource(S());"
        "print([name for name in sys.modules if name.split('.')[0] in ('grpclib', 'h2') or 'protobuf' in name])"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    assert printed.decode().strip() == "[]"


async def test_the_stub_runs_as_a_process_and_follows_its_answers_file(socket: Path, tmp_path: Path):
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps(ONE_ENGINE))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.stubs.kubelet", str(socket), str(answers)),
        cwd=Path(__file__).parents[2],
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await process.stdout.readline()
        assert [c.id for c in await list_devices(socket)] == [LLAMA]
        answers.write_text(json.dumps({"pod_resources": []}))
        assert await list_devices(socket) == ()
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
    assert process.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["answers.json"]  # noqa: ASYNC240
