"""What is never asked, however it is spelled and whoever names it."""

import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvpressure.kubernetes.objects.annotations as address
from kvpressure.config.settings import ConfigError, PollSettings, load_settings
from kvpressure.engines.file_sd import parse_targets
from kvpressure.net.addresses import LINK_LOCAL, METADATA, refusal
from tests.support.engine_kit import GOOD_PAGE, source_for
from tests.support.servers import FaultServer, page

OPTIONS = PollSettings(filter="never", timeout_seconds=10.0)
SERVICES = ["169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192"]
SERVICES_6 = ["fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fe80::a9fe:a9fe"]


def spellings(text: str) -> list[str]:
    """One IPv4 address in every way that a resolver takes it."""
    number = int(ipaddress.IPv4Address(text))
    a, b, c, d = ipaddress.IPv4Address(text).packed
    high, low = number >> 16, number & 0xFFFF
    return [
        text,
        f"{number}",
        f"{number:#x}",
        f"{number:#X}",
        f"0{number:o}",
        f"{a}.{b}.{c << 8 | d}",
        f"{a}.{b << 16 | c << 8 | d}",
        f"{a:#x}.{b:#x}.{c:#x}.{d:#x}",
        f"0{a:o}.0{b:o}.0{c:o}.0{d:o}",
        f"::ffff:{text}",
        f"::FFFF:{high:x}:{low:x}",
        f"0:0:0:0:0:ffff:{high:x}:{low:x}",
        f"::{text}",
        f"64:ff9b::{text}",
        f"2002:{high:x}:{low:x}::1",
    ]


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@pytest.mark.parametrize("service", SERVICES)
def test_a_metadata_service_is_known_in_every_spelling(service: str) -> None:
    for text in spellings(service):
        assert refusal(text, link_local=True) == METADATA, text
        assert refusal(in_url(text), link_local=True) == METADATA, text


@pytest.mark.parametrize("service", SERVICES_6)
def test_a_metadata_service_is_known_by_its_ipv6_address(service: str) -> None:
    for text in (service, ipaddress.IPv6Address(service).exploded.upper(), f"{service}%eth0"):
        assert refusal(text, link_local=True) == METADATA


@given(st.ip_addresses(v=4, network="169.254.0.0/16").map(str).flatmap(lambda ip: st.sampled_from(spellings(ip))))
def test_a_link_local_address_is_known_in_every_spelling(text: str) -> None:
    assert refusal(text, link_local=False) in (LINK_LOCAL, METADATA)


@given(st.ip_addresses().filter(lambda ip: ip.is_global or ip in ipaddress.ip_network("10.0.0.0/8")))
def test_an_engine_may_have_any_other_address(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if str(ip) not in (*SERVICES, *SERVICES_6) and not str(ip).startswith(("2002:", "64:ff9b:")):
        assert refusal(str(ip), link_local=False) == ""


@pytest.mark.parametrize(
    "text", ["", "localhost", "vllm", "169.254.169.254.example", "0x", "a.b", "1.2.3.4.5", "999999999999"]
)
def test_a_name_is_no_address(text: str) -> None:
    assert refusal(text, link_local=False) == ""


@pytest.mark.fault(
    "a static target or a file_sd entry that is a cloud's metadata service, in any spelling",
    "it is refused, with its line",
)
@pytest.mark.parametrize("host", [*spellings("169.254.169.254"), "100.100.100.200", "fd00:ec2::254"])
def test_settings_and_file_sd_refuse_a_metadata_service(host: str, tmp_path: Path) -> None:
    path = tmp_path / "kvpressure.yaml"
    path.write_text(f"engines:\n  targets:\n    - url: 'http://{in_url(host)}:80/latest'\n")
    with pytest.raises(ConfigError, match=r"yaml:3: .*must not be a cloud's metadata service"):
        load_settings({"--config.file": str(path)}, {})
    with pytest.raises(ConfigError, match="must not be a cloud's metadata service"):
        parse_targets(f'[{{"targets": ["{in_url(host)}:80"]}}]', "f.json")


@pytest.mark.fault("a link-local address in file_sd", "it is refused; as a static target of an operator it is polled")
def test_a_link_local_address_is_for_operators_only(tmp_path: Path) -> None:
    for host in ("169.254.7.7", "[fe80::1]", "[::ffff:169.254.7.7]", "0xa9fe0707"):
        path = tmp_path / "kvpressure.yaml"
        path.write_text(f"engines:\n  targets:\n    - url: 'http://{host}:8000'\n")
        assert load_settings({"--config.file": str(path)}, {}).engines.targets[0].url == f"http://{host}:8000"
        with pytest.raises(ConfigError, match="must not be a link-local address"):
            parse_targets(f'[{{"targets": ["{host}:8000"]}}]', "f.json")


@pytest.mark.fault("a pod whose status has the IP of a metadata service", "the pod is not polled")
@pytest.mark.parametrize("ip", [*SERVICES, *SERVICES_6])
def test_a_pod_never_leads_to_a_metadata_service(ip: str) -> None:
    with pytest.raises(address.AddressError):
        address.pod_ip(ip)


def answering(monkeypatch: pytest.MonkeyPatch, addresses: Sequence[str]) -> None:
    """A name server that answers every name so."""

    def lookup(_: str, port: int, *__: object, **___: object) -> list[object]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (ip, port, 0, 0))
            if ":" in ip
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port))
            for ip in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)


@pytest.mark.fault(
    "a target's name that resolves to a metadata service or a link-local address, now or at any later lookup",
    "no connection is made, and the error shows the resolved address",
)
@pytest.mark.parametrize("ip", ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "169.254.7.7", "fe80::1"])
@pytest.mark.parametrize("name", ["metadata.google.internal", "vllm.example"])
async def test_a_name_never_leads_there(monkeypatch: pytest.MonkeyPatch, ip: str, name: str) -> None:
    answering(monkeypatch, [ip])
    source = source_for(f"http://{name}:80", OPTIONS)
    assert await source.poll() is None
    await source.aclose()
    assert source.health().reason == "bad_url"
    assert f"the name in http://{name}:80/metrics leads to {ip}, a " in source.health().error


async def test_of_several_addresses_only_those_that_may_be_asked_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultServer(page(GOOD_PAGE)) as server:
        answering(monkeypatch, ["169.254.169.254", "127.0.0.1", "fe80::1"])
        source = source_for(f"http://vllm.example:{server.port}", OPTIONS)
        assert await source.poll() is not None
        await source.aclose()
    assert len(server.requests) == 1


async def test_an_address_that_slipped_through_is_not_asked() -> None:
    source = source_for("http://169.254.169.254:80", OPTIONS)
    assert await source.poll() is None
    await source.aclose()
    assert source.health().reason == "bad_url"
    assert source._client.requests == 0
