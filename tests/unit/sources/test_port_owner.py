import asyncio
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.commandline.words import Budget
from kvpressure.config.target import Target
from kvpressure.launch import read_start
from kvpressure.runtimes.registry import ASSUMED
from kvpressure.sources.pod_devices.ids import PROC, KernelNames, read_kernel_names
from kvpressure.sources.pod_devices.processes import (
    UnknownGpusError,
    argv_of,
    holders_of,
    listening,
    parents_of_all,
    root_of,
    visible_gpus,
)
from kvpressure.sources.port_owner import LocalProcesses, find_owners, gpu_count
from kvpressure.sources.source import Known
from tests.support.engine_kit import VirtualClock


def command_line(port: int, proc: Path = PROC) -> list[str] | None:
    """The command line of the process that listens on the port, None if nobody does or it may not be read."""
    pids = {pid for pids in holders_of(listening((port,), proc)[port], proc).values() for pid in pids}
    root = root_of(pids, parents_of_all(proc))
    return (argv_of(root, proc) or None) if root is not None else None


A, B, C = (f"GPU-{digit * 8}-0000-0000-0000-000000000000" for digit in "abc")
SERVE = ["python", "vllm", "serve", "m", "--port", "8000"]


class Machine:
    """A directory that looks like the /proc and /sys of a machine."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sys = root / "proc", root / "sys"
        (self.proc / "net").mkdir(parents=True)
        self.sys.mkdir()
        (self.proc / "net" / "tcp").write_text("  sl  local_address rem_address   st ...\n")

    def process(
        self,
        pid: int,
        parent: int = 1,
        argv: Sequence[str] = SERVE,
        opened: Sequence[str] | None = (),
        environ: Mapping[str, str] = {},
    ) -> None:
        home = self.proc / str(pid)
        home.mkdir()
        (home / "stat").write_text(f"{pid} (VLLM::Engine (0) x) S {parent} 1 1 0 -1")
        (home / "cmdline").write_text("".join(f"{arg}\0" for arg in argv))
        if opened is None:
            return
        (home / "environ").write_text("".join(f"{name}={value}\0" for name, value in environ.items()))
        (home / "fd").mkdir()
        for number, target in enumerate(opened):
            (home / "fd" / str(number)).symlink_to(target)

    def listens(self, port: int, inode: int, uid: int = 1000, table: str = "tcp", state: str = "0A") -> None:
        with (self.proc / "net" / table).open("a") as file:
            if table == "tcp6" and not file.tell():
                file.write("  sl  header\n")
            file.write(f"   0: 0100007F:{port:04X} 00000000:0000 {state} 0:0 00:0 0 {uid} 0 {inode} 1 0\n")

    def nvidia(self, *cards: tuple[int, str], model: str = "NVIDIA H100") -> None:
        for minor, uuid in cards:
            home = self.proc / "driver" / "nvidia" / "gpus" / f"0000:{minor + 16:02x}:00.0"
            home.mkdir(parents=True)
            text = f"Model: \t\t {model}\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
            (home / "information").write_text(text)

    def kfd(self, node: int, minor: int, bus: int, partition: int = 0) -> None:
        home = self.sys / "class" / "kfd" / "kfd" / "topology" / "nodes" / str(node)
        home.mkdir(parents=True)
        location = bus << 8 | partition << 28
        home.joinpath("properties").write_text(
            f"simd_count 304\nlocation_id {location}\ndomain 0\ndrm_render_minor {minor}\n"
        )

    def xcp(self, number: int, minor: int) -> None:
        (self.sys / "devices/platform" / f"amdgpu_xcp_{number}" / "drm" / f"renderD{minor}").mkdir(parents=True)

    def owner(self, port: int = 8000):
        return find_owners([port], self.proc, self.sys)[port]

    def names(self) -> KernelNames:
        return read_kernel_names(self.proc, self.sys)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def engine(machine: Machine, argv: Sequence[str] = SERVE, worker: Sequence[str] = (), **environ: str) -> None:
    """An API server on port 8000 whose engine, a child, has the GPUs open."""
    machine.listens(8000, 555)
    machine.process(10, argv=argv, opened=["socket:[555]", "/dev/null"], environ=environ)
    machine.process(11, 10, ["VLLM::EngineCore"], ["/dev/nvidiactl", "/dev/nvidia-uvm", *worker], environ)


def test_the_gpu_that_a_child_of_the_listener_has_open_is_named_by_its_uuid(machine: Machine):
    machine.nvidia((0, B), (1, A))
    engine(machine, worker=["/dev/nvidia1"])
    owner = machine.owner()
    assert (owner.pid, owner.assignment.gpus, owner.assignment.exclusive) == (10, (A,), True)


def test_an_ipv6_listener_counts_and_a_connection_to_the_port_does_not(machine: Machine):
    machine.listens(8000, 7, state="01")
    machine.listens(8001, 8)
    machine.process(9, opened=["socket:[7]", "socket:[8]"])
    assert machine.owner().pid is None
    machine.listens(8000, 9, table="tcp6")
    machine.process(12, opened=["socket:[9]"])
    assert machine.owner().pid == 12


def test_visible_devices_win_over_open_ones_and_are_cut_to_the_ranks(machine: Machine):
    machine.nvidia((0, A), (1, B), (2, C))
    argv = [*SERVE, "--tensor-parallel-size=2"]
    engine(machine, argv, ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"], CUDA_VISIBLE_DEVICES="2,1,0")
    assert machine.owner().assignment.gpus == ("2", "1")


def test_what_each_data_parallel_rank_sees_adds_up_when_the_server_itself_sees_all(machine: Machine):
    machine.listens(8000, 555)
    machine.process(10, argv=[*SERVE, "-dp", "2"], opened=["socket:[555]"])
    machine.process(11, 10, opened=["/dev/nvidia0"], environ={"CUDA_VISIBLE_DEVICES": "0"})
    machine.process(12, 10, opened=["/dev/nvidia1"], environ={"CUDA_VISIBLE_DEVICES": "1"})
    assert machine.owner().assignment.gpus == ("0", "1")


def test_more_open_devices_than_ranks_tell_nothing(machine: Machine):
    engine(machine, worker=["/dev/nvidia0", "/dev/nvidia1"])
    found = machine.owner()
    assert (found.pid, found.assignment.gpus, found.assignment.exclusive) == (10, (), False)
    assert "2 GPUs open" in found.assignment.why
    assert found.limits == ()


@pytest.mark.parametrize(
    ("argv", "declared"),
    [
        ([*SERVE, "--max-num-seqs=8"], [("max_num_seqs", 8)]),
        (SERVE, []),
        ([*SERVE, "--config", "/etc/vllm.yaml"], None),
        (["python", "-m", "http.server"], None),
    ],
)
def test_the_limits_of_an_engine_are_those_of_its_command_line(
    machine: Machine, argv: list[str], declared: list[tuple[str, float]] | None
):
    engine(machine, argv)
    limits = machine.owner().limits
    assert limits is declared is None or [(limit.name, limit.value) for limit in limits] == declared


@pytest.mark.fault(
    "a process on an engine's port has a command line of megabytes",
    "its limits are unknown, and the event loop is not delayed",
)
def test_a_command_line_of_megabytes_declares_nothing(machine: Machine):
    engine(machine, [*SERVE, "--max-num-seqs=8", *["x"] * 400_000])
    assert machine.owner().limits is None


def test_as_many_open_devices_as_ranks_are_the_engines(machine: Machine):
    engine(machine, [*SERVE, "-tp", "2"], worker=["/dev/nvidia0", "/dev/nvidia1"])
    assert machine.owner().assignment.gpus == ("0", "1")


def test_a_process_of_another_user_is_not_known_and_the_sentence_says_whose(machine: Machine):
    machine.listens(8000, 555, uid=4711)
    machine.process(10, opened=None)
    owner = machine.owner()
    assert (owner.pid, owner.assignment.gpus) == (None, ())
    assert "user 4711" in owner.assignment.why
    assert command_line(8000, machine.proc) is None


def test_nobody_on_the_port_and_two_strangers_on_it_are_both_not_known(machine: Machine):
    assert "no process of this machine listens on port 8000" in machine.owner().assignment.why
    for pid in (20, 21):
        machine.listens(8000, pid)
        machine.process(pid, opened=[f"socket:[{pid}]"])
    assert "several processes" in machine.owner().assignment.why


def test_api_servers_that_share_the_socket_belong_to_the_process_they_descend_from(machine: Machine):
    machine.listens(8000, 555)
    machine.process(10, opened=["socket:[555]"])
    for pid, parent in ((11, 10), (12, 10), (13, 12)):
        machine.process(pid, parent, ["worker"], ["socket:[555]"])
    assert machine.owner().pid == 10
    assert command_line(8000, machine.proc) == SERVE


def test_engines_on_the_same_gpu_are_not_exclusive(machine: Machine):
    machine.nvidia((0, A))
    for port in (8000, 8001):
        machine.listens(port, port)
        machine.process(port, opened=[f"socket:[{port}]", "/dev/nvidia0"])
    found = find_owners([8000, 8001, 8002], machine.proc, machine.sys)
    assert [found[port].assignment.exclusive for port in (8000, 8001, 8002)] == [False, False, False]
    assert found[8000].assignment.gpus == (A,)
    assert found[8000].assignment.why == f"GPU {A} is used by the process on port 8001 too"


def test_amd_gpus_are_known_by_their_render_nodes_and_counted_in_the_drivers_order(machine: Machine):
    for node, minor, bus, partition in ((1, 128, 5, 0), (2, 129, 5, 1), (10, 136, 0x15, 0)):
        machine.kfd(node, minor, bus, partition)
    machine.xcp(1, 129)
    names = machine.names()
    assert names.amd_order == ("0000:05:00.0/0", "0000:05:00.0/1", "0000:15:00.0")
    assert names.amd["amdgpu_xcp_1"] == names.amd["renderD129"] == "0000:05:00.0/1"
    machine.listens(8000, 555)
    machine.process(10, opened=["socket:[555]", "/dev/kfd", "/dev/dri/renderD129"])
    assert machine.owner().assignment.gpus == ("0000:05:00.0/1",)
    assert visible_gpus({"HIP_VISIBLE_DEVICES": "2"}, names, amd=True) == ("0000:15:00.0",)
    chosen = {"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}
    assert visible_gpus(chosen, names, amd=True) == ("0000:15:00.0",)


def test_a_node_without_cards_or_with_broken_files_has_no_names(machine: Machine):
    assert machine.names() == KernelNames()
    assert machine.names().empty
    machine.nvidia((0, A))
    machine.kfd(0, 0, 0)
    information = next(machine.proc.glob("driver/nvidia/gpus/*/information"))
    information.write_bytes(b"\xff\xfe Device Minor: x\nGPU UUID:\n")
    assert machine.names() == KernelNames(nvidia_minors={})


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "0, 2"}, ("0", "2")),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, ("0",)),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"CUDA_VISIBLE_DEVICES": A.upper()}, (A,)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}, ("GPU-aaaa",)),
        ({"CUDA_VISIBLE_DEVICES": "1", "NVIDIA_VISIBLE_DEVICES": f"{B},{C}"}, (C,)),
        ({"CUDA_VISIBLE_DEVICES": "1", "NVIDIA_VISIBLE_DEVICES": "all"}, ("1",)),
    ],
)
def test_cudas_variables_are_read_as_cuda_reads_them(environ: dict[str, str], gpus: tuple[str, ...] | None):
    assert visible_gpus(environ, KernelNames(), amd=False) == gpus


def test_numbers_that_cannot_be_followed_are_refused_with_a_sentence():
    mixed = KernelNames(nvidia_models=frozenset({"RTX 3090", "GTX 1080"}))
    with pytest.raises(UnknownGpusError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}, mixed, amd=False)
    ordered = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_gpus(ordered, mixed, amd=False) == ("0",)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": A}, mixed, amd=False) == (A,)
    with pytest.raises(UnknownGpusError, match="names 1 GPUs"):
        visible_gpus({"CUDA_VISIBLE_DEVICES": "3", "NVIDIA_VISIBLE_DEVICES": A}, KernelNames(), amd=False)
    with pytest.raises(UnknownGpusError, match="topology"):
        visible_gpus({"HIP_VISIBLE_DEVICES": "0"}, KernelNames(), amd=True)
    with pytest.raises(UnknownGpusError, match="not numbers"):
        visible_gpus({"HIP_VISIBLE_DEVICES": "5"}, KernelNames(amd_order=("0000:05:00.0",)), amd=True)


@pytest.mark.parametrize(
    ("args", "count"),
    [
        ("", 1),
        ("--tensor-parallel-size 4", 4),
        ("--tensor_parallel_size=4 -pp 2", 8),
        ("-tp=2 -dp 3", 6),
        ("--data-parallel-size 16 --data-parallel-size-local 2", 2),
        ("-tp 2 -tp 4", 4),
        ("-tp", None),
        ("-tp x", None),
        ("-tp 0", None),
        ("--config engine.yaml -tp 2", None),
    ],
)
def test_the_ranks_of_a_command_line_are_counted_in_every_spelling(args: str, count: int | None):
    assert gpu_count(read_start(SERVE[:1], [*SERVE[1:], *args.split()], {}, Budget()), ASSUMED) == count


@given(st.lists(st.text(max_size=12)), st.dictionaries(st.text(max_size=25), st.text(max_size=25)))
def test_no_command_line_and_no_environment_is_too_strange(argv: list[str], environ: dict[str, str]):
    count = gpu_count(read_start(argv[:1], argv[1:], {}, Budget()), ASSUMED)
    assert count is None or count >= 1
    for amd in (False, True):
        with suppress(UnknownGpusError):
            visible_gpus(environ, KernelNames(), amd=amd)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists() and not os.environ.get("CI"), reason="needs Linux's /proc")
def test_this_very_process_is_found_on_a_port_that_it_listens_on():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        owner = find_owners([port])[port]
        assert owner.pid == os.getpid()
        assert Path(command_line(port)[0]).name.startswith(Path(sys.executable).name[:6])


async def test_owners_are_looked_up_at_once_and_again_after_half_a_minute(machine: Machine):
    clock = VirtualClock()
    processes = LocalProcesses(clock, proc=machine.proc, sys=machine.sys)
    task = asyncio.create_task(processes.run())
    try:
        assert processes.health() == ()
        await looked(clock, processes, {8000})
        engine(machine, worker=["/dev/nvidia0"])
        await looked(clock, processes, {8000, 9000})
        assert processes._owners[8000].pid == 10
        assert processes.health()[0].up
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def looked(clock: VirtualClock, processes: LocalProcesses, ports: set[int]) -> None:
    known = Known(targets=[Target(f"engine-{port}", f"http://localhost:{port}") for port in ports])
    async with asyncio.timeout(200):
        while len(processes.facts(known).devices) != len(ports):
            await clock.advance(30)
            await asyncio.sleep(0.01)
