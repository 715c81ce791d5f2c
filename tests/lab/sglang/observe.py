"""Watches SGLang's scheduler: why waiting requests were not admitted in the last step, and who was retracted.

Nothing is changed: the class of its `PrefillAdder`, which SGLang lets others choose, notes what it answers.
"""

from collections import Counter
from typing import Any


class Observer:
    """The scheduler's reasons, with a detail after a slash: `kv`, `kv/reserved` (there is room for what is there, and
    none for what requests may still ask for), `cap`, `budget`.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._why = ""
        self._farthest: dict[str, int] = {}
        self._moved = False
        self.preempted = self.preempted_ever = 0
        self._listen()

    def before(self) -> None:
        """A step begins."""
        self.preempted = 0

    def running(self, batch: Any = None) -> list[Any]:
        """All requests that were admitted and have not ended; with those of the `batch` that comes next."""
        scheduler = self._scheduler
        batches = [scheduler.running_batch, scheduler.last_batch, batch]
        found = [req for one in batches if one is not None for req in one.reqs if not req.finished()]
        if scheduler.chunked_req is not None:
            found.append(scheduler.chunked_req)
        return [req for req in {id(req): req for req in found}.values() if req.kv.holds_kv]

    def reasons(self) -> Counter[str]:
        """Of the step just scheduled: waiting requests by why they wait."""
        waiting = len(self._scheduler.waiting_queue)
        return Counter({"kv" if self.preempted else self._why or "cap/max_num_seqs": waiting} if waiting else {})

    def computes(self, batch: Any) -> None:
        """A batch runs: whether any request gets farther than it has ever been, as recomputing is no progress."""
        for req in batch.reqs:
            at = req.seqlen if batch.forward_mode.is_decode() else req.extend_end
            if at > self._farthest.get(req.rid, -1):
                self._farthest[req.rid] = at
                self._moved = True

    def advanced(self) -> bool:
        """Whether one did since the last time this was asked."""
        moved, self._moved = self._moved, False
        return moved

    def forget(self, name: str) -> None:
        """The request has ended."""
        self._farthest.pop(name, None)

    def _listen(self) -> None:
        """Note why the scan of the queue ended, and count those who are retracted."""
        scheduler, add = self._scheduler, self._scheduler._add_request_to_queue
        base = scheduler.adder_class

        def budget_state(adder: Any) -> Any:
            return self._note(adder, base.budget_state(adder), None)

        def add_one_req(adder: Any, req: Any, **named: Any) -> Any:
            self._why = ""
            return self._note(adder, base.add_one_req(adder, req, **named), req)

        def adding(req: Any, is_retracted: bool = False) -> None:
            self.preempted += is_retracted
            self.preempted_ever += is_retracted
            add(req, is_retracted)

        scheduler.adder_class = type("Adder", (base,), {"budget_state": budget_state, "add_one_req": add_one_req})
        scheduler._add_request_to_queue = adding

    def _note(self, adder: Any, result: Any, req: Any) -> Any:
        """Remember what a refusal was for; the flag `batch_is_full` keeps it in force until a request leaves."""
        if result.name == "OTHER":
            self._why = "budget"
        elif result.name == "NO_TOKEN":
            room = adder.cur_rem_tokens
            needs = len(req.full_untruncated_fill_ids) - req.prefix_len + adder.page_size if req else 1
            self._why = "kv" if room < needs else "kv/reserved"
        return result
