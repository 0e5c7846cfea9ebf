"""The Helm chart: it lints, refuses values that make no sense, installs, is enough for the webhook to work, and uninstalls."""

import base64
import ssl
import subprocess

import yaml
from bench import ROOT, Skip, case
from pods import is_injected
from test_containers import patched, review_of
from webhook import Webhook

CHART = ROOT / "deploy" / "chart" / "ration"
NAMESPACE = "ration-system"
MODES = {
    "self": [],
    "cert-manager": ["--set", "certificates.mode=certManager"],
    "given": ["--set", "certificates.mode=secret,certificates.secret.name=given,certificates.secret.caBundle=Q0E="],
}
KINDS = "deploy,daemonset,service,configmap,serviceaccount,role,rolebinding,poddisruptionbudget,networkpolicy,secret"
GLOBAL_KINDS = "clusterrole,clusterrolebinding,mutatingwebhookconfiguration"
OURS = "app.kubernetes.io/instance=ration"


def rendered(bench, *arguments):
    made = bench.cluster.helm("template", "ration", CHART, "--namespace", NAMESPACE, *arguments).stdout
    return [one for one in yaml.safe_load_all(made) if one]


def of_kind(documents, kind):
    return next(one for one in documents if one["kind"] == kind)


def installed(bench):
    found = []
    for kinds, where in ((KINDS, ["-n", NAMESPACE]), (GLOBAL_KINDS, [])):
        said = bench.cluster.kubectl("get", kinds, *where, "-l", OURS, "-o", "name").stdout
        found += said.split()
    return sorted(found)


@case("it lints, in every way to have certificates")
def lints(bench):
    for arguments in MODES.values():
        said = bench.cluster.helm("lint", "--strict", CHART, *arguments).stdout
        assert "0 chart(s) failed" in said, said


@case("values that make no sense are refused, by name")
def values(bench):
    wrong = {
        "webhook.replicas=0": "replicas",
        "webhook.failurePolicy=Fial": "failurePolicy",
        "webhook.replcias=2": "replcias",
        "certificates.mode=magic": "mode",
        "certificates.mode=secret": "name",
        "webhook.timeoutSeconds=60": "timeoutSeconds",
        "node.hostPaths.library=relative": "library",
        "image.digest=md5:1": "digest",
    }
    for setting, named in wrong.items():
        done = bench.cluster.helm("template", "ration", CHART, "--set", setting, check=False)
        assert done.returncode != 0 and named in done.stderr, f"{setting}: {done.stderr or 'accepted'}"
    return f"{len(wrong)} refused"


@case("the plain manifests are what the chart gives")
def up_to_date(bench):
    done = subprocess.run([ROOT / "deploy" / "render", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@case("the webhooks that these tests register are the chart's")
def same_webhooks(bench):
    ours = bench.webhook.entries(excluded=[NAMESPACE, "kube-system", "kube-public", "kube-node-lease"])
    theirs = of_kind(rendered(bench), "MutatingWebhookConfiguration")["webhooks"]
    for one, other in zip(ours, theirs, strict=True):
        for rule in other["rules"]:
            assert rule.pop("scope") == "Namespaced"
        assert other.pop("matchPolicy") == "Equivalent"
        del one["clientConfig"], other["clientConfig"]
        assert one == other, f"registered {one}, chart {other}"


@case("its containers run with the least: no root, no writing, no capabilities, RuntimeDefault")
def hardened(bench):
    template = of_kind(rendered(bench), "Deployment")["spec"]["template"]["spec"]
    whole, one = template["securityContext"], template["containers"][0]["securityContext"]
    assert whole["runAsNonRoot"] and whole["seccompProfile"] == {"type": "RuntimeDefault"}, whole
    assert one["readOnlyRootFilesystem"] and one["allowPrivilegeEscalation"] is False, one
    assert one["capabilities"] == {"drop": ["ALL"]}, one
    node = of_kind(rendered(bench), "DaemonSet")["spec"]["template"]["spec"]
    one = node["containers"][0]["securityContext"]
    assert one["readOnlyRootFilesystem"] and not one.get("privileged") and one["capabilities"]["drop"] == ["ALL"], one
    assert not any(node.get(key) for key in ("hostPID", "hostIPC", "hostNetwork")), node
    paths = sorted(one["hostPath"]["path"] for one in node["volumes"] if "hostPath" in one)
    return f"the node part reaches {', '.join(paths)}"


def can(bench, verb, group, resource, name="", namespace=NAMESPACE):
    attributes = {"verb": verb, "group": group, "resource": resource, "name": name, "namespace": namespace}
    spec = {"user": f"system:serviceaccount:{NAMESPACE}:ration-webhook", "resourceAttributes": attributes}
    review, _ = bench.client.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    return review["status"]["allowed"]


@case("installs, with rights for what it does and for nothing else; upgrades; uninstalls without a trace")
def installs(bench):
    bench.webhook
    cluster = bench.cluster
    cluster.helm("install", "ration", CHART, "-n", NAMESPACE, "--create-namespace")
    try:
        found = installed(bench)
        assert len(found) >= 13, found
        hooks = "admissionregistration.k8s.io", "mutatingwebhookconfigurations"
        allowed = [
            ("get", *hooks, "ration-webhook", ""),
            ("patch", *hooks, "ration-webhook", ""),
            ("watch", "", "namespaces", "", ""),
            ("get", "", "pods", "x", "on"),  # before 1.23 only
            ("get", "", "secrets", "ration-webhook-tls"),
            ("update", "", "secrets", "ration-webhook-tls"),
        ]
        denied = [
            ("create", "", "secrets"),
            ("patch", *hooks, "another", ""),
            ("list", "", "secrets"),
            ("get", "", "secrets", "another"),
            ("get", "", "secrets", "ration-webhook-tls", "default"),
            ("create", "", "secrets", "", "default"),
            ("list", "", "pods", "", ""),
            ("patch", "", "namespaces", "on", ""),
            ("create", "", "pods"),
            ("get", "", "configmaps", "x", "kube-system"),
        ]
        refused = [what for what in allowed if not can(bench, *what)]
        assert not refused, f"it may not {refused}"
        beyond = [what for what in denied if can(bench, *what)]
        assert not beyond, f"it may {beyond}"
        role = of_kind(rendered(bench, "--kube-version", "1.23.0"), "ClusterRole")
        assert not any("pods" in rule["resources"] for rule in role["rules"]), "it may read pods, and need not from 1.23 on"
        before = self_made(bench)
        cluster.helm("upgrade", "ration", CHART, "-n", NAMESPACE, "--set", "webhook.replicas=3,config.defaults.memory=1Gi")
        deployed = bench.client.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/ration-webhook")
        assert deployed["spec"]["replicas"] == 3, deployed["spec"]
        config = bench.client.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/ration-config")["data"]["config.yaml"]
        assert yaml.safe_load(config)["defaults"] == {"memory": "1Gi"}, config
        hook = bench.client.get("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/ration-webhook")
        bundles = [one["clientConfig"].get("caBundle") for one in hook["webhooks"]]
        secret = bench.client.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/ration-webhook-tls")
        assert bundles == [before, before] and secret.get("data"), "the upgrade took the authority away: nothing is admitted"
    finally:
        cluster.helm("uninstall", "ration", "-n", NAMESPACE)
    left = installed(bench)
    assert not left, f"left behind: {left}"
    secrets = [one["metadata"]["name"] for one in bench.client.get(f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"]]
    assert not secrets, f"left behind: secrets {secrets}"
    return f"{len(found)} objects; {len(allowed)} rights, {len(denied)} that it has not"


def self_made(bench):
    """Two replicas with the chart's own arguments and its account's rights: both serve what one authority issued. Its
    certificate, as it was written into the configuration."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/ration-webhook/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = bench.client.call("POST", path, request)[0]["status"]["token"]
    kubeconfig = bench.cluster.write_kubeconfig("account", token)
    arguments = of_kind(rendered(bench), "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    replicas = [
        Webhook(bench.injector, bench.directory, kubeconfig, name=f"replica-{number}", chart=(NAMESPACE, arguments))
        for number in range(2)
    ]
    try:
        hook = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/ration-webhook"
        bundles = {one["clientConfig"].get("caBundle") for one in bench.client.get(hook)["webhooks"]}
        assert len(bundles) == 1 and None not in bundles, f"caBundle of the entries: {bundles}"
        bundle = bundles.pop()
        trusting = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
        for replica in replicas:
            replica.handshake(trusting, f"ration-webhook.{NAMESPACE}.svc")
    finally:
        for replica in replicas:
            replica.stop()
    return bundle


@case("the program takes the arguments that the chart gives it")
def arguments(bench):
    for kind in ("Deployment", "DaemonSet"):
        for how in [*MODES.values(), ["--set", "node.uninstall=true"]]:
            given = of_kind(rendered(bench, *how), kind)["spec"]["template"]["spec"]["containers"][0]["args"]
            done = subprocess.run([bench.injector, *given, "--help"], capture_output=True, text=True)
            assert done.returncode == 0, f"{given}: {done.stderr}"
    done = subprocess.run([bench.injector, "webhook", "--nonsense=1", "--help"], capture_output=True, text=True)
    assert done.returncode != 0, "it takes anything, so this test says nothing"


@case("and the configuration")
def configuration(bench):
    file = bench.directory / "rendered.yaml"
    for values in ("config.delivery=hostPath", "config.delivery=image", "config.maxima.memory=8Gi", "node.hostPaths.library=/opt/ration"):
        file.write_text(of_kind(rendered(bench, "--set", values), "ConfigMap")["data"]["config.yaml"])
        done = subprocess.run([bench.injector, "check", file], capture_output=True, text=True)
        assert done.returncode == 0, f"{values}: {done.stderr}"
    seen = yaml.safe_load(file.read_text())["hostPaths"]["library"]
    assert seen == "/opt/ration/lib/current", f"the node part writes to /opt/ration, and pods are given {seen}"
    done = bench.cluster.helm("template", "ration", CHART, "--set", "config.delivrey=image", "-s", "templates/config.yaml").stdout
    file.write_text(yaml.safe_load(done)["data"]["config.yaml"])
    done = subprocess.run([bench.injector, "check", file], capture_output=True, text=True)
    assert done.returncode != 0 and "delivrey" in done.stderr, "it takes anything, so this test says nothing"


@case("the plain manifests apply and go away again")
def plain(bench):
    bench.webhook
    made = []
    for file in sorted((ROOT / "deploy" / "manifests").glob("*.yaml")):
        # 1.20 has PodDisruptionBudgets in their beta version alone, and nothing of cert-manager's.
        documents = [one for one in yaml.safe_load_all(file.read_text()) if one and "cert-manager.io" not in one["apiVersion"]]
        for one in documents:
            if one["kind"] == "PodDisruptionBudget":
                one["apiVersion"] = "policy/v1beta1"
        text = yaml.safe_dump_all(documents)
        bench.cluster.kubectl("apply", "-f", "-", stdin=text)
        again = bench.cluster.kubectl("apply", "-f", "-", stdin=text).stdout
        changed = [line for line in again.splitlines() if not line.endswith("unchanged") and "configured" in line]
        without_namespace = [one for one in documents if one["kind"] != "Namespace"]
        bench.cluster.kubectl("delete", "--wait=false", "-f", "-", stdin=yaml.safe_dump_all(without_namespace))
        made.append(f"{file.name}: {len(documents)} objects")
        assert not changed or all("mutatingwebhook" in line or "poddisruption" in line for line in changed), changed
    return "; ".join(made)


@case("the examples are admitted")
def examples(bench):
    files = sorted((ROOT / "examples").glob("*.yaml"))
    if not files:
        raise Skip("there are none in examples/")
    bench.webhook
    admitted = []
    for file in files:
        for document in yaml.safe_load_all(file.read_text()):
            if not document:
                continue
            if document["kind"] == "Namespace" or document["kind"] == "ConfigMap":
                continue
            pod = as_pod(document)
            if pod is None:
                continue
            bench.client.create_pod("on", pod, dry_run=True)
            # 1.20 drops fields that it does not know, so the webhook is asked as a current API server would ask.
            pod["metadata"]["namespace"] = "on"
            changed = patched(pod, bench.webhook.review(review_of(pod)))
            containers = changed["spec"]["containers"] + changed["spec"].get("initContainers", [])
            assert any(is_injected(changed, one["name"]) for one in containers), f"{file.name}: no container is injected"
            bench.admitted[f"{file.name}: {document['metadata']['name']}"] = changed
            admitted.append(document["metadata"]["name"])
    return f"{len(admitted)}: {', '.join(admitted)}"


def as_pod(document):
    """The pod that a document makes, whatever makes it."""
    template = document if document["kind"] == "Pod" else document.get("spec", {}).get("template")
    if template is None:
        return None
    metadata = {key: value for key, value in template.get("metadata", {}).items() if key != "namespace"}
    metadata.pop("name", None)
    metadata["generateName"] = "example-"
    spec = dict(template["spec"])
    if document["kind"] in ("Job", "CronJob"):
        spec.setdefault("restartPolicy", "Never")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
