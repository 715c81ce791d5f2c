"""Imports SGLang's scheduler, caches and metrics without torch: what they import besides is a stand-in (`lab.stubs`).

SGLang keeps the slots of its pool, and which of them a request has, in one-dimensional tensors on the CPU or GPU. Here
these are numpy's arrays with the few methods of torch that it calls, which share memory when sliced as tensors do.
"""

from __future__ import annotations

import enum
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from tests.lab.regime import SglangFlags
from tests.lab.stubs import Blank, Finder, set_names

STOOD_IN: Final = frozenset(
    {
        *("sglang", "torch", "triton", "sgl_kernel", "zmq", "psutil", "setproctitle", "orjson", "transformers"),
        *("pybase64", "PIL", "fastapi", "pydantic", "requests", "huggingface_hub", "tqdm", "xgrammar", "einops"),
    }
)
REAL_PACKAGES: Final = ("sglang.srt.mem_cache.unified_cache",)
REAL: Final = frozenset(
    f"sglang.srt{'.' * bool(name)}{name}"
    for name in (
        "",
        "constants",
        "environ",
        "beam_search",
        "beam_search.batch_tail",
        "beam_search.fork",
        "dllm",
        "dllm.mixin.req",
        "managers",
        "managers.prefill_delayer",
        "managers.schedule_batch",
        "managers.schedule_policy",
        "managers.scheduler",
        "managers.scheduler_components",
        "managers.scheduler_components.batch_result_processor",
        "managers.scheduler_components.metrics_reporter",
        "managers.scheduler_components.new_token_ratio_tracker",
        "managers.scheduler_components.pool_stats_observer",
        "managers.utils",
        "mem_cache",
        "mem_cache.allocation",
        "mem_cache.allocation_sizing",
        "mem_cache.allocator",
        "mem_cache.allocator.base",
        "mem_cache.allocator.token",
        "mem_cache.base_prefix_cache",
        "mem_cache.cache_init_params",
        "mem_cache.common",
        "mem_cache.events",
        "mem_cache.evict_policy",
        "mem_cache.memory_pool",
        "mem_cache.prefill_budget",
        "mem_cache.radix_cache",
        "mem_cache.unified_radix_cache",
        "mem_cache.utils",
        "model_executor",
        "model_executor.forward_batch_info",
        "observability",
        "observability.metrics_collector",
        "observability.req_time_stats",
        "observability.scheduler_stage_metrics",
        "observability.utils",
        "sampling",
        "sampling.sampling_params",
        "session",
        "session.streaming_session",
        "utils.gauge_histogram",
        "utils.poll_timer",
    )
)


class Tensor(np.ndarray[Any, Any]):
    """An array that answers what SGLang's scheduler asks of a tensor."""

    def to(self, *args: Any, dtype: Any = None, copy: bool = False, **_: Any) -> Tensor:
        """Return it with another type of elements; where they are does not matter."""
        kinds = [one for one in (dtype, *args) if isinstance(one, type)]
        return self.astype(kinds[0]) if kinds else self.copy() if copy else self

    def numel(self) -> int:
        return int(self.size)

    def cpu(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return self.copy()

    def unsqueeze(self, axis: int) -> Tensor:
        return tensor(np.expand_dims(self, axis))


class Device(str):
    """Where tensors are: nowhere in particular."""

    type = "cpu"


def tensor(values: Any, dtype: Any = None, **_: Any) -> Tensor:
    """Return what `torch.tensor` would."""
    return cast(Tensor, np.asarray(values, dtype=dtype).view(Tensor))


def _cat(parts: Sequence[Any], dim: int = 0, **_: Any) -> Tensor:
    return tensor(np.concatenate([np.asarray(part) for part in parts], axis=dim))


_TORCH: Final[dict[str, Any]] = {
    "Tensor": Tensor,
    "int64": np.int64,
    "int32": np.int32,
    "bool": np.bool_,
    "iinfo": np.iinfo,
    "tensor": tensor,
    "cat": _cat,
    "empty": lambda shape, dtype=None, **_: tensor(np.empty(shape, dtype)),
    "zeros": lambda shape, dtype=None, **_: tensor(np.zeros(shape, dtype)),
    "full": lambda shape, value, dtype=None, **_: tensor(np.full(shape, value, dtype)),
    "arange": lambda *bounds, dtype=None, **_: tensor(np.arange(*bounds, dtype=dtype)),
    "sort": lambda values: (tensor(np.sort(values)), None),
    "is_tensor": lambda value: isinstance(value, Tensor),
    "device": Device,
}


class DisaggregationMode(enum.Enum):
    """Prefill and decode in one server, or in two."""

    NULL = "null"
    PREFILL = "prefill"
    DECODE = "decode"

    @staticmethod
    def to_engine_type(mode: str) -> str:
        """Return the value of the label `engine_type`."""
        return "unified" if mode == "null" else mode


def install(package: Path, flags: SglangFlags) -> None:
    """From now on `import sglang` means the wheel unpacked at `package`. Once per process, but for the flags."""
    if not any(isinstance(finder, Finder) and finder.roots is STOOD_IN for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder(package, STOOD_IN, REAL, REAL_PACKAGES))
        _fill()
    _CONFIG["get_schedule"].__dict__.update(
        schedule_policy=flags.schedule_policy,
        schedule_conservativeness=flags.schedule_conservativeness,
        chunked_prefill_size=flags.chunked_prefill_size,
        page_size=1,
        retraction_policy="length",
        prefill_delayer_max_delay_passes=30,
        enable_mixed_chunk=flags.enable_mixed_chunk,
        enable_priority_scheduling=False,
    )
    _CONFIG["get_parallel"].__dict__["pp_max_micro_batch_size"] = flags.max_running_requests


_CONFIG: Final = {
    "get_schedule": Blank(),
    "get_parallel": Blank(
        tp_rank=0, pp_rank=0, moe_ep_rank=0, attn_tp_rank=0, attn_cp_rank=0, attn_dp_rank=0, tp_size=1, pp_size=1
    ),
    "get_observability": Blank(enable_metrics=True, decode_log_interval=40),
    "get_serving": Blank(served_model_name="lab", stream_interval=1),
    "get_disagg": Blank(disaggregation_mode="null"),
    "get_exec": Blank(mamba=Blank(), features=Blank()),
    "get_memory": Blank(radix_eviction_policy="lru"),
    "get_spec": Blank(),
    "get_lora": Blank(),
    "get_platform": Blank(),
    "get_device": Blank(device="cpu"),
    "get_model": Blank(),
    "get_mm": Blank(),
}
"""SGLang's settings by the function that returns each of their groups; what is not said here is None."""


def _fill() -> None:
    """What the scheduler asks of the modules that are stood in for."""
    set_names("torch", **_TORCH)
    set_names("sglang.srt.runtime_context", **{name: (lambda one=one: one) for name, one in _CONFIG.items()})
    set_names("sglang.srt.runtime_context", attention_backends=lambda: ("torch_native", "torch_native"))
    set_names("sglang.srt.disaggregation.utils", DisaggregationMode=DisaggregationMode)
    none = {name: (lambda *_, **__: False) for name in ("is_cpu", "is_cuda", "is_hip", "is_npu", "is_xpu")}
    set_names("sglang.srt.utils", **none, support_triton=lambda _: False, get_bool_env_var=lambda *_: False)
    aligned = {"ceil_align": lambda value, step: -(-value // step) * step}
    set_names("sglang.srt.utils.common", **none, **aligned, is_pin_memory_available=lambda *_: False)
    set_names("sglang.srt.mem_cache.allocator.page_interleave", page_interleave_shard_size=lambda _: 1)
    set_names("sglang.srt.model_executor.encoder_swa_replay", resets_swa_window=lambda _: False)
    set_names("sglang.srt.utils.scheduler_status_logger", SchedulerStatusLogger=Blank(maybe_create=lambda **_: None))
    # A stand-in is false, and so would be every batch that inherits from one.
    mixin = "sglang.srt.disaggregation.decode_schedule_batch_mixin"
    set_names(mixin, ScheduleBatchDisaggregationDecodeMixin=type("ScheduleBatchDisaggregationDecodeMixin", (), {}))
    set_names("sglang.srt.eplb.expert_distribution", EPLB_BALANCEDNESS_WINDOW_SIZES=())
    importlib.import_module("sglang.srt.managers.scheduler")
