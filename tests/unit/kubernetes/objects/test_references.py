"""Names of objects at the prompt, and selectors as kubectl takes them."""

import pytest

from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.objects.references import is_reference, parse_reference, selector_text


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
