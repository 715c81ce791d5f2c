"""vLLM's engine core with the model replaced by a formula for its time.

A step goes as in `vllm/v1/engine/core.py`: schedule, execute, update from the output. What is executed samples one
token for every request whose tokens are all computed, and more where drafts are accepted.
"""

import importlib
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.lab.cards import Work, seconds
from tests.lab.clock import Clock
from tests.lab.config import accepted, kv_cache_config, tell_capacity, vllm_config
from tests.lab.connector import FakeConnector
from tests.lab.doubles import Grammars, adapter_name, block_hasher, image, names_of_the_scheduler
from tests.lab.frontend import FrontEnd
from tests.lab.ledger import Ledger
from tests.lab.messages import Outputs, SentRequest, Step
from tests.lab.observe import Observer
from tests.lab.regime import Regime
from tests.lab.sessions import ANSWER
from tests.lab.stubs import Blank, PoolingParams, SamplingParams

POOLED: Final = "an embedding"
EMPTY_STEP_SECONDS: Final = 0.02
"""A step that runs no model. vLLM sleeps 1 ms between them; the lab looks less often, which changes no gauge."""


class Engine:
    """One engine core with its front end. `install` of the clock and the stand-ins comes before the first one.

    `ledger` has the books of the prefix cache, where one group of layers and no other KV store make them plain.
    `forgotten`: blocks of the engine that was here before.
    """

    running_series: Final = "vllm:num_requests_running"

    def __init__(self, regime: Regime, package: Path, clock: Clock, forgotten: Iterable[bytes] = ()) -> None:
        self._regime, self._clock = regime, clock
        self._rng = random.Random(f"{regime.name}/{regime.seed}")
        self.connector = FakeConnector(regime.transfer, clock) if regime.transfer else None
        flags = regime.flags
        role = {"producer": "kv_producer", "consumer": "kv_consumer", "offload": "kv_both"}
        config = vllm_config(flags, package, kv_role=role[regime.transfer.role] if regime.transfer else None)
        kv_config = kv_cache_config(flags)
        tell_capacity(config, kv_config)
        self._hasher = block_hasher(flags.block_size) if flags.enable_prefix_caching else None
        self.scheduler = self._scheduler(config, kv_config)
        self.observer = Observer(self.scheduler, self.connector)
        plain = flags.layers == "full" and regime.transfer is None
        self.ledger = Ledger(self.scheduler, flags.block_size, clock, forgotten) if plain else None
        self.frontend = FrontEnd(config, clock, pools=self._pools)

    def _scheduler(self, config: Any, kv_config: Any) -> Any:
        flags = self._regime.flags
        made = importlib.import_module("vllm.v1.core.sched.scheduler")
        vars(made).update(names_of_the_scheduler(self.connector, flags.encoder_budget, flags.encoder_cache))
        return made.Scheduler(
            config,
            kv_config,
            Grammars(),
            log_stats=True,
            **accepted(made.Scheduler.__init__, block_size=flags.block_size, hash_block_size=flags.block_size),
        )

    @property
    def _pools(self) -> bool:
        return self._regime.flags.runner == "pooling"

    def add(self, asked: SentRequest) -> None:
        """The core takes a request into its queue."""
        request = importlib.import_module("vllm.v1.request").Request
        adapter = asked.adapter
        named = {
            "request_id": asked.name,
            "prompt_token_ids": asked.tokens,
            "sampling_params": None if self._pools else SamplingParams(asked.output, structured_outputs=asked.grammar),
            "pooling_params": PoolingParams() if self._pools else None,
            "eos_token_id": None,
            "arrival_time": asked.arrived,
            "lora_request": Blank(lora_int_id=adapter, lora_name=adapter_name(adapter), adapter_id=adapter)
            if adapter
            else None,
            "priority": asked.priority,
            "block_hasher": self._hasher,
            "resumable": asked.resumable,
            "mm_features": [image(asked.name, number, *place) for number, place in enumerate(asked.images)] or None,
        }
        if asked.remote and self.connector is not None:
            self.connector.remote.add(asked.name)
        if self.ledger is not None:
            self.ledger.expect(asked.name, asked.sibling)
        made = request(**accepted(request.__init__, **named))
        if asked.remote:
            made.kv_transfer_params = {"do_remote_prefill": True}
        self.scheduler.add_request(made)

    def abort(self, names: Sequence[str]) -> list[str]:
        """The core ends requests; the names of those it had."""
        status = importlib.import_module("vllm.v1.request").RequestStatus.FINISHED_ABORTED
        had = [name for name in names if name in self.scheduler.requests]
        self.scheduler.finish_requests(had, status)
        for name in had:
            self.observer.forget(name)
        return had

    def aborted(self, names: Sequence[str]) -> Outputs:
        """What the core sends when it ends requests on its own, as `/pause` does."""
        engine = importlib.import_module("vllm.v1.engine")
        made = [engine.EngineCoreOutput(name, [], finish_reason=engine.FinishReason.ABORT) for name in names]
        return Outputs(made, None, self._clock.now)

    def has_work(self) -> bool:
        """Whether the core would make a step."""
        return bool(self.scheduler.has_requests())

    def idle(self, published: int | None) -> int | None:
        """Return how many requests run by the page while there is nothing to do: what was last `published`."""
        return published

    def present(self) -> bool:
        """Whether any request is in the core that does not just wait for its client."""
        return bool(self.scheduler.running) or self.waiting() > 0

    def waiting(self) -> int:
        """How many requests wait for anything but their client."""
        return sum(request.status.name != "WAITING_FOR_STREAMING_REQ" for request in self.observer.waiting())

    def schedule(self) -> Step:
        """Decide the next step."""
        self.observer.before()
        decision = self.scheduler.schedule()
        scheduled = decision.num_scheduled_tokens
        if self.ledger is not None:
            self.ledger.step(scheduled, self.scheduler.requests)
        took, ratio = self._seconds(scheduled)
        reasons = self.observer.reasons(decision.total_num_scheduled_tokens)
        return Step(decision, took, ratio, reasons, len(self.scheduler.running), self.observer.preempted)

    def _seconds(self, scheduled: dict[str, int]) -> tuple[float, float]:
        if not scheduled:
            return EMPTY_STEP_SECONDS, 0.0
        requests = self.scheduler.requests
        rows = ((count, requests[name].num_computed_tokens) for name, count in scheduled.items())
        return seconds(self._regime, Work.of(rows, 1 + self._regime.flags.num_speculative_tokens))

    def finish(self, step: Step) -> Outputs:
        """The model has run: its output goes back into the scheduler, whose news go to the front end."""
        outputs = importlib.import_module("vllm.v1.outputs")
        names = list(step.decision.num_scheduled_tokens)
        drafts = step.decision.scheduled_spec_decode_tokens
        sampled = [self._sampled(name, len(drafts.get(name, ()))) for name in names]
        pooled = [POOLED if tokens else None for tokens in sampled] if self._pools else None
        made = outputs.ModelRunnerOutput(
            **accepted(
                outputs.ModelRunnerOutput,
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=[[] for _ in names] if self._pools else sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=pooled or [],
                kv_connector_output=self.connector.poll() if self.connector else None,
            )
        )
        sent = self.scheduler.update_from_output(step.decision, made)
        if self._regime.flags.num_speculative_tokens:
            self._draft([name for name, tokens in zip(names, sampled, strict=True) if tokens])
        (news,) = sent.values() if sent else (None,)
        if news is None:
            return Outputs((), None, self._clock.now)
        for output in news.outputs:
            if output.finish_reason is not None:
                self.observer.forget(output.request_id)
        return Outputs(news.outputs, news.scheduler_stats, news.timestamp)

    def _sampled(self, name: str, drafted: int) -> list[int]:
        request = self.scheduler.requests.get(name)
        if request is None or request.num_computed_tokens < request.num_tokens:
            return []
        right = 0
        while right < drafted and self._rng.random() < self._regime.cost.accepted_ratio:
            right += 1
        return [ANSWER] * (right + 1)

    def _draft(self, names: list[str]) -> None:
        drafts = [[ANSWER] * self._regime.flags.num_speculative_tokens for _ in names]
        made = importlib.import_module("vllm.v1.outputs").DraftTokenIds(req_ids=names, draft_token_ids=drafts)
        self.scheduler.update_draft_token_ids(made)

    def pause(self, state: str) -> None:
        """PAUSED_ALL, PAUSED_NEW or UNPAUSED."""
        names = importlib.import_module("vllm.v1.core.sched.interface").PauseState
        self.scheduler.set_pause_state(names[state])
