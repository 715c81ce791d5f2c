import pytest

from kvpressure.capacity.arithmetic import GIB
from kvpressure.capacity.gpus import GPUS, gpu_named


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H100", "H100"),
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("nvidia-h100-mega-80gb", "H100"),
        ("nvidia-h200-141gb", "H200"),
        ("A100-80G", "A100-80"),
        ("NVIDIA-A100-PCIE-40GB", "A100-40"),
        ("nvidia-tesla-a100", "A100-40"),
        ("NVIDIA-L40S", "L40S"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("NVIDIA-A10G", "A10"),
        ("Tesla-T4", "T4"),
        ("NVIDIA-RTX-6000-Ada-Generation", "RTX-6000-ADA"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("rtx5090", "RTX-5090"),
        ("NVIDIA-B300-SXM6-AC", "B300"),
        ("NVIDIA-GH200-480GB", "GH200"),
        *(("p4d.24xlarge", "A100-40"), ("p4de.24xlarge", "A100-80"), ("p5en.48xlarge", "H200"), ("g6e.xlarge", "L40S")),
        *(("a2-ultragpu-8g", "A100-80"), ("a3-megagpu-8g", "H100"), ("g2-standard-12", "L4")),
        *(("Standard_NC24ads_A100_v4", "A100-80"), ("Standard_ND96asr_v4", "A100-40"), ("p6-b200.48xlarge", "B200")),
    ],
)
def test_a_part_is_known_by_the_names_it_has_in_labels(text: str, name: str) -> None:
    found = gpu_named(text)
    assert found.name == name


@pytest.mark.parametrize(
    "text",
    [
        *("A100", "H100-NVL", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "nvidia-h100-96gb", "V9", ""),
        *(
            "m5.large",
            "g5g.xlarge",
            "n1-standard-8",
            "NVIDIA-H20-3e",
            "NVIDIA GH200 144G HBM3e",
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            "NVIDIA GB300",
        ),
    ],
)
def test_what_may_be_several_parts_or_a_slice_of_one_is_not_guessed(text: str) -> None:
    assert gpu_named(text) is None


def test_the_memory_is_what_a_process_sees_and_not_what_the_product_is_called() -> None:
    assert GPUS["H100"].memory_bytes / GIB == 79.10
    assert all(gpu_named(name) is gpu for name, gpu in GPUS.items())
    sold = {"H100": 80, "H200": 141, "A100-80": 80, "A100-40": 40, "L40S": 48, "B200": 192, "T4": 16, "L4": 24}
    assert all(GPUS[name].memory_bytes < size * 1e9 * 1.074 for name, size in sold.items())
    assert all(GPUS[name].memory_bytes < size * GIB for name, size in sold.items())
