"""What must be seen of the exporter, on its pages, sooner or later."""

import asyncio
from dataclasses import dataclass

from tests.e2e_kubernetes.cluster import NAMESPACE
from tests.e2e_kubernetes.exporter import Exporter
from tests.e2e_kubernetes.gpus import GPUS
from tests.e2e_kubernetes.report import Timeline

RETRY_SECONDS = 75.0
"""A permission is asked for again within a minute."""


@dataclass(frozen=True, slots=True)
class Eyes:
    """Look at one exporter and write into one timeline."""

    line: Timeline
    exporter: Exporter

    async def polled(self, what: str, *pods: str, within: float = 45.0) -> None:
        wanted = {f"{NAMESPACE}/{pod}:8000" for pod in pods}

        async def found() -> object:
            sources = await self.exporter.sources("engine")
            names = {str(one["target"]) for one in sources}
            if names != wanted:
                raise LookupError(f"polled are {sorted(names)}")
            if down := [one["error"] for one in sources if not one["up"]]:
                raise LookupError(f"not all are up: {down}")
            return True

        await self.line.see(what, found, within=within)

    async def read_on(self, what: str, *pods: str) -> None:
        await asyncio.sleep(5.0)
        ages = await self._ages()
        self.line.hold(what, all(ages.get(pod, 99.0) < 4.0 for pod in pods), ages)

    async def _ages(self) -> dict[str, float]:
        """Seconds since each pod's page was read last."""
        sources = await self.exporter.sources("engine")
        return {str(one["target"]).split("/")[-1].split(":")[0]: float(one["age_seconds"]) for one in sources}

    async def kubernetes_up(self) -> None:
        async def up() -> object:
            sources = await self.exporter.sources("kubernetes")
            return sources and all(one["up"] for one in sources)

        await self.line.see("every Kubernetes source is up", up, within=RETRY_SECONDS)

    async def see_value(self, name: str, value: float, what: str, **labels: str) -> None:
        async def seen() -> object:
            found = await self.exporter.values(name, **labels)
            if not found or set(found.values()) != {value}:
                raise LookupError(f"{name}{labels} is {found}")
            return True

        await self.line.see(what, seen)

    async def mapped(self, what: str, *pods: str) -> None:
        async def held() -> object:
            found = await self.exporter.values("engine_gpu_info")
            holders = {dict(labels)["pod"]: dict(labels)["gpu_uuid"] for labels in found}
            if holders != {pod: GPUS[pod] for pod in pods}:
                raise LookupError(f"GPUs are {holders}")
            return True

        await self.line.see(what, held)
