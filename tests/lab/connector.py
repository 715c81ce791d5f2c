"""A KV connector without a network: answers the scheduler as NIXL or an offload tier does, and moves virtual bytes."""

import importlib
import math
from collections import deque
from typing import Any, Final

from tests.lab.clock import Clock
from tests.lab.link import Link
from tests.lab.regime import Transfer

LOOKED_UP: Final = "looked up"


class FakeConnector:
    """The scheduler's side of a connector and, in `poll`, the worker's. Loads begin in the order in which they came.

    `held_blocks` counts blocks of finished requests that nobody has fetched. `stalled` stops every transfer. With a
    `link`, KV goes over that from one engine to another, and blocks are held until they have arrived there.
    """

    requires_kv_delivery = False
    supports_divergent_local_hybrid_hits = False

    def __init__(self, transfer: Transfer, clock: Clock) -> None:
        self._transfer, self._clock = transfer, clock
        self._queue: deque[tuple[str, float]] = deque()
        self._loading: dict[str, float] = {}
        self._loaded: set[str] = set()
        self._asked: dict[str, float] = {}
        self._held: dict[str, tuple[float, int]] = {}
        self._since = clock.now
        self.remote: set[str] = set()
        self.link: Link | None = None
        self.stalled = False
        self.moving = False
        """Whether anything was on its way, or came, in the last step."""

    @property
    def detail(self) -> str:
        """What a request waits for."""
        if self.link is not None:
            return "transfer"
        return "offload" if self._transfer.role == "offload" else "remote_kv"

    @property
    def held_blocks(self) -> int:
        """Blocks of finished requests that wait to be fetched."""
        return sum(blocks for _, blocks in self._held.values())

    @property
    def held_detail(self) -> str:
        """What it is called when these fill the pool."""
        return "stranded" if self.link is None else "held_for_transfer"

    def release(self, request_id: str) -> None:
        """The other engine has read the request's blocks."""
        _, blocks = self._held[request_id]
        self._held[request_id] = (self._clock.now, blocks)

    def looking_up(self, request_id: str) -> bool:
        """Whether it is not known yet what of the request's KV there is."""
        ready = self._asked.get(request_id)
        return ready is not None and (self.stalled or self._clock.now < ready)

    def poll(self) -> Any | None:
        """What came and went since the last step, as the workers report it; None when nothing."""
        self._move()
        self.moving = not self.stalled and bool(self._loading or self._asked)
        done = {name for name, left in self._loading.items() if left <= 0}
        for name in done:
            del self._loading[name]
        if self.link is not None and self._transfer.role == "consumer":
            self.moving = self.moving or self.link.busy
            done |= self.link.take()
        now = self._clock.now
        fetched = set() if self.stalled else {name for name, (due, _) in self._held.items() if due <= now}
        for name in fetched:
            del self._held[name]
        if not done and not fetched:
            return None
        outputs = importlib.import_module("vllm.v1.outputs")
        return outputs.KVConnectorOutput(finished_sending=fetched or None, finished_recving=done or None)

    def _move(self) -> None:
        elapsed, self._since = self._clock.now - self._since, self._clock.now
        for name in self._loading if not self.stalled else ():
            self._loading[name] -= elapsed
        while self._queue and len(self._loading) < self._transfer.at_once:
            name, seconds = self._queue.popleft()
            self._loading[name] = seconds

    # what the scheduler calls

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens of the prompt that are elsewhere, and that they come while other requests run; None: not known yet."""
        name = request.request_id
        if self._transfer.role == "producer" or name in self._loaded or name not in self.remote:
            return 0, False
        if self._transfer.role == "offload":
            self._asked.setdefault(name, self._clock.now + self._transfer.lookup_seconds)
            if self.looking_up(name):
                return None, False
            matched = int(request.num_prompt_tokens * self._transfer.hit_ratio) // 16 * 16 - num_computed_tokens
        else:
            matched = request.num_prompt_tokens - num_computed_tokens
        return (matched, True) if matched > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks are there: the load may begin."""
        del blocks
        self._loaded.add(request.request_id)
        self._asked.pop(request.request_id, None)
        if num_external_tokens > 0 and self.link is not None:
            self.link.begin(request.request_id, num_external_tokens)
        elif num_external_tokens > 0:
            seconds = self._transfer.latency_seconds + num_external_tokens / self._transfer.tokens_per_second
            self._queue.append((request.request_id, seconds))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        """True: the blocks stay until they are fetched."""
        self.remote.discard(request.request_id)
        self._asked.pop(request.request_id, None)
        if self._transfer.role != "producer" or not request.num_output_tokens:
            return False, None
        due = math.inf if self.link is not None else self._clock.now + self._transfer.fetch_seconds
        self._held[request.request_id] = (due, len(block_ids))
        return True, None

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        """The same where layers differ."""
        return self.request_finished(request, [block for group in block_ids for block in group])

    def has_pending_block_frees(self) -> bool:
        """No load frees blocks on its own."""
        return False

    def has_pending_push_work(self) -> bool:
        """Nothing is pushed."""
        return False

    def take_events(self) -> tuple[()]:
        """None."""
        return ()

    def get_loaded_kv_cache_group_ids(self, *_: Any) -> tuple[()]:
        """Every group's blocks are zeroed, as without a connector."""
        return ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None
