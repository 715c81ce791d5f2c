"""Putting changes in force: one rollout for all of them, a controlled restart, host memory; and whether it helped."""

from __future__ import annotations

from collections.abc import Sequence

from kvpressure.advice.case import Case
from kvpressure.advice.shell import apply_flags, flag_words, last_words, look_again, more_host_memory, restart
from kvpressure.advice.verify import no_longer, recovered, series
from kvpressure.model.action import Action
from kvpressure.model.expected import Expected
from kvpressure.runtimes.advising import Change


def apply_changes(case: Case, changes: Sequence[Action | None]) -> Action | None:
    """Return the action that applies all changed flags at once, as each restart costs minutes; None without any."""
    flags = {name: value for change in changes if change is not None for name, value in change.flags.items()}
    if not flags:
        return None
    return Action(
        key="apply",
        title="Apply: save, patch, roll out, watch",
        new=" ".join(flag_words(flags)),
        why="One rollout for all flags: each restart costs minutes.",
        cost="Every replica loads the model again. Without a spare GPU the new pod stays Pending until the old one is "
        "deleted. Argo CD or Flux put the old flags back unless the manifest in Git changes too.",
        checks=(
            "Within 15 minutes the new server is ready (a model of 100 GB loads in 2 to 10 minutes);",
            case.own.told.format(flags=", ".join(flags)),
        ),
        commands=(*(last_words(case.place) if case.crashing else ()), *apply_flags(case.place, flags)),
        flags=flags,
    )


def controlled_restart(case: Case) -> Action | None:
    """Replace a crashing server in good order; None while nothing crashes."""
    if not case.crashing:
        return None
    return Action(
        key="restart",
        title="Controlled restart of what crashes",
        why="Only if it still crashes with the new limits: replace one server at a time. A restart alone, without "
        "them, brings the same requests and the same crash back.",
        cost="The requests running on it are lost; those of the other replicas are not.",
        checks=(
            "Within 10 minutes:",
            f"{series('symptom', case.place, symptom='restarting')} == 0",
            "and no new out of memory line in the log.",
        ),
        commands=restart(case.place),
    )


def host_memory(case: Case) -> Action | None:
    """Return the action for a container that the kernel killed: host memory, which no flag about the GPU changes."""
    if case.symptom("host_oom") is not True:
        return None
    return Action(
        key="host_memory",
        title="Give the container more host memory",
        why="It was killed for host memory (OOMKilled, exit code 137). That is neither the GPU nor the KV pool, and "
        f"{case.own.words['gpu_memory_utilization']} does not change it; swap space, tokenizers and weights being "
        "loaded do.",
        cost="The node must have it to spare.",
        checks=("Within 10 minutes:", f"{series('symptom', case.place, symptom='host_oom')} == 0"),
        commands=more_host_memory(case.place),
    )


def changed(change: Change, checks: tuple[str, ...]) -> Action:
    """Return the action that makes a change of the runtime's own."""
    return Action(
        key=change.key,
        title=change.title,
        current=change.current,
        new=change.value,
        why=change.why,
        cost=change.cost,
        checks=checks,
        flags={change.flag: change.value},
    )


def verify_recovery(
    case: Case, sequences: int | None = None, *, shared: bool = False, together: Expected | None = None
) -> Action:
    """Return the action that checks the recovery from KV pressure; `together` is what all steps before it do."""
    more = "" if together is None else " The expected figures are for all steps above together."
    return Action(
        key="verify",
        title="Verify recovery",
        why=f"Only traffic shows whether the pressure is gone: an idle server looks recovered.{more}",
        checks=recovered(case, sequences, shared=shared),
        commands=look_again(case.place),
        expected=together,
    )


def watch(case: Case, cause: str, within: str) -> Action:
    """Return the action that checks that a cause is gone."""
    return Action(
        key="verify",
        title="Verify recovery",
        why="Only traffic shows whether it helped.",
        checks=no_longer(case, cause, within),
        commands=look_again(case.place),
    )
