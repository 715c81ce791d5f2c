"""One run, inside its namespaces: everything up, the story told, everything down."""

import asyncio
import contextlib
import shutil
from pathlib import Path

from tests.e2e_kubernetes.api import Api
from tests.e2e_kubernetes.certificates import authority
from tests.e2e_kubernetes.chart import Chart, write_kubeconfig
from tests.e2e_kubernetes.cluster import NODE, Cluster
from tests.e2e_kubernetes.control_plane import NODE_IP, PORT, control_plane, run
from tests.e2e_kubernetes.exporter import URL, Exporter, answers, exporter, own_mounts
from tests.e2e_kubernetes.gpus import install_driver
from tests.e2e_kubernetes.kubelet import kubelet
from tests.e2e_kubernetes.privilege import least_privilege, narrowed
from tests.e2e_kubernetes.programs import ROOT, VERSION, Programs
from tests.e2e_kubernetes.prompt import at_the_prompt
from tests.e2e_kubernetes.report import AbandonedError, Timeline
from tests.e2e_kubernetes.story import SOCKETS, VALUES, Story
from tests.e2e_kubernetes.wire import Wire

CACHE = ROOT / ".cache" / "e2e-kubernetes"
WIRE_PORT = 7443


async def tell(programs: Programs) -> int:
    """Exit code 0 when everything was as it must be."""
    folder = CACHE / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with (folder / "report.txt").open("w") as file:
        line = Timeline(file)
        try:
            await _prepare()
            await _chapters(programs, folder, line)
        except AbandonedError as error:
            line.chapter(f"Given up: {error}")
        line.chapter(f"{line.passed} as they must be, {len(line.failed)} not")
        for what in line.failed:
            line.note(f"not so: {what}")
    return 1 if line.failed else 0


async def _prepare() -> None:
    await run("ip", "link", "set", "lo", "up")
    await run("ip", "address", "add", f"{NODE_IP}/32", "dev", "lo")
    await own_mounts()
    for place in (SOCKETS, Path("/var/log/pods")):
        place.mkdir(parents=True)
    install_driver()


async def _chapters(programs: Programs, folder: Path, line: Timeline) -> None:
    async with contextlib.AsyncExitStack() as stack:
        pki = authority(folder / "pki")
        plane = await stack.enter_async_context(control_plane(programs, folder, pki))
        api = await stack.enter_async_context(Api(plane.url, plane.context))
        line.note(f"kube-apiserver {VERSION} and etcd are up")
        user = {"client-certificate": str(plane.admin.certificate), "client-key": str(plane.admin.key)}
        kubeconfig = write_kubeconfig(folder / "admin.json", plane.url, pki.ca, user)
        chart, cluster = Chart(plane, api, kubeconfig), Cluster(api)
        stack.push_async_callback(cluster.ended)
        await cluster.set_up()
        await stack.enter_async_context(kubelet(cluster, plane, folder))
        await _installed(chart, line)
        await least_privilege(line, plane, chart)
        wire = Wire(WIRE_PORT, PORT)
        await wire.join()
        stack.push_async_callback(wire.cut)
        pod = await chart.pod(NODE)
        running = await stack.enter_async_context(exporter(chart, pod, WIRE_PORT, folder / "exporter.log"))
        await _started(line, running)
        await _story(Story(line, plane, api, cluster, chart, wire, running, folder), kubeconfig, pki.ca)


async def _installed(chart: Chart, line: Timeline) -> None:
    line.chapter("The chart")
    await chart.define()
    await chart.install({})
    refused = await chart.admitted(await chart.pod(NODE), "restricted")
    line.hold("with its defaults the pod passes Pod Security `restricted`", not refused, refused)
    made = await chart.install(VALUES)
    kinds = sorted({str(one["kind"]) for one in made})
    line.note(f"helm made {len(made)} objects: {', '.join(kinds)}")
    line.hold(
        "PodMonitor and PrometheusRules are made where their kinds are", {"PodMonitor", "PrometheusRule"} <= set(kinds)
    )
    pod = await chart.pod(NODE)
    refused = await chart.admitted(pod, "restricted")
    line.hold(
        "with host paths it is refused there, for these alone",
        "hostPath" in refused and "runAs" not in refused,
        refused,
    )
    line.hold("and passes `privileged`", not await chart.admitted(pod, "privileged"))


async def _started(line: Timeline, running: Exporter) -> None:
    line.chapter("The exporter starts")

    async def ready() -> bool:
        if running.process.process.returncode is not None:
            raise AbandonedError(f"the exporter ended:\n{running.process.output()[-3000:]}")
        return await asyncio.to_thread(answers, f"{URL}/-/ready")

    await line.see("it is ready", ready, needed=True)
    status = running.status()
    line.hold("as a user without a name", status["Uid"].split()[0] not in ("0", ""), status["Uid"])
    line.hold(
        "without any capability, and it can gain none", {status["CapEff"], status["CapBnd"]} == {"0" * 16}, status
    )
    line.hold("with no new privileges", status["NoNewPrivs"] == "1", status["NoNewPrivs"])


async def _story(story: Story, kubeconfig: Path, ca: Path) -> None:
    await story.engines_found()
    await story.hostile_pods()
    await story.gpus_mapped()
    await story.logs_read()
    await story.restarts_told()
    await at_the_prompt(story.line, story.cluster, story.plane.programs, kubeconfig, await _stranger(story, ca))
    await story.moved_and_evicted()
    await story.api_server_away()
    await story.history_gone()
    await story.permission_taken()
    await story.ended()
    await narrowed(story.line, story.plane, story.chart)


async def _stranger(story: Story, ca: Path) -> Path:
    """Somebody with a token and no rights."""
    await story.cluster.service_account("default", "stranger")
    path = "/api/v1/namespaces/default/serviceaccounts/stranger/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await story.api.create(path, request))["status"]["token"]
    return write_kubeconfig(story.folder / "stranger.json", story.plane.url, ca, {"token": token})
