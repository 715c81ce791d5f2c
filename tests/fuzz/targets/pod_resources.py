"""The kubelet's answer: no protobuf, or assignments that name each GPU once and say why where they do not know."""

from random import Random

from google.protobuf.message import DecodeError

from kvpressure.sources.pod_devices import kubelet as messages
from kvpressure.sources.pod_devices.assign import assignments
from kvpressure.sources.pod_devices.ids import GPU_DRIVERS, KernelNames, nvidia_uuid, pci_address
from kvpressure.sources.pod_devices.kubelet import _containers
from tests.fuzz.target import Target, expect
from tests.fuzz.yamls import FIXTURES

_UUID = "GPU-8f6d7a4c-8f1c-4bd7-9c1a-0123456789ab"
_IDS = (
    *(
        _UUID,
        f"MIG-{_UUID[4:]}",
        f"MIG-{_UUID}/1/0",
        f"{_UUID}::3",
        "0000:c1:00.0",
        "00000000:C1:00.0",
        "0",
        "0:1",
        "\u0663",
    ),
    *(
        "nvidia0",
        "nvidia0/gi3",
        "nvidia0/vgpu1",
        "gpu-0",
        "gpu-1-129",
        "amdgpu_xcp_3",
        "",
        " ",
        "x" * 300,
        "\u2028",
        "-slice-1",
        "::",
    ),
)
_NAMES = (
    KernelNames(),
    KernelNames(
        {0: _UUID, 1: "x"}, frozenset({"H100"}), {"renderD129": "0000:c1:00.0/1"}, ("0000:c1:00.0/0", "0000:c1:00.0/1")
    ),
)
_PATTERNS = ("nvidia.com/*", "amd.com/gpu")


def check(data: bytes) -> tuple[object, ...]:
    """The bytes as the kubelet's answer."""
    kinds: list[object] = []
    try:
        listed = tuple(_containers(messages.ListPodResourcesResponse.FromString(data)))
    except DecodeError:
        listed, kinds = (), ["no list"]
    for names in _NAMES:
        found = assignments(listed, _PATTERNS, names)
        for one in found.values():
            expect(len(set(one.gpus)) == len(one.gpus) and all(one.gpus), "a GPU twice, or without a name", one)
            expect(one.gpus or one.why, "nothing is known, and nobody says why", one)
            expect(one.exclusive == (not one.why), "shared without a reason, or the reverse", one)
            expect(len(one.why) < 2000, "a sentence without an end", len(one.why))
        kinds += [len(found).bit_length(), any(one.exclusive for one in found.values())]
    for device in (device for container in listed for device in container.plugin):
        address = pci_address(device.id)
        expect(not address or pci_address(address) == address, "an address that is read otherwise again", address)
        uuid = nvidia_uuid(device.id)
        expect(not uuid or nvidia_uuid(uuid) == uuid, "a uuid that is read otherwise again", uuid)
    return tuple(kinds)


def make(random: Random) -> bytes:
    """An answer with some pods."""
    listed = messages.ListPodResourcesResponse()
    for _ in range(1 + random.getrandbits(1)):
        pod = listed.pod_resources.add(name=random.choice(("p", "q", "")), namespace="n")
        for _ in range(1 + random.getrandbits(1)):
            container = pod.containers.add(name=random.choice(("c", "d")))
            for _ in range(random.getrandbits(1)):
                container.devices.add(
                    resource_name=_resource(random), device_ids=random.choices(_IDS, k=random.getrandbits(2))
                )
            for _ in range(random.getrandbits(1)):
                claim = container.dynamic_resources.add(claim_name="x", claim_namespace="n").claim_resources.add(
                    driver_name=random.choice((*GPU_DRIVERS, "x")),
                    device_name=random.choice(_IDS),
                    share_id=random.choice(("", "s")),
                )
                claim.cdi_devices.add(name=f"k8s.gpu.nvidia.com/device={random.choice(_IDS)}")
    return bytes(listed.SerializeToString())


def _resource(random: Random) -> str:
    return random.choice(("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "amd.com/gpu", "x/y"))


TARGET = Target(
    about="the kubelet's pod-resources answers as assignments of GPUs",
    make=make,
    check=check,
    seeds=lambda: [path.read_bytes()[:4096] for path in sorted((FIXTURES / "pod_resources").glob("*.bin"))],
    words=(
        *(text.encode() for text in _IDS if len(text) < 60),
        b"\x0a\x04",
        b"\xff" * 9 + b"\x01",
        b"\x12\x80\x80\x80\x80\x08",
        b"\x0b",
        b"\x0c",
    ),
    longest_bytes=2000,
)
