"""The targets to poll: of the settings, file_sd and discovery, merged, limited in number, with unique names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from kvpressure.config.settings import ClientSettings, Settings
from kvpressure.config.target import Target
from kvpressure.engines.file_sd import FileGroup
from kvpressure.model.allowance import NewLabelSets
from kvpressure.model.record import record
from kvpressure.model.samples import SourceHealth

_SINGLE_MACHINE: Final = Target("localhost:8000", "http://localhost:8000", gpus=("all",))


@record
class Changes:
    """The changes of a refresh; `changed` are targets of the same name whose address or access differs."""

    added: tuple[Target, ...] = ()
    removed: tuple[Target, ...] = ()
    changed: tuple[Target, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


class TargetSet:
    """The targets in force, updated by `refresh`.

    With `discovers`, engines are discovered on this node, and none is assumed on this machine.
    """

    def __init__(self, settings: Settings, *, discovers: bool = False) -> None:
        self._poll = settings.poll
        self._max = settings.limits.max_targets
        self._fixed = tuple(_fixed_targets(settings, assume=settings.single_machine and not discovers))
        self._discovered: tuple[Target, ...] = ()
        self._groups = [FileGroup(entry) for entry in settings.engines.file_sd or ()]
        self._targets: dict[str, Target] = {}
        self._rejected: Counter[str] = Counter()
        self._started = False
        self._new_label_sets = NewLabelSets()

    def discovered(self, targets: tuple[Target, ...]) -> None:
        """Set the discovered targets; the next `refresh` puts them in force."""
        if targets != self._discovered:
            self._discovered, self._started = targets, False

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets in force, fixed ones first."""
        return tuple(self._targets.values())

    @property
    def listed(self) -> bool:
        """Whether every file of targets that is there has been read once: before that, a missing target may exist."""
        return self._started and all(health.last_success is not None for health in self.health)

    @property
    def rejected(self) -> Mapping[str, int]:
        """Entries left out by reason (`duplicate_page`, `duplicate_name`, `too_many_targets`), at each merge."""
        return dict(self._rejected)

    @property
    def problems(self) -> tuple[str, ...]:
        """Return sentences on pods of which new targets are held back."""
        return self._new_label_sets.problems()

    @property
    def health(self) -> tuple[SourceHealth, ...]:
        """One record for each file_sd file, `target` being its path."""
        return tuple(health for group in self._groups for health in group.health)

    def refresh(self, now: float) -> Changes:
        """Check the files that are due at `now` (unix seconds) and return what changed. Reads files; never raises."""
        touched = [group.look(now) for group in self._groups if group.is_due(now)]
        if self._started and not any(touched) and not self._new_label_sets.held_back:
            return Changes()
        self._started = True
        self._new_label_sets.expire(now)
        old, self._targets = self._targets, self._merge(now)
        return changes_between(old, self._targets)

    def is_due(self, now: float) -> bool:
        """Whether to call `refresh` at `now` (unix seconds)."""
        waits = bool(self._new_label_sets.held_back)
        return waits or not self._started or any(group.is_due(now) for group in self._groups)

    def _merge(self, now: float) -> dict[str, Target]:
        merged: dict[str, Target] = {}
        pages: set[str] = set()
        for target in self._candidates(now):
            page = target.url + target.path
            if page in pages:
                self._rejected["duplicate_page"] += 1
            elif target.name in merged:
                self._rejected["duplicate_name"] += 1
            elif len(merged) >= self._max:
                self._rejected["too_many_targets"] += 1
            else:
                pages.add(page)
                merged[target.name] = target
        return merged

    def _candidates(self, now: float) -> Iterable[Target]:
        yield from self._fixed
        for group in self._groups:
            for entry in group.targets:
                events = group.settings.kv_events
                if events is not None and entry.kv_events is not None:  # the files say where, the settings whether
                    events = replace(events, port=entry.kv_events.port)
                yield _with_access(replace(entry, kv_events=events), group.settings, self._poll)
        for target in self._discovered:  # an annotation may name another port, and so another target, each second
            pod = f"pod {target.namespace}/{target.pod}"
            if target.name in self._targets or self._new_label_sets.allows(pod, now):
                yield target


def changes_between(old: Mapping[str, Target], new: Mapping[str, Target]) -> Changes:
    """Return the changes from one set of targets, by name, to another."""
    return Changes(
        added=tuple(target for name, target in new.items() if name not in old),
        removed=tuple(target for name, target in old.items() if name not in new),
        changed=tuple(target for name, target in new.items() if name in old and old[name] != target),
    )


def _fixed_targets(settings: Settings, *, assume: bool) -> Iterable[Target]:
    if assume:
        yield _with_access(_SINGLE_MACHINE, settings.poll, settings.poll)
    for given in settings.engines.targets or ():
        target = Target(
            name=given.name,
            url=given.url,
            path=given.path,
            namespace=given.labels.namespace,
            pod=given.labels.pod,
            runtime=given.runtime,
            gpus=given.gpus,
            kv_bytes_per_token=given.kv_bytes_per_token,
            kv_events=given.kv_events,
        )
        yield _with_access(target, given, settings.poll)


def _with_access(target: Target, own: ClientSettings, default: ClientSettings) -> Target:
    # Authentication comes from one place: a target's token is never combined with the general password.
    auth = own if own.bearer_token_file or own.basic_auth else default
    tls = own.tls or default.tls
    return replace(target, tls=tls, bearer_token_file=auth.bearer_token_file, basic_auth=auth.basic_auth)
