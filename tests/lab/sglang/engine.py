"""SGLang's scheduler with the model replaced by a formula for its time: what the lab's `Engine` is for vLLM.

A step goes as in `Scheduler.event_loop_normal`: the next batch, its forward pass, the result. What decides or counts
is SGLang's own; the scheduler is made without its constructor, which starts processes and a model, from the same parts
in the same order. Its metrics collectors are those of its pages, in one process instead of several.
"""

import importlib
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import prometheus_client

from tests.lab.cards import Work, seconds
from tests.lab.clock import Clock
from tests.lab.engine import EMPTY_STEP_SECONDS
from tests.lab.messages import Outputs, SentRequest, Step
from tests.lab.regime import Regime
from tests.lab.sessions import ANSWER
from tests.lab.sglang import standins
from tests.lab.sglang.frontend import FrontEnd
from tests.lab.sglang.observe import Observer
from tests.lab.sglang.scheduler import scheduler
from tests.lab.stubs import Blank

END: Final = 8
"""The token that ends an answer which is shorter than its client allows."""
VOCABULARY: Final = 10**9


class Engine:
    """One scheduler with its tokenizer process. The clock comes before the first one; there is no KV store and no
    ledger of the prefix cache.
    """

    running_series: Final = "sglang:num_running_reqs"
    connector = ledger = None

    def __init__(self, regime: Regime, package: Path, clock: Clock, forgotten: Iterable[bytes] = ()) -> None:
        del forgotten
        assert regime.sglang is not None
        self._regime, self._clock, self._flags = regime, clock, regime.sglang
        for collector in list(prometheus_client.REGISTRY._collector_to_names):
            prometheus_client.REGISTRY.unregister(collector)
        standins.install(package, self._flags)
        self._outputs: list[Any] = []
        self._wanted: dict[str, int] = {}
        self.scheduler = scheduler(self._flags, self)
        self.observer = Observer(self.scheduler)
        self.frontend = FrontEnd(clock)

    def stream_output(self, reqs: Sequence[Any], return_logprob: bool, skip_req: Any = None) -> None:
        """As `SchedulerOutputStreamer` for clients that stream: what is new of each request, once."""
        del return_logprob
        for req in reqs:
            if req is skip_req or (req.finished() and req.finished_output):
                continue
            req.finished_output = req.finished()
            new = req.output_ids[req.send_token_offset :]
            req.send_token_offset = len(req.output_ids)
            reason = req.finished_reason.to_json()["type"] if req.finished() else None
            if new or reason:
                self._outputs.append(
                    SimpleNamespace(request_id=req.rid, new_token_ids=new, finish_reason=reason, req=req)
                )

    def add(self, asked: SentRequest) -> None:
        """The scheduler takes a request into its queue, as `_handle_generate_request` does."""
        batch = importlib.import_module("sglang.srt.managers.schedule_batch")
        params = importlib.import_module("sglang.srt.sampling.sampling_params").SamplingParams
        sampling = params(max_new_tokens=asked.asks or asked.output, ignore_eos=False)
        sampling.normalize(None)
        ids, none = array("q", asked.tokens), standins.DisaggregationMode.NULL
        named = {"stream": True, "eos_token_ids": {END}, "vocab_size": VOCABULARY, "disagg_mode": none}
        req = batch.Req(asked.name, "", ids, sampling, **named, metrics_collector=self.scheduler.metrics_collector)
        self._wanted[asked.name] = asked.output
        self.scheduler.init_req_max_new_tokens(req)
        self.scheduler._add_request_to_queue(req)

    def abort(self, names: Sequence[str]) -> list[str]:
        """The scheduler ends requests: those that wait at once, those that run with their next token."""
        gone, scheduler = set(names), self.scheduler
        aborted = importlib.import_module("sglang.srt.managers.schedule_batch").FINISH_ABORT
        had = [req.rid for req in scheduler.waiting_queue if req.rid in gone]
        scheduler.waiting_queue = [req for req in scheduler.waiting_queue if req.rid not in gone]
        for req in self.observer.running():
            if req.rid in gone and not req.finished():
                req.to_finish = aborted()
                had.append(req.rid)
        for name in had:
            self.observer.forget(name)
        return had

    def has_work(self) -> bool:
        """Whether the scheduler would make a step."""
        return self.present()

    def idle(self, published: int | None) -> int | None:
        """Do what `on_idle` does, and return how many requests run by the page."""
        del published
        self.scheduler._sched_idled = True
        self.scheduler.running_batch.filter_batch()
        self.scheduler.last_batch = None
        self.scheduler.metrics_reporter._maybe_log_idle_metrics()
        self.scheduler.new_token_ratio_tracker.reset()
        return int(self.scheduler.metrics_reporter.stats.num_running_reqs.total)

    def present(self) -> bool:
        """Whether any request is in the scheduler."""
        return bool(self.scheduler.waiting_queue or self.observer.running())

    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self.scheduler.waiting_queue)

    def schedule(self) -> Step:
        """Decide the next step."""
        scheduler = self.scheduler
        self.observer.before()
        plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=scheduler.last_batch)
        scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
        if batch is None:
            scheduler.last_batch = None
        took, ratio = (EMPTY_STEP_SECONDS, 0.0) if batch is None else seconds(self._regime, _work(batch))
        if batch is not None:
            scheduler.forward_ct += 1
            batch.forward_iter, batch.launch_ts = scheduler.forward_ct, self._clock.now
            batch.after_idle_gap, scheduler._sched_idled = scheduler._sched_idled, False
            self.observer.computes(batch)
        running = len(set(map(id, self.observer.running(batch))))
        return Step(batch, took, ratio, self.observer.reasons(), running, self.observer.preempted)

    def finish(self, step: Step) -> Outputs:
        """The model has run: its tokens go back into the scheduler, whose news go to the tokenizer process."""
        batch, scheduler = step.decision, self.scheduler
        self._outputs = []
        if batch is not None:
            result = importlib.import_module("sglang.srt.managers.utils").GenerationBatchResult
            tokens = standins.tensor([self._sampled(req) for req in batch.reqs])
            scheduler.process_batch_result(batch, result(next_token_ids=tokens, can_run_cuda_graph=True))
            scheduler.last_batch = batch
        for output in self._outputs:
            if output.finish_reason is not None:
                self.observer.forget(output.request_id)
                del self._wanted[output.request_id]
        told = scheduler.metrics_reporter.stats.num_running_reqs.total
        return Outputs(self._outputs, Blank(num_running_reqs=told), self._clock.now)

    def _sampled(self, req: Any) -> int:
        return END if len(req.output_ids) + 1 >= self._wanted.get(req.rid, 0) else ANSWER


def _work(batch: Any) -> Work:
    """What a batch computes; the rows of prompts that are prefilled with decoding ones beside them come first."""
    if batch.forward_mode.is_decode():
        return Work.of(((1, int(length)) for length in batch.seq_lens_cpu), 1)
    rows = zip(batch.extend_lens, batch.prefix_lens, strict=True)
    return Work.of(((new, before + new) for new, before in rows), 1)
