"""`python -m deploy.release.sbom`: a CycloneDX bill of materials of what an installation consists of.

What stands in it is the exporter's wheel and every package of requirements/runtime.txt, with the hashes that pip checks
when it installs them, and who needs whom. The same inputs give the same bytes: the serial number is made of the
content, and the time is SOURCE_DATE_EPOCH's or absent.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from deploy.release.pins import Pin, normalized, read_pins
from packageurl import PackageURL

ROOT = Path(__file__).parents[2]
PINS = ROOT / "requirements" / "runtime.txt"
# A UUID made of content is made within a space of names; this is the project's.
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "kvpressure")


def root_component(project: dict[str, Any], wheel: Path | None) -> Component:
    """Return the exporter itself, from pyproject.toml's table `project`; with the wheel's hash where there is one."""
    name, version = normalized(project["name"]), project["version"]
    purl = PackageURL("pypi", name=name, version=version)
    root = Component(name=name, version=version, type=ComponentType.APPLICATION, purl=purl, bom_ref=str(purl))
    root.description = project["description"]
    root.licenses.add(DisjunctiveLicense(id=project["license"]))
    if wheel is not None:
        root.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(wheel.read_bytes()).hexdigest()))
        root.properties.add(Property(name="kvpressure:wheel", value=wheel.name))
    return root


def component(pin: Pin) -> Component:
    """Return a pinned package. Each hash is that of one of its files: a wheel for a platform, or its source."""
    purl = PackageURL("pypi", name=pin.name, version=pin.version)
    found = Component(name=pin.name, version=pin.version, type=ComponentType.LIBRARY, purl=purl, bom_ref=str(purl))
    # By CycloneDX a component's own hashes are all of one file. A reference may have those of several, as the CLI of
    # CycloneDX for requirements writes it; and it names no index, because which one is used is the installer's affair.
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in pin.sha256]
    kind = ExternalReferenceType.DISTRIBUTION
    found.external_references.add(ExternalReference(type=kind, url=XsUri(str(purl)), hashes=hashes))
    return found


def bill(project: dict[str, Any], pins: list[Pin], wheel: Path | None = None) -> Bom:
    """Return the whole bill: the exporter, its packages, and the edges between them."""
    root = root_component(project, wheel)
    components = {pin.name: component(pin) for pin in pins}
    bom = Bom(components=components.values())
    bom.metadata.component = root
    bom.register_dependency(root, [components[pin.name] for pin in pins if pin.direct])
    for name, found in components.items():
        bom.register_dependency(found, [components[pin.name] for pin in pins if name in map(normalized, pin.via)])
    return bom


def text_of(bom: Bom, epoch: str | None) -> str:
    """Return the bill as CycloneDX 1.6 JSON, a line per value. `epoch`: seconds since 1970, for the time in it.

    Raises ValueError if it is not what the schema says.
    """
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["serialNumber"], document["metadata"]["timestamp"]
    if epoch is not None:
        document["metadata"]["timestamp"] = datetime.fromtimestamp(int(epoch), UTC).isoformat()
    document["serialNumber"] = uuid.uuid5(NAMESPACE, json.dumps(document, sort_keys=True)).urn
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    if problem := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"the bill of materials is not CycloneDX 1.6: {problem}")
    return text


def main(arguments: list[str] | None = None) -> int:
    """Write the bill; exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release.sbom", description=__doc__)
    parser.add_argument("--requirements", type=Path, default=PINS, help="a file of pins with hashes")
    parser.add_argument("--wheel", type=Path, help="the wheel that it is the bill of; its hash is put in")
    parser.add_argument("--out", type=Path, required=True, help="where to write it")
    given = parser.parse_args(arguments)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bom = bill(project, read_pins(given.requirements.read_text()), given.wheel)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(text_of(bom, os.environ.get("SOURCE_DATE_EPOCH")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
