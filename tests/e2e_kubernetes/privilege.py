"""What the token of the chart's service account may do: its list, and nothing else."""

from tests.e2e_kubernetes.api import Api, RefusedError
from tests.e2e_kubernetes.chart import NAMESPACE as MONITORING
from tests.e2e_kubernetes.chart import RELEASE, Chart
from tests.e2e_kubernetes.cluster import NAMESPACE
from tests.e2e_kubernetes.control_plane import ControlPlane
from tests.e2e_kubernetes.report import Timeline

ALLOWED = {
    ("list", "pods"),
    ("watch", "pods"),
    ("list", "events"),
    ("watch", "events"),
    ("list", "nodes"),
    ("watch", "nodes"),
}
DENIED = (
    *(("get", kind) for kind in ("secrets", "configmaps", "pods/log", "pods/exec", "pods/portforward", "nodes/proxy")),
    *(("list", kind) for kind in ("secrets", "configmaps", "services", "serviceaccounts", "persistentvolumes")),
    *(
        ("create", kind)
        for kind in ("pods", "pods/exec", "pods/eviction", "serviceaccounts/token", "events", "secrets")
    ),
    *(("delete", kind) for kind in ("pods", "nodes")),
    *(("patch", kind) for kind in ("pods", "nodes", "pods/status", "nodes/status")),
    ("impersonate", "users"),
)


async def least_privilege(line: Timeline, plane: ControlPlane, chart: Chart) -> None:
    """What the token of the chart's service account can do: its list, and nothing else."""
    line.chapter("What the exporter may do")
    async with Api(plane.url, plane.context_of_ca, await chart.token()) as account:
        for verb, resource in sorted(ALLOWED):
            line.hold(f"may {verb} {resource}", await account.may(verb, resource))
        forbidden = [(verb, resource) for verb, resource in DENIED if await account.may(verb, resource)]
        line.hold(f"may not do any of {len(DENIED)} other things", not forbidden, forbidden)
        try:
            secrets: object = await account.get("/api/v1/secrets")
        except RefusedError as refused:
            secrets = None
            line.hold("asking for secrets is refused with 403", refused.status == 403, refused)
        line.hold("and gives none", secrets is None)
        rules = await account.create(
            "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            {
                "kind": "SelfSubjectRulesReview",
                "apiVersion": "authorization.k8s.io/v1",
                "spec": {"namespace": NAMESPACE},
            },
        )
        given = {
            (verb, resource)
            for rule in rules["status"]["resourceRules"]
            if "" in rule.get("apiGroups", ())
            for verb in rule["verbs"]
            for resource in rule["resources"]
        }
        line.hold("its rules for the core group are exactly these", given == ALLOWED, sorted(given ^ ALLOWED))


async def narrowed(line: Timeline, plane: ControlPlane, chart: Chart) -> None:
    """The chart with namespaces named: Roles there instead of a ClusterRole."""
    line.chapter("In named namespaces only")
    await chart.install({"kubernetes": {"namespaces": [NAMESPACE], "nodeConditions": False}})
    async with Api(plane.url, plane.context_of_ca, await chart.token()) as account:
        line.hold("pods there may be watched", await account.may("watch", "pods", namespace=NAMESPACE))
        elsewhere = [await account.may("watch", kind) for kind in ("pods", "events", "nodes")]
        line.hold("nothing elsewhere may", not any(elsewhere), elsewhere)
    await chart.uninstall()
    try:
        left: object = await chart.api.get(f"/apis/apps/v1/namespaces/{MONITORING}/daemonsets/{RELEASE}")
    except RefusedError as refused:
        left = None if refused.status == 404 else refused
    line.hold("helm uninstall leaves no DaemonSet", left is None, left)
