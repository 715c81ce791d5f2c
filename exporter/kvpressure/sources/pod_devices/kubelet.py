"""One request to the kubelet. Importing this module imports grpclib and protobuf.

Each request has a connection of its own: a restarted kubelet listens on a new socket under the old name, and a
connection kept open would go on speaking to the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from kvpressure.model.environment import ContainerId
from kvpressure.model.errors import (
    BrokenConnectionError,
    GarbageError,
    MissingError,
    RefusedConnectionError,
    SourceError,
)
from kvpressure.printable import brief
from kvpressure.sources.pod_devices.ids import ClaimDevice, ContainerDevices, KubeletAnswer, PluginDevice

PACKAGE: Final = "v1"
LIST: Final = f"/{PACKAGE}.PodResourcesLister/List"

# The messages of k8s.io/kubelet/pkg/apis/podresources/v1, with no more fields than are read here; others are skipped.
# Made when this is imported, in a pool of their own: generated code is tied to the protobuf versions around the one of
# its generator, and would put the package name "v1" into the pool that every library of the process shares.
# name -> (number, type, repeated); the type is "string" or one of these messages
_FIELDS: Final[Mapping[str, Mapping[str, tuple[int, str, bool]]]] = {
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {"pod_resources": (1, "PodResources", True)},
    "PodResources": {
        "name": (1, "string", False),
        "namespace": (2, "string", False),
        "containers": (3, "ContainerResources", True),
    },
    "ContainerResources": {
        "name": (1, "string", False),
        "devices": (2, "ContainerDevices", True),
        "dynamic_resources": (5, "DynamicResource", True),
    },
    "ContainerDevices": {"resource_name": (1, "string", False), "device_ids": (2, "string", True)},
    "DynamicResource": {
        "claim_name": (2, "string", False),
        "claim_namespace": (3, "string", False),
        "claim_resources": (4, "ClaimResource", True),
    },
    "ClaimResource": {
        "cdi_devices": (1, "CDIDevice", True),
        "driver_name": (2, "string", False),
        "device_name": (4, "string", False),
        "share_id": (5, "string", False),
    },
    "CDIDevice": {"name": (1, "string", False)},
}


def _classes() -> Mapping[str, Any]:
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package=PACKAGE, syntax="proto3")
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for name, (number, type_name, repeated) in fields.items():
            field = described.field.add(name=name, number=number)
            field.label = kind.LABEL_REPEATED if repeated else kind.LABEL_OPTIONAL
            field.type = kind.TYPE_STRING if type_name == "string" else kind.TYPE_MESSAGE
            if type_name != "string":
                field.type_name = f".{PACKAGE}.{type_name}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _FIELDS}


_CLASSES: Final = _classes()

# The classes are made at run time, so their fields have no types that a checker could know.
ListPodResourcesRequest: Final[Any] = _CLASSES["ListPodResourcesRequest"]
ListPodResourcesResponse: Final[Any] = _CLASSES["ListPodResourcesResponse"]

_NEEDS_ROOT: Final = (
    "the kubelet lets only root use it: run the exporter as user 0 (it needs no capability), "
    "or set pod_resources.enabled to false and name each engine's GPUs"
)


class NoPermissionError(SourceError, reason="no_permission"):
    """The kubelet's socket is only for root."""


class UnsupportedKubeletError(SourceError, reason="unsupported"):
    """The kubelet is older than the API."""


class KubeletError(SourceError):
    """The kubelet refuses, for a reason of gRPC's."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


async def list_devices(socket: Path) -> KubeletAnswer:
    """Return what the kubelet behind `socket` says now; raise SourceError. The caller sets the deadline."""
    try:
        async with Channel(path=str(socket)) as channel:
            method: UnaryUnaryMethod[Any, Any] = UnaryUnaryMethod(
                channel, LIST, ListPodResourcesRequest, ListPodResourcesResponse
            )
            return tuple(_containers(await method(ListPodResourcesRequest())))
    except OSError as error:
        raise _unreachable(socket, error) from error
    except GRPCError as error:
        raise _refused(socket, error) from error
    except (StreamTerminatedError, ProtocolError, DecodeError, AssertionError, NotImplementedError) as error:
        said = brief(error) or type(error).__name__
        raise GarbageError(f"what answers at {socket} does not speak pod-resources v1: {said}") from error


def _containers(listed: Any) -> Iterator[ContainerDevices]:
    for pod in listed.pod_resources:
        for container in pod.containers:
            if container.devices or container.dynamic_resources:
                yield ContainerDevices(
                    ContainerId(pod.namespace, pod.name, container.name),
                    tuple(
                        PluginDevice(device.resource_name, id_)
                        for device in container.devices
                        for id_ in device.device_ids
                    ),
                    tuple(_claimed(container.dynamic_resources)),
                )


def _claimed(resources: Iterable[Any]) -> Iterator[ClaimDevice]:
    for resource in resources:
        for device in resource.claim_resources:
            yield ClaimDevice(
                f"{resource.claim_namespace}/{resource.claim_name}",
                device.driver_name,
                device.device_name,
                tuple(cdi.name for cdi in device.cdi_devices),
                device.share_id,
            )


def _unreachable(socket: Path, error: OSError) -> SourceError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return MissingError(f"there is no {socket}: the kubelet is restarting, or the directory not mounted")
    if isinstance(error, PermissionError):
        return NoPermissionError(f"not allowed to connect to {socket}; {_NEEDS_ROOT}")
    if isinstance(error, ConnectionRefusedError):
        return RefusedConnectionError(f"nobody listens on {socket}: the kubelet is down or restarting")
    return BrokenConnectionError(f"the connection to {socket} failed: {brief(error)}")


def _refused(socket: Path, error: GRPCError) -> SourceError:
    if error.status is Status.UNIMPLEMENTED:
        return UnsupportedKubeletError(f"the kubelet at {socket} is older than 1.20: it has no pod-resources v1")
    reason = "rate_limited" if error.status is Status.RESOURCE_EXHAUSTED else error.status.name.lower()
    return KubeletError(reason, f"the kubelet at {socket} refused: {brief(error.message or reason)}")
