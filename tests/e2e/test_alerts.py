"""An incident, told by the generated rules and the Alertmanager example to a webhook, in real time (`make e2e`)."""

import contextlib
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.alerting import Delivery, alertmanager, prometheus, webhook
from tests.support.processes import eventually, free_port, get, running
from tests.support.watching import Key, Watcher

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
WARNING, CRITICAL = ("KVPressureCacheTooSmall", "warning"), ("KVPressureCacheTooSmall", "critical")
SYMPTOMS = {"KVPressureBatchCollapsed", "KVPressureMemoryHighComputeLow", "KVPressureLatencyInflated"}
"""What the simulated engine shows of a collapse; it hardly preempts, and its pool fills too fast to be predicted."""

TEXTS = ("summary", "description")
UNFILLED = ("unknown", "<no value>", "NaN", "+Inf", "{{", "}}", "%!", "error")


@contextlib.asynccontextmanager
async def incident(directory: Path, say: Callable[[str], None]) -> AsyncIterator[Watcher]:
    """The demo in real time, everyone between it and the webhook, and somebody who watches them all."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "tests.support.incident", address]
    async with contextlib.AsyncExitStack() as stack:
        hook = await stack.enter_async_context(webhook())
        _, manager = await stack.enter_async_context(alertmanager(directory, hook))
        log = directory / "demo.log"
        demo = await stack.enter_async_context(running(command, log, {"PYTHONUNBUFFERED": "1"}))
        await eventually(lambda: get(f"http://{address}/-/healthy"), demo)
        database = await stack.enter_async_context(prometheus(directory, address, manager))
        yield Watcher(demo, database, manager, hook, say)


def told(hook_deliveries: list[Delivery]) -> dict[Key, Delivery]:
    """The first notification of each alert that fires."""
    firing = [one for one in hook_deliveries if one.status == "firing"]
    return {one.key: one for one in reversed(firing)}


def as_read(delivery: Delivery) -> str:
    """A notification as a person sees it."""
    head = f"-- /{delivery.path}: {' '.join(delivery.key)}"
    lines = (f"{name}: {delivery.annotations[name]}" for name in TEXTS)
    return "\n".join([head, *(textwrap.fill(line, 110, subsequent_indent="   ") for line in lines)])


def check_text(delivery: Delivery) -> None:
    """Every value is filled in, the engine or its model is named, and no link leads to a pod's address."""
    for name in TEXTS:
        text = delivery.annotations[name]
        assert text.strip(), name
        assert not [word for word in UNFILLED if word in text], f"{name}: {text}"
    assert delivery.labels["model_name"] in delivery.annotations["summary"]
    assert delivery.labels.get("target", "") in delivery.annotations["summary"]
    assert "kvpressure triage" in delivery.annotations["description"].splitlines()[1]
    assert not {"runbook_url", "dashboard_url"} & set(delivery.annotations)


def check_order(watcher: Watcher) -> None:
    """Nothing before the incident; the critical one, no warning after it; who is muted is not told of."""
    began = watcher.began("building")
    # KVPressureExporterDown is pending for as long as Prometheus has not scraped anybody yet.
    before = [event for event in watcher.events if event.t < began and event.key[0] != "KVPressureExporterDown"]
    fired = [event for event in watcher.seen("firing") + watcher.seen("delivered") if event.t < began]
    assert before + fired == [], "an idle engine with a full GPU, or a healthy one, is nothing to tell anybody"
    hook = watcher.hook
    warned, woken = hook.got("firing", *WARNING), hook.got("firing", *CRITICAL)
    assert woken.path == "page"
    assert watcher.began("collapsed") < woken.t < watcher.began("recovered")
    # A collapse is critical before Alertmanager has gathered a first group: then the page mutes the ticket too.
    assert warned is None or (warned.path == "ticket" and watcher.began("collapsed") < warned.t < woken.t)
    told_of = set(told(hook.deliveries))
    assert told_of <= {WARNING, CRITICAL}, (
        "the symptoms say nothing that the cause does not, nor do they once it is over"
    )


def resolved(watcher: Watcher) -> bool:
    """Whether the end of each alert that was told of has been told too."""
    return all(watcher.hook.got("resolved", *key) for key in told(watcher.hook.deliveries))


def check_inhibition(watcher: Watcher) -> None:
    """Each symptom fired in Prometheus, and Alertmanager kept it to itself because of the cause."""
    firing = {event.key for event in watcher.seen("firing")}
    muted = {event.key for event in watcher.seen("muted by KVPressureCacheTooSmall")}
    assert {(name, "warning") for name in SYMPTOMS} <= firing
    assert firing - {CRITICAL} <= muted


async def test_a_collapse_wakes_someone_mutes_its_symptoms_and_resolves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)  # noqa: T201 -- the timeline is what this test is read for

    async with incident(tmp_path, say) as watcher:
        await watcher.until(lambda seen: seen.hook.got("firing", *CRITICAL), 600)
        for delivery in watcher.hook.deliveries:
            check_text(delivery)
        await watcher.until(lambda seen: seen.hook.got("resolved", *CRITICAL), 900)
        # The symptoms' own alerts may not speak up once the cause no longer mutes them.
        await watcher.until(lambda seen: seen.quiet() and resolved(seen), 600)
        say("")
        for delivery in told(watcher.hook.deliveries).values():
            say(as_read(delivery))
        check_order(watcher)
        check_inhibition(watcher)
