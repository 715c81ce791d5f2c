"""kubeconfig files as kubectl reads them, credentials, and what may be named at the prompt."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.kubernetes import KubeError, kubeconfig
from kvpressure.kubernetes.client import KubeClient
from kvpressure.kubernetes.credentials import Credentials
from kvpressure.kubernetes.kubeconfig import Config, ExecPlugin, load_config
from kvpressure.kubernetes.objects.references import is_reference, parse_reference, selector_text

pytestmark = pytest.mark.process

V1 = "client.authentication.k8s.io/v1"


def content(user: dict[str, Any] | None = None, **cluster: Any) -> dict[str, Any]:
    return {
        "current-context": "prod",
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443/", **cluster}}],
        "users": [{"name": "ada", "user": user or {}}],
        "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "ada", "namespace": "llm"}}],
    }


def write(path: Path, what: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(what if isinstance(what, str) else yaml.safe_dump(what))
    return path


def test_the_current_context_is_taken_with_its_namespace(tmp_path):
    found = load_config(write(tmp_path / "config", content({"token": "t"})))
    assert (found.server, found.context, found.namespace, found.token) == ("https://api:6443", "prod", "llm", "t")


def test_files_of_kubeconfig_are_merged_and_the_first_wins(tmp_path):
    one = write(tmp_path / "one", content({"token": "first"}))
    other = content({"token": "second"})
    other["current-context"] = "other"
    other["contexts"].append({"name": "other", "context": {"cluster": "d"}})
    other["clusters"].append({"name": "d", "cluster": {"server": "http://d"}})
    two = write(tmp_path / "two", other)
    env = {"KUBECONFIG": os.pathsep.join(map(str, (tmp_path / "gone", one, two)))}
    assert load_config(env=env).token == "first"
    assert load_config(context="other", env=env).server == "http://d"
    assert load_config(context="other", env=env).namespace == "default"


def test_without_a_variable_it_is_the_file_in_the_home_directory(tmp_path):
    write(tmp_path / ".kube" / "config", content())
    assert load_config(env={"HOME": str(tmp_path)}).context == "prod"


def test_files_are_relative_to_the_kubeconfig_and_inline_data_wins(tmp_path):
    write(tmp_path / "pki" / "ca.pem", "file")
    user = {
        "client-certificate": "pki/ca.pem",
        "client-key": "pki/ca.pem",
        "client-key-data": base64.b64encode(b"inline").decode(),
        "tokenFile": "token",
        "exec": {"command": "./login", "apiVersion": V1},
    }
    found = load_config(write(tmp_path / "config", content(user, **{"certificate-authority": "pki/ca.pem"})))
    assert (found.ca, found.certificate, found.key) == (b"file", b"file", b"inline")
    assert found.token_file == tmp_path / "token"
    assert found.plugin is not None
    assert Path(found.plugin.command) == tmp_path / "login"


def test_in_a_pod_its_service_account_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", tmp_path)
    for name, text in {"token": "t", "ca.crt": "ca", "namespace": "tools"}.items():
        write(tmp_path / name, text)
    env = {"HOME": "/nowhere", "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    found = load_config(env=env)
    assert (found.server, found.namespace, found.ca) == ("https://[fd00::1]:443", "tools", b"ca")


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("{", "is not valid YAML in line "),
        ("just text", "it holds no mapping"),
        ({**content(), "current-context": ""}, "sets no current-context; choose one with --context: prod"),
        ({**content(), "current-context": "prd"}, "has no context 'prd'; did you mean prod?"),
        ({**content(), "clusters": []}, "has no cluster 'c'; there are: none"),
        ({**content(), "users": [{"name": "bob"}]}, "has no user 'ada'; there are: bob"),
        ({**content(), "users": ["ada"]}, "users must be a list of entries"),
        (content(server="api:6443"), "names no server that begins with https://"),
        (content({"auth-provider": {"name": "gcp"}}), "uses auth-provider, which Kubernetes 1.26 gave up"),
        (content({"client-key-data": "!"}), "client-key-data is not base64"),
        (content({"exec": {"command": "x", "env": ["a=b"]}}), "is no kubeconfig: something in it"),
        (content({"as": "eve", "as-user-extra": ["x"]}), "is no kubeconfig: something in it"),
        (content({"exec": {"args": []}}), "exec must be a mapping with a command"),
        (content(**{"certificate-authority": "gone.pem"}), "gone.pem, which the kubeconfig names: No such file"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path, what, sentence):
    with pytest.raises(KubeError) as refused:
        load_config(write(tmp_path / "config", what))
    assert sentence in str(refused.value)


def test_no_kubeconfig_at_all_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(KubeError, match=r"no kubeconfig: .*config does not exist .* --kubeconfig or KUBECONFIG"):
        load_config(env={"HOME": str(tmp_path)})
    with pytest.raises(KubeError, match=r"there is no kubeconfig file .*gone; check --kubeconfig"):
        load_config(tmp_path / "gone")


_YAML = st.recursive(
    st.none() | st.booleans() | st.text(max_size=8) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(content())), inner, max_size=4),
    max_leaves=12,
)


@given(_YAML)
def test_whatever_a_file_holds_it_is_a_config_or_a_sentence(tmp_path_factory, what):
    with contextlib.suppress(KubeError):
        assert load_config(write(tmp_path_factory.mktemp("k") / "config", what)).server


async def test_a_plugin_gets_the_cluster_and_its_token_is_kept_until_it_is_refused(tmp_path):
    script = write(
        tmp_path / "plugin.py",
        "import json, os, sys\n"
        "count = open(sys.argv[1], 'a'); count.write('x'); count.close()\n"
        "spec = json.loads(os.environ['KUBERNETES_EXEC_INFO'])['spec']\n"
        "print(json.dumps({'status': {'token': spec['cluster']['server'] + os.environ['MORE']}}))\n",
    )
    calls = tmp_path / "calls"
    plugin = ExecPlugin(
        sys.executable, (str(script), str(calls)), {"MORE": "!"}, api_version=V1, interactive=False, cluster_info=True
    )
    credentials = Credentials(Config("http://api", plugin=plugin))
    assert await credentials.headers() == [("Authorization", "Bearer http://api!")]
    await credentials.headers()
    assert calls.read_text() == "x"
    credentials.renew()
    await credentials.headers()
    assert calls.read_text() == "xx"


@pytest.mark.parametrize(
    ("plugin", "sentence"),
    [
        (ExecPlugin("/no/such/login", api_version=V1, install_hint="get it"), "cannot run /no/such/login.* get it"),
        (ExecPlugin("false", api_version=V1), "false, which gives the credentials, ended with exit code 1"),
        (ExecPlugin("echo", ("{}",), api_version=V1), "echo, which kc runs for credentials, printed none"),
        (
            ExecPlugin("echo", ('{"status": {}}',), api_version=V1),
            "neither a token nor a certificate; are you logged in",
        ),
        (ExecPlugin("true", api_version="v9"), "apiVersion 'v9', which is none of"),
    ],
)
async def test_a_plugin_that_gives_nothing_is_explained(plugin, sentence):
    with pytest.raises(KubeError, match=sentence):
        await Credentials(Config("http://api", origin="kc", plugin=plugin)).headers()


async def test_tokens_from_files_are_read_anew_and_impersonation_is_passed_on(tmp_path):
    found = load_config(
        write(tmp_path / "config", content({"tokenFile": "token", "as": "eve", "as-groups": ["a", "b"]}))
    )
    for token in ("one", "two"):
        write(tmp_path / "token", f"{token}\n")
        headers = await Credentials(found).headers()
        assert headers[0] == ("Authorization", f"Bearer {token}")
    assert headers[1:] == [("Impersonate-User", "eve"), ("Impersonate-Group", "a"), ("Impersonate-Group", "b")]


async def test_certificates_that_cannot_be_used_are_explained_without_showing_them():
    with pytest.raises(KubeError, match="certificates that kc has for context prod cannot be used") as refused:
        await Credentials(Config("https://api", "prod", origin="kc", ca=b"secret")).tls()
    assert "secret" not in str(refused.value)


def test_a_config_never_shows_its_secrets():
    assert "secret" not in repr(Config("https://api", token="secret", password="secret", key=b"secret"))


def test_the_proxy_is_the_clusters_own_or_the_environments(monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://env:1")
    assert KubeClient(Config("https://api"))._proxy == "http://env:1"
    assert KubeClient(Config("https://api", proxy="http://own:2"))._proxy == "http://own:2"
    monkeypatch.setenv("no_proxy", "api")
    assert KubeClient(Config("https://api"))._proxy == ""
    with pytest.raises(KubeError, match="is a socks5 one"):
        KubeClient(Config("https://api", proxy="socks5://x"))


@pytest.mark.parametrize(
    "word", ["llama", "http://pod/x", "pod:8000", "10.0.0.1:8000/metrics", "pod/a/b", "pod/a:1", "job/x"]
)
def test_addresses_are_not_taken_for_pods(word):
    assert not is_reference(word)


@pytest.mark.parametrize(
    ("word", "kind"),
    [("po/a", "pod"), ("Deployment/a", "deploy"), ("sts/a", "statefulset"), ("isvc/a", "inferenceservice")],
)
def test_kinds_have_the_names_that_kubectl_has(word, kind):
    assert is_reference(word)
    assert str(parse_reference(word)) == f"{kind}/a"


@pytest.mark.parametrize("name", ["", "A", "-a", "a b", "x" * 254, "../secrets"])
def test_a_name_that_no_object_can_have_never_gets_into_a_path(name):
    with pytest.raises(KubeError, match="names no object"):
        parse_reference(f"pod/{name}")


def test_every_kind_of_selector_is_written_as_the_api_server_reads_it():
    expressions = [
        {"key": "a", "operator": "In", "values": ["x", "y"]},
        {"key": "b", "operator": "NotIn", "values": ["z"]},
        {"key": "c", "operator": "DoesNotExist"},
    ]
    assert selector_text({"matchExpressions": expressions}) == "a in (x,y),b notin (z),!c"
    assert selector_text({"app": "llama"}) == "app=llama"
    assert selector_text(None) == selector_text({}) == ""


def test_a_kubeconfig_in_json_is_one_in_yaml(tmp_path):
    assert load_config(write(tmp_path / "config", json.dumps(content()))).context == "prod"
