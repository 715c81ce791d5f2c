"""Watches the scheduler at work: why each waiting request was not admitted in the last step, and who was preempted.

Nothing of the scheduler is changed. Three of its calls are listened to (a request for blocks, the count of blocks it
needs, a preemption); the rest is read from its queues after the step.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from tests.lab.connector import FakeConnector

HOLDING_SHARE: Final = 0.5
"""From this share of the used blocks on, those who hold blocks without running are why there are none."""
QUEUES: Final = ("waiting", "kv_holding_waiting", "skipped_waiting")
GRAMMAR: Final = frozenset({"WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", "WAITING_FOR_FSM"})


class Observer:
    """The scheduler's reasons, with a detail after a slash: `kv`, `held` (KV is short because loads hold it), `cap`,
    `budget`, `deferred`, `paused`, and `stream`, which is no waiting.
    """

    def __init__(self, scheduler: Any, connector: FakeConnector | None) -> None:
        self._scheduler, self._connector = scheduler, connector
        self._refused = ""
        self._asked_blocks = 0
        self._farthest: dict[str, int] = {}
        self.preempted = 0
        self.preempted_ever = 0
        manager = scheduler.kv_cache_manager
        self._pool = manager.block_pool
        self._listen(manager)

    def before(self) -> None:
        """A step begins."""
        self._refused, self.preempted = "", 0

    def reasons(self, scheduled_tokens: int) -> Counter[str]:
        """Of the step just scheduled: waiting requests by why they wait."""
        why = self._stopped(scheduled_tokens)
        return Counter(self._own(request) or why for request in self.waiting())

    def waiting(self) -> Iterator[Any]:
        """All requests that do not run, in whichever queue this version keeps them."""
        for name in QUEUES:
            yield from getattr(self._scheduler, name, ())

    def advanced(self) -> bool:
        """Whether any request is farther than it has ever been: recomputing is no progress."""
        moved = False
        for request in self._scheduler.running:
            name, at = request.request_id, request.num_computed_tokens + request.num_output_tokens
            if at > self._farthest.get(name, -1):
                self._farthest[name] = at
                moved = True
        return moved

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._farthest.pop(request_id, None)

    def _stopped(self, scheduled_tokens: int) -> str:
        """Why the scan of the queue ended where it did."""
        scheduler = self._scheduler
        if getattr(getattr(scheduler, "_pause_state", None), "name", "UNPAUSED") != "UNPAUSED":
            return "paused"
        if self.preempted:
            return self._holders() or "kv"
        if self._refused:
            return self._refused
        if scheduled_tokens >= scheduler.max_num_scheduled_tokens:
            return self._full() or "budget"
        held_back = getattr(scheduler, "local_prefill_interval", 1) > 1
        return self._full() or ("budget/prefill_interval" if held_back else "budget/head_of_line")

    def _full(self) -> str:
        """Which cap the batch has reached; paused streams keep their places."""
        scheduler = self._scheduler
        cap = getattr(scheduler, "max_num_active_reqs", scheduler.max_num_running_reqs)
        if len(scheduler.running) + getattr(scheduler, "num_waiting_for_streaming_input", 0) < cap:
            return ""
        return "cap/max_num_active_seqs" if cap < scheduler.max_num_running_reqs else "cap/max_num_seqs"

    def _own(self, request: Any) -> str:
        """Why this request would wait even if there were room; empty: it waits for its turn."""
        status = request.status.name
        if status in GRAMMAR and request.structured_output_request.grammar is None:
            return "deferred/grammar"
        if status == "WAITING_FOR_STREAMING_REQ":
            return "stream"
        if self._connector is not None and self._elsewhere(request, status):
            return f"deferred/{self._connector.detail}"
        if self._no_slot(request):
            return "deferred/lora_slots"
        if request.mm_features and request in getattr(self._scheduler, "deferred_waiting", ()):
            return "deferred/encoder"
        return ""

    def _elsewhere(self, request: Any, status: str) -> bool:
        """Whether its KV is on its way, or being looked up."""
        arrived = self._scheduler.finished_recving_kv_req_ids
        loading = status == "WAITING_FOR_REMOTE_KVS" and request.request_id not in arrived
        return loading or bool(self._connector and self._connector.looking_up(request.request_id))

    def _no_slot(self, request: Any) -> bool:
        config = self._scheduler.lora_config
        if not config or not request.lora_request:
            return False
        used = {other.lora_request.lora_int_id for other in self._scheduler.running if other.lora_request}
        return len(used) >= config.max_loras and request.lora_request.lora_int_id not in used

    def _listen(self, manager: Any) -> None:
        allocate, count = manager.allocate_slots, manager.coordinator.get_num_blocks_to_allocate
        preempt = self._scheduler._preempt_request

        def counting(*args: Any, **named: Any) -> Any:
            self._asked_blocks = count(*args, **named)
            return self._asked_blocks

        def allocating(request: Any, *args: Any, **named: Any) -> Any:
            blocks = allocate(request, *args, **named)
            if blocks is None and request.status.name != "RUNNING":
                self._refused = self._why_refused(named)
            return blocks

        def preempting(*args: Any, **named: Any) -> Any:
            self.preempted += 1
            self.preempted_ever += 1
            return preempt(*args, **named)

        manager.coordinator.get_num_blocks_to_allocate = counting
        manager.allocate_slots = allocating
        self._scheduler._preempt_request = preempting

    def _why_refused(self, asked: dict[str, Any]) -> str:
        free = self._pool.get_num_free_blocks()
        if self._asked_blocks <= free:
            reserved = asked.get("reserved_blocks", 0)
            return "kv/reserved" if self._asked_blocks + reserved > free and reserved else "kv/watermark"
        return self._holders() or "kv"

    def _holders(self) -> str:
        """Who keeps the pool without running, when that is most of it."""
        connector = self._connector
        if connector is None:
            return ""
        used = self._pool.num_gpu_blocks - 1 - self._pool.get_num_free_blocks()
        if connector.held_blocks >= HOLDING_SHARE * used:
            return f"kv/{connector.held_detail}"
        blocks = self._scheduler.kv_cache_manager.get_block_ids
        loading = sum(
            len(blocks(request.request_id)[0])
            for request in self.waiting()
            if request.status.name == "WAITING_FOR_REMOTE_KVS"
        )
        return f"held/{connector.detail}" if loading >= HOLDING_SHARE * used else ""
