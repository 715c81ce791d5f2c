import ctypes
from types import ModuleType

import pytest

from kvpressure.sources.gpu.record import Redactor, Trace

REAL = "GPU-4d2f6a51-93c1-8e2a-5a0e-1f2b3c4d5e6f"
OTHER = "9a8b7c6d-93c1-8e2a-5a0e-1f2b3c4d5e6f"


class Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("tail", ctypes.c_uint * 20))


def binding() -> ModuleType:
    """A module with a function that answers and one that raises."""
    module = ModuleType("binding")
    exec(  # executed to be functions of that module, as a binding's are
        "def nvmlName(handle):\n    return b'H100'\ndef nvmlFail(handle):\n    raise OSError('GPU is lost')\n"
        "def other():\n    return 1\n",
        vars(module),
    )
    return module


def test_names_of_a_machine_are_replaced_and_stay_distinct() -> None:
    redactor = Redactor("gpu-node-7")
    dump = redactor.tree(
        {
            "uuids": [REAL, f"MIG-{OTHER}", REAL.upper().replace("GPU-", "GPU-")],
            REAL: "0000:c1:00.1 on gpu-node-7",
            "asic_serial": "0xDEADBEEF00000001",
            "family": "gpu-node-70",
            "primary": "0000:c1:00.0",
            "count": 3,
        }
    )
    first, second, again = dump["uuids"]
    assert first == "GPU-00000000-0000-0000-0000-000000000001" == again
    assert second == "MIG-00000000-0000-0000-0000-000000000002"
    assert dump[first] == "0000:01:00.1 on host"
    assert dump["family"] == "gpu-node-70", "only whole words are names"
    assert dump["primary"] == "0000:01:00.0", "partitions of a card still share its address"
    assert dump["asic_serial"] == "serial-1"
    assert dump["count"] == 3


def test_what_says_that_there_is_no_serial_stays() -> None:
    assert Redactor().tree({"asic_serial": "N/A"}) == {"asic_serial": "N/A"}


def test_calls_are_noted_with_their_answers_and_errors() -> None:
    module, trace = binding(), Trace()
    trace.wrap(module, "nvml")
    handle = ctypes.c_void_p(4096)
    for _ in range(3):
        module.nvmlName(handle)
    with pytest.raises(OSError, match="GPU is lost"):
        module.nvmlFail(handle)
    module.other()
    assert trace.calls() == [
        {"call": "nvmlName", "arguments": ["handle-1"], "count": 3, "answers": ["H100"]},
        {"call": "nvmlFail", "arguments": ["handle-1"], "count": 1, "answers": [{"error": "GPU is lost"}]},
    ]


def test_structs_become_objects_and_long_arrays_are_cut() -> None:
    assert Trace().plain(Memory(80)) == {"total": 80, "tail": [0] * 8}


def test_a_value_that_json_cannot_hold_is_spelled_out() -> None:
    assert Trace().plain([float("nan"), float("inf")]) == ["nan", "inf"]
