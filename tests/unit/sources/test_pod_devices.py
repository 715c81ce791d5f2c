import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.config.settings import ConfigError
from kvpressure.config.settings.keys import validate
from kvpressure.config.settings.model import PodResourcesSettings
from kvpressure.config.strict_yaml import Problem
from kvpressure.model.environment import Assignment, ContainerId
from kvpressure.model.samples import GpuSample
from kvpressure.sources.pod_devices.assign import assignments, resolve
from kvpressure.sources.pod_devices.ids import (
    ClaimDevice,
    ContainerDevices,
    KernelNames,
    KubeletAnswer,
    PluginDevice,
    claimed_gpus,
    nvidia_uuid,
    pci_address,
    plugin_gpu,
)

A, B = "GPU-8f2c1d5e-0b1a-4c2d-9e3f-0123456789ab", "GPU-9a3b7c5d-1122-3344-5566-778899aabbcc"
MIG = "MIG-1c0f2a3b-4d5e-6f70-8192-a3b4c5d6e7f8"
OLD_MIG = f"MIG-{A}/7/0"
NVIDIA = KernelNames(nvidia_minors={0: B, 1: A})
AMD = KernelNames(
    amd={"amdgpu_xcp_1": "0000:05:00.0/1", "renderD128": "0000:05:00.0/0", "renderD136": "0000:15:00.0"},
    amd_order=("0000:05:00.0/0", "0000:05:00.0/1", "0000:15:00.0"),
)
PATTERNS = PodResourcesSettings().resource_names
LLAMA, QWEN = ContainerId("serving", "llama-0", "vllm"), ContainerId("serving", "qwen", "vllm")


def answer_of(answer: dict[ContainerId, list[str]], resource: str = "nvidia.com/gpu") -> KubeletAnswer:
    containers = (
        ContainerDevices(container, tuple(PluginDevice(resource, gpu) for gpu in ids))
        for container, ids in answer.items()
    )
    return tuple(containers)


def claimed(device: str, *cdi: str, driver: str = "gpu.nvidia.com", share: str = "") -> ClaimDevice:
    return ClaimDevice("serving/gpu", driver, device, cdi, share)


def of(answer: KubeletAnswer, names: KernelNames = KernelNames()) -> dict[ContainerId, Assignment]:  # noqa: B008
    return assignments(answer, PATTERNS, names)


@pytest.mark.parametrize(
    ("device_id", "name", "shared"),
    [
        (A, A, False),
        (A.upper(), A, False),
        (MIG, MIG, False),
        (OLD_MIG, OLD_MIG, False),
        ("0", "0", False),
        ("0:1", "0:1", False),
        ("nvidia3", "3", False),
        ("nvidia3/vgpu0", "3", True),
        (f"{A}::0", A, True),
        (f"{MIG}::11", MIG, True),
        (f"{OLD_MIG}::1", OLD_MIG, True),
        ("0000:c1:00.0", "0000:c1:00.0", False),
        ("00000000:C1:00.0", "0000:c1:00.0", False),
        ("0000:c1:00.0-slice-2", "0000:c1:00.0", True),
    ],
)
def test_the_ids_of_known_plugins_name_a_gpu_and_replicas_are_shared(device_id: str, name: str, shared: bool):
    gpu = plugin_gpu(PluginDevice("nvidia.com/gpu", device_id), KernelNames())
    assert (gpu.name, bool(gpu.shared), gpu.unknown) == (name, shared, "")


@pytest.mark.parametrize(
    ("device_id", "words"),
    [
        ("nvidia0/gi1", "GPU instance"),
        ("nvidia0/gi1/vgpu2", "GPU instance"),
        ("amdgpu_xcp_9", "topology"),
        ("nvidia7", "device minor 7"),
        ("/dev/dri/card0", "no form known"),
        ("", "no form known"),
        ("x" * 5000, "no form known"),
    ],
)
def test_an_id_that_names_no_gpu_says_why_in_one_short_sentence(device_id: str, words: str):
    gpu = plugin_gpu(PluginDevice("nvidia.com/gpu", device_id), NVIDIA)
    assert gpu.name == ""
    assert words in gpu.unknown
    assert len(gpu.unknown) < 250


def test_a_renamed_resource_is_shared_whatever_its_ids_look_like():
    assert plugin_gpu(PluginDevice("nvidia.com/gpu.shared", A), KernelNames()).shared
    assert plugin_gpu(PluginDevice("nvidia.com/mig-1g.5gb.shared", MIG), KernelNames()).shared


def test_a_device_minor_is_the_drivers_uuid_where_the_driver_tells_and_not_the_index():
    assert plugin_gpu(PluginDevice("nvidia.com/gpu", "nvidia0"), NVIDIA).name == B


def test_amd_partitions_are_named_by_the_address_of_their_card_and_their_number():
    named = [
        plugin_gpu(PluginDevice("amd.com/cpx_nps4", device), AMD).name
        for device in ("0000:05:00.0", "amdgpu_xcp_1", "0000:15:00.0")
    ]
    assert named == ["0000:05:00.0/0", "0000:05:00.0/1", "0000:15:00.0"]


@pytest.mark.parametrize(
    ("device", "names", "gpus"),
    [
        (claimed("gpu-1"), KernelNames(), ["1"]),
        (claimed("gpu-1", "k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-gpu-1"), NVIDIA, [A]),
        (claimed("device-0", f"nvidia.com/gpu={A}"), KernelNames(), [A]),
        (claimed("gpu-0-mig-1g10gb-19-0", f"nvidia.com/gpu={MIG}"), KernelNames(), [MIG]),
        (claimed("some-name", "nvidia.com/gpu=3"), KernelNames(), ["3"]),
        (claimed("gpu-8-136", driver="gpu.amd.com"), AMD, ["0000:15:00.0"]),
        (claimed("b", f"nvidia.com/gpu={A}", f"nvidia.com/gpu={B}"), KernelNames(), [A, B]),
    ],
)
def test_a_claimed_device_is_known_by_its_name_or_its_cdi_names(
    device: ClaimDevice, names: KernelNames, gpus: list[str]
):
    assert [gpu.name for gpu in claimed_gpus(device, names)] == gpus


@pytest.mark.parametrize(
    "device",
    [
        claimed("gpu-0-mig-1g10gb-19-0", "k8s.gpu.nvidia.com/device=gpu-0-mig-1g10gb-19-0"),
        claimed("gpu-vfio-0"),
        claimed("x", "nvidia.com/gpu=0", "nvidia.com/gpu=1"),
        claimed("x", "nvidia.com/gpu=all"),
        claimed("gpu-8-999", driver="gpu.amd.com"),
        claimed(""),
    ],
)
def test_a_claimed_device_that_is_not_known_makes_the_containers_gpus_unknown(device: ClaimDevice):
    answer = (ContainerDevices(LLAMA, (PluginDevice("nvidia.com/gpu", A),), (device,)),)
    assignment = of(answer, AMD)[LLAMA]
    assert (assignment.gpus, assignment.exclusive) == ((), False)
    assert assignment.why.endswith(("uuid or index", "as the exporter sees it"))


def test_claims_on_devices_of_other_drivers_are_no_gpus():
    card = claimed("nic-0", driver="dra.net")
    assert of((ContainerDevices(LLAMA, (), (card,)),)) == {}


def test_a_claim_of_two_containers_and_a_share_of_a_device_are_not_exclusive():
    both = tuple(ContainerDevices(c, (), (claimed("gpu-0"),)) for c in (LLAMA, QWEN))
    assert {a.exclusive for a in of(both).values()} == {False}
    share = (ContainerDevices(LLAMA, (), (claimed("gpu-0", share="6d2f"),)),)
    assert of(share)[LLAMA] == Assignment(
        ("0",), exclusive=False, why="the claim serving/gpu holds a share of the device gpu-0"
    )


def test_a_container_alone_on_its_gpus_has_them_in_the_kubelets_order_and_exclusively():
    assert of(answer_of({LLAMA: [B, A], QWEN: [MIG]})) == {LLAMA: Assignment((B, A)), QWEN: Assignment((MIG,))}


def test_one_device_of_three_containers_is_exclusive_to_none_and_says_to_whom_else_it_belongs():
    found = of(answer_of({LLAMA: [A, B], QWEN: [A], ContainerId("x", "y", "z"): [A]}))
    assert [a.exclusive for a in found.values()] == [False, False, False]
    assert found[LLAMA].why == f"GPU {A} is held by serving/qwen/vllm and 1 more too"
    assert found[QWEN].why == f"GPU {A} is held by serving/llama-0/vllm and 1 more too"


def test_two_replicas_of_one_gpu_in_one_container_are_one_gpu_and_shared():
    found = of(answer_of({LLAMA: [f"{A}::0", f"{A}::1"]}))[LLAMA]
    assert (found.gpus, found.exclusive) == ((A,), False)
    assert "::0 is one of several shares" in found.why


def test_only_resources_that_match_a_pattern_are_gpus():
    gpus = ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "amd.com/gpu", "amd.com/cpx_nps4")
    for resource in gpus:
        assert LLAMA in of(answer_of({LLAMA: [A]}, resource)), resource
    for resource in ("rdma/hca", "nvidia.com/gpu2", "xnvidia.com/gpu", "NVIDIA.com/gpu"):
        assert of(answer_of({LLAMA: ["mlx5_0"]}, resource)) == {}, resource
    assert assignments(answer_of({LLAMA: [A]}, "example.com/gpu"), ["example.com/*"], KernelNames())[LLAMA].gpus == (A,)


def test_a_container_that_has_ended_shares_nothing_with_the_one_that_follows():
    answer = answer_of({LLAMA: [A], QWEN: [A]})
    assert assignments(answer, PATTERNS, KernelNames(), LLAMA.__eq__) == {QWEN: Assignment((A,))}


def gpu(uuid: str, index: str, vendor: str = "nvidia", parent: str = "") -> GpuSample:
    return GpuSample(0.0, uuid, index, vendor, parent_uuid=parent)


READ = (
    gpu(A, "0"),
    gpu(B, "1"),
    gpu(MIG, "1:0", parent=B),
    gpu("0000:05:00.0/0", "0:0", "amd", "0000:05:00.0"),
    gpu("0000:05:00.1/1", "0:1", "amd", "0000:05:00.0"),
    gpu("0000:c1:00.0", "1", "amd"),
)


@pytest.mark.parametrize(
    ("assigned", "uuids"),
    [
        ((A,), (A,)),
        ((B, A), (B, A)),
        ((A.lower(),), (A,)),
        ((MIG,), (MIG,)),
        (("0",), (A,)),
        (("1:0",), (MIG,)),
        (("0000:C1:00.0",), ("0000:c1:00.0",)),
        (("0000:05:00.0",), ("0000:05:00.0/0",)),
        (("0000:05:00.0/1",), ("0000:05:00.1/1",)),
        ((A[:12],), (A,)),
        (("0", A), (A,)),
        (("1",), None),
        ((A, "GPU-gone"), None),
        (("0000:ff:00.0",), None),
        (("GPU-",), None),
        ((), None),
    ],
)
def test_an_assignment_means_gpus_that_were_read_all_of_them_or_none(
    assigned: tuple[str, ...], uuids: tuple[str, ...] | None
):
    assert resolve(Assignment(assigned), READ) == uuids


HEX = st.text("0123456789abcdefABCDEF", min_size=32, max_size=32)


@given(HEX, st.integers(0, 99), st.sampled_from(["GPU", "MIG"]))
def test_every_uuid_is_found_in_plain_and_replicated_ids_whatever_its_case(digits: str, replica: int, kind: str):
    uuid = f"{kind}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    for text in (uuid, f"{uuid}::{replica}"):
        found = plugin_gpu(PluginDevice("nvidia.com/gpu", text), KernelNames())
        assert found.name == f"{kind}-{uuid[4:].lower()}"
    assert nvidia_uuid(nvidia_uuid(uuid)) == nvidia_uuid(uuid)


@given(st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7), st.booleans())
def test_a_pci_address_has_one_form_in_every_spelling(domain: int, bus: int, device: int, function: int, nvml: bool):
    kernel = f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
    written = f"{domain:08X}:{bus:02X}:{device:02X}.{function}" if nvml else kernel
    assert pci_address(written) == kernel


IDS = st.one_of(
    st.text(max_size=30),
    st.sampled_from([A, B, MIG, f"{A}::0", f"{A}::1", "0", "1", "nvidia0", "nvidia0/gi1", "0000:05:00.0-slice-1"]),
)
CONTAINERS = st.dictionaries(st.builds(ContainerId, st.just("ns"), st.text(max_size=3), st.just("c")), st.lists(IDS))


@given(CONTAINERS, st.sampled_from([KernelNames(), NVIDIA, AMD]))
def test_whatever_the_kubelet_lists_every_assignment_is_known_and_exclusive_or_says_why_not(
    containers: dict[ContainerId, list[str]], names: KernelNames
):
    found = of(answer_of(containers), names)
    assert found.keys() == {container for container, ids in containers.items() if ids}
    for container, assignment in found.items():
        assert assignment.exclusive == (not assignment.why)
        assert assignment.gpus or assignment.why
        assert len(set(assignment.gpus)) == len(assignment.gpus)
        others = {gpu for other, a in found.items() if other != container for gpu in a.gpus}
        assert not (assignment.exclusive and others & set(assignment.gpus))


def settings(**data: object) -> PodResourcesSettings:
    return validate(PodResourcesSettings, data, lambda path, text: Problem("", None, ".".join(map(str, path)), text))


def test_the_switch_is_the_same_word_with_and_without_quotes():
    assert [settings(enabled=word).enabled for word in (True, False, "true", "auto")] == [
        "true",
        "false",
        "true",
        "auto",
    ]


def test_resource_names_may_be_a_list_or_words_between_commas():
    assert settings(resource_names="a.com/gpu, b.com/*").resource_names == ("a.com/gpu", "b.com/*")
    assert settings(resource_names=["a.com/gpu"]).resource_names == ("a.com/gpu",)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"enabled": "maybe"}, "enabled: must be"),
        ({"resource_names": []}, "at least one entry"),
        ({"resource_names": ["gpu"]}, "such as nvidia.com/gpu"),
        ({"resource_names": ["a b/c"]}, "such as nvidia.com/gpu"),
        ({"interval_seconds": 0.1}, "at least 1"),
        ({"socket": "/x"}, "unknown key"),
    ],
)
def test_settings_that_mean_nothing_say_what_to_write(data: dict[str, object], words: str):
    with pytest.raises(ConfigError) as caught:
        settings(**data)
    assert words in str(caught.value.problems[0])
