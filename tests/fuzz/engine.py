"""The loop: make or mutate an input, check it, keep what is new. Seeded: equal seed, corpus and code, equal inputs."""

import time
from collections.abc import Callable, Hashable, Iterable
from random import Random
from zlib import crc32

from tests.fuzz.coverage import Coverage
from tests.fuzz.findings import Finding, key_of, shrunk, tell
from tests.fuzz.guard import HangError, check_not_slow, hangs_end
from tests.fuzz.mutate import mutated
from tests.fuzz.target import Target

BATCH = 1000
"""Inputs drawn from one state of the random numbers: a run can be resumed after each batch."""

MAX_KEPT = 2000
MAX_KINDS = 20_000
_TRACED_SHARE = 24


class Session:
    """One target being fuzzed; `known` are the keys of findings that are not to be told again."""

    def __init__(
        self, name: str, target: Target, seed: int, kept: Iterable[bytes] = (), known: Iterable[str] = ()
    ) -> None:
        self._name, self._target, self._seed = name, target, seed
        self._coverage = Coverage()
        self._kinds: set[Hashable] = set()
        self._known = set(known)
        self._seeds = [data[: target.longest_bytes] for data in target.seeds()]
        self.inputs = 0
        self.cpu_seconds = 0.0
        self.slowest_seconds = 0.0
        self.findings: list[Finding] = []
        self.kept: list[bytes] = []
        with hangs_end(lambda: self.inputs):
            for data in (*self._seeds, *kept):
                self._look(data)
        self._given = self.inputs
        self.inputs = 0

    @property
    def steps(self) -> int:
        """Different steps from line to line that were seen in the code under test."""
        return self._coverage.steps

    def batch(self, number: int, size: int = BATCH) -> None:
        """Run the inputs of batch `number`."""
        random = Random(f"{self._seed}/{self._name}/{number}")
        start = time.process_time()
        with hangs_end(lambda: self.inputs):
            for _ in range(size):
                data = self._draw(random)
                if self.inputs % _TRACED_SHARE == 0:
                    self._look(data)
                else:
                    self._run(self._timed, data)
        self.cpu_seconds += time.process_time() - start

    def _draw(self, random: Random) -> bytes:
        target, choice = self._target, random.getrandbits(3)
        pool = self.kept or self._seeds
        data = target.make(random) if choice < 4 or not pool else random.choice(pool)
        if choice < 3:
            return data[: target.longest_bytes]
        other = random.choice(pool) if pool else data
        return mutated(random, data, other, target.words, target.longest_bytes)

    def _look(self, data: bytes) -> None:
        """Run it, and keep it where it goes a new way through the code."""
        self._run(lambda given: self._coverage.watch(self._target.check, given), data, traced=True)

    def _timed(self, data: bytes) -> tuple[Hashable, bool]:
        start = time.process_time()
        kind = self._target.check(data)
        took = time.process_time() - start
        if took > self.slowest_seconds:
            if took > self._target.slow_seconds:
                check_not_slow(self._target.check, data, self._target.slow_seconds)
            else:
                self.slowest_seconds = took
        return kind, False

    def _run(self, call: Callable[[bytes], tuple[Hashable, bool]], data: bytes, *, traced: bool = False) -> None:
        self.inputs += 1
        try:
            kind, new = call(data)
        except (Exception, HangError) as error:  # noqa: BLE001 - whatever it is, it is a finding
            self._found(Finding(key_of(error), tell(error), data))
            return
        if new or (kind not in self._kinds and len(self._kinds) < MAX_KINDS):
            self._kinds.add(kind)
            if not traced:
                self._coverage.watch(self._target.check, data)
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        if len(self.kept) < MAX_KEPT:
            self.kept.append(data)
        else:
            self.kept[crc32(data) % MAX_KEPT] = data

    def _found(self, finding: Finding) -> None:
        if finding.key in self._known:
            return
        self._known.add(finding.key)
        slow = finding.key in ("slow", "hang")
        self.findings.append(finding if slow else shrunk(self._target.check, finding))
