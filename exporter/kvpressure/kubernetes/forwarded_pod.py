"""One pod while it is looked at: its port forwarded, its state and logs read again from time to time."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

from kvpressure.kubernetes.client import KubeClient, Object
from kvpressure.kubernetes.errors import KubeError
from kvpressure.kubernetes.find import get_config_map, get_pod
from kvpressure.kubernetes.objects.engine_pod import EnginePod, engine_pod
from kvpressure.kubernetes.pod_logs import PodLogs, read_logs
from kvpressure.kubernetes.port_forward import PortForward
from kvpressure.kubernetes.references import Found


@dataclass(slots=True)
class ForwardedPod:
    """What the cluster tells of one pod; `problem` says why its engine cannot be reached, "" where it can.

    `maps` are the ConfigMaps that its configuration file may be in; `unread` says why limits in one are not known.
    """

    found: Found
    engine: EnginePod
    forward: PortForward | None = None
    logs: PodLogs = field(default_factory=PodLogs)
    refused: str = ""
    maps: dict[str, Object] = field(default_factory=dict)
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
            await self._read_maps(client, id_.namespace)
            self.engine = engine_pod(replace(self.found, pod=pod), now, id_.container, self.engine.port, self.maps)
        self.logs = await read_logs(client, id_, now, restarted=self.engine.state.restarts > 0)

    async def _read_maps(self, client: KubeClient, namespace: str) -> None:
        """Once each: a server reads its file when it starts."""
        for name in self.engine.needs:
            if name in self.maps:
                continue
            try:
                self.maps[name] = await get_config_map(client, namespace, name)
                self.unread = ""
            except KubeError as error:
                self.unread = f"ConfigMap {name}, which the server's --config is mounted from, cannot be read: {error}"
