"""The messages of `k8s.io/kubelet/pkg/apis/podresources/v1`: those and no more fields than are read here.

Importing this module imports protobuf. The descriptors are made when it is imported, from the table below, and live
in a pool of their own: generated code is tied to the protobuf versions around the one of its generator, and would put
the package name "v1" into the pool that every library of the process shares. Fields left out are skipped on reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE: Final = "v1"
LIST: Final = f"/{PACKAGE}.PodResourcesLister/List"
GET_ALLOCATABLE: Final = f"/{PACKAGE}.PodResourcesLister/GetAllocatableResources"

# name -> (number, type, repeated); the type is "string" or one of these messages
_FIELDS: Final[Mapping[str, Mapping[str, tuple[int, str, bool]]]] = {
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {"pod_resources": (1, "PodResources", True)},
    "AllocatableResourcesRequest": {},
    "AllocatableResourcesResponse": {"devices": (1, "ContainerDevices", True)},
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
        "pool_name": (3, "string", False),
        "device_name": (4, "string", False),
        "share_id": (5, "string", False),
    },
    "CDIDevice": {"name": (1, "string", False)},
}


def _file() -> descriptor_pb2.FileDescriptorProto:
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
    return file


def _classes() -> Mapping[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _FIELDS}


_CLASSES: Final = _classes()

# The classes are made at run time, so their fields have no types that a checker could know.
ListPodResourcesRequest: Final[Any] = _CLASSES["ListPodResourcesRequest"]
ListPodResourcesResponse: Final[Any] = _CLASSES["ListPodResourcesResponse"]
AllocatableResourcesRequest: Final[Any] = _CLASSES["AllocatableResourcesRequest"]
AllocatableResourcesResponse: Final[Any] = _CLASSES["AllocatableResourcesResponse"]
