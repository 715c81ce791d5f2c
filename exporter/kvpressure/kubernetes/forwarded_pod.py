"""One pod while it is looked at: its port forwarded, its state and logs read again from time to time."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

from kvpressure.kubernetes.client import KubeClient
from kvpressure.kubernetes.errors import KubeError
from kvpressure.kubernetes.find import get_config_map, get_pod
from kvpressure.kubernetes.objects.engine_pod import EnginePod, engine_pod
from kvpressure.kubernetes.objects.fields import Object
from kvpressure.kubernetes.objects.map_versions import (
    MapVersion,
    StartedAt,
    in_force,
    is_answered,
    read_version,
    why_not,
    with_version,
)
from kvpressure.kubernetes.objects.references import Found
from kvpressure.kubernetes.pod_logs import PodLogs, read_logs
from kvpressure.kubernetes.port_forward import PortForward


@dataclass(slots=True)
class ForwardedPod:
    """The state of one pod in the cluster; `problem` says why its engine cannot be reached, "" where it can.

    `maps` are the ConfigMaps that its configuration file may be in, as they were when the container started, and
    `versions` what was read of them; `unread` says why limits in one are not known.
    """

    found: Found
    engine: EnginePod
    forward: PortForward | None = None
    logs: PodLogs = field(default_factory=PodLogs)
    refused: str = ""
    maps: dict[str, Object] = field(default_factory=dict)
    versions: dict[str, tuple[MapVersion, ...]] = field(default_factory=dict)
    unread: str = ""

    @property
    def problem(self) -> str:
        """The pod's own trouble, or that of its port-forward."""
        if self.forward is not None and self.forward.problem:
            return self.forward.problem
        return self.engine.trouble or self.refused

    async def open(self, client: KubeClient, stack: contextlib.AsyncExitStack) -> None:
        """Forward the engine's port until the stack is unwound, unless the pod does not run. Raises nothing."""
        if self.engine.trouble:
            return
        id_ = self.engine.state.id
        forward = PortForward(client, id_.namespace, id_.pod, self.engine.port, self.engine.scheme)
        try:
            self.forward = await stack.enter_async_context(forward)
        except KubeError as error:
            self.refused = f"{error}"

    async def look(self, client: KubeClient, now: float) -> None:
        """Read state and logs anew; a state that cannot be read stays as it was."""
        id_ = self.engine.state.id
        with contextlib.suppress(KubeError):
            pod = await get_pod(client, id_.namespace, id_.pod)
            await self._read_maps(client, id_.namespace, now)
            self.engine = engine_pod(replace(self.found, pod=pod), now, id_.container, self.engine.port, self.maps)
        self.logs = await read_logs(client, id_, now, restarted=self.engine.state.restarts > 0)

    async def _read_maps(self, client: KubeClient, namespace: str, now: float) -> None:
        """Read the ConfigMaps once for each start: a server reads its file when it starts."""
        state = self.engine.state
        start = None if state.started is None else StartedAt(state.started, anew=state.restarts > 0)
        self.unread, self.maps = "", {}
        for name in self.engine.needs:
            what = f"ConfigMap {name}, which the server's --config is mounted from"
            seen = self.versions.get(name, ())
            if not seen or (start is not None and not is_answered(seen, start)):
                try:
                    found = await get_config_map(client, namespace, name)
                except KubeError as error:
                    self.unread = f"{what}, cannot be read: {error}"
                    continue
                # The cluster's clock may be ahead of this machine's, and what it answers is not older than the start.
                version = read_version(found, max(now, start.t if start is not None else now))
                seen = self.versions[name] = with_version(seen, version)
            known = seen[-1].found if start is None else in_force(seen, start)
            if known is not None:
                self.maps[name] = known
            elif start is not None:
                self.unread = f"{what}: {why_not(seen, start)}"
