"""A pod that was named at the prompt: its state, its logs and its forwarded port."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.kubectl.forward import PortForward
from kvpressure.kubernetes.kubectl.pod_logs import PodLogs, read_logs
from kvpressure.kubernetes.kubectl.program import Kubectl
from kvpressure.kubernetes.objects import Object
from kvpressure.kubernetes.objects.config_maps import StartedAt, in_force, texts_of
from kvpressure.kubernetes.objects.engine_pod import EnginePod, engine_pod
from kvpressure.kubernetes.objects.references import ReferencedPod


@dataclass(slots=True)
class NamedPod:
    """The state of one pod in the cluster; `problem` is why its engine cannot be reached, "" where it can.

    `maps` are the ConfigMaps that its configuration file may be in, as they were when the container started; `answers`
    are those, or why one is not known, by name and start; `unread` is why limits in one are not known.
    """

    referenced: ReferencedPod
    engine: EnginePod
    forward: PortForward | None = None
    logs: PodLogs = field(default_factory=PodLogs)
    refused: str = ""
    maps: dict[str, Object] = field(default_factory=dict)
    answers: dict[tuple[str, StartedAt | None], Object | str] = field(default_factory=dict)
    unread: str = ""

    @property
    def problem(self) -> str:
        """The problem of the pod, or of its port-forward."""
        if self.forward is not None and self.forward.problem:
            return self.forward.problem
        return self.engine.trouble or self.refused

    async def open(self, kubectl: Kubectl, stack: contextlib.AsyncExitStack) -> None:
        """Forward the engine's port until the stack is unwound, unless the pod does not run. Raises nothing."""
        if self.engine.trouble:
            return
        id_ = self.engine.state.id
        forward = PortForward(kubectl, id_.namespace, id_.pod, self.engine.port, self.engine.scheme)
        try:
            self.forward = await stack.enter_async_context(forward)
        except KubeError as error:
            self.refused = f"{error}"

    async def refresh(self, kubectl: Kubectl, pod: Object | None, now: float) -> None:
        """Take the pod as it is now, None where that cannot be read, and read its logs again. Raises nothing."""
        id_ = self.engine.state.id
        if pod is not None:
            await self._read_maps(kubectl, id_.namespace)
            with contextlib.suppress(KubeError):
                self.engine = engine_pod(
                    replace(self.referenced, pod=pod), now, id_.container, self.engine.port, self.maps
                )
        self.logs = await read_logs(kubectl, id_, now, restarted=self.engine.state.restarts > 0)

    async def _read_maps(self, kubectl: Kubectl, namespace: str) -> None:
        """Read the ConfigMaps once for each start: a server reads its file when it starts."""
        state = self.engine.state
        start = None if state.started is None else StartedAt(state.started, anew=state.restarts > 0)
        self.unread, self.maps = "", {}
        for name in self.engine.needs:
            what = f"ConfigMap {name}, which the server's --config is mounted from"
            if (name, start) not in self.answers:
                try:
                    # `get` of kubectl leaves out who changed what and when, or takes a flag that 1.20 has not.
                    config_map = await kubectl.raw(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
                except KubeError as error:
                    self.unread = f"{what}, cannot be read: {error}"
                    continue
                self.answers[name, start] = texts_of(config_map) if start is None else in_force(config_map, start)
            answer = self.answers[name, start]
            if isinstance(answer, str):
                self.unread = f"{what}: {answer}"
            else:
                self.maps[name] = answer
