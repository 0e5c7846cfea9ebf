"""Dry runs, updates, a second webhook beside ours, and a configuration that changes."""

import base64
import http.server
import json
import ssl
import threading

from bench import case
from cluster import Refused, free_port, wait_until
from pods import container, is_injected, pod, slice_of
from webhook import Authority

Gi = 2**30
ASKING = {"ration.dev/memory": "8Gi"}


def settled(pod):
    """What a later admission must not change."""
    return {"spec": pod["spec"], "annotations": pod["metadata"].get("annotations", {})}


@case("a dry run shows what would be, and nothing is stored")
def dry_run(bench):
    bench.webhook
    shown, _ = bench.client.create_pod("on", pod("dry", annotations=ASKING), dry_run=True)
    assert slice_of(shown) == {"memory": 8 * Gi}, shown
    try:
        bench.client.pod("on", "dry")
    except Refused as why:
        assert why.status == 404, why
    else:
        raise AssertionError("it was stored")


@case("an admitted pod that is created again is not changed again")
def idempotent(bench):
    first, _ = bench.admit(pod("once", annotations=ASKING))
    again = {"apiVersion": "v1", "kind": "Pod", "spec": first["spec"]}
    again["metadata"] = {"name": "once", "annotations": first["metadata"]["annotations"]}
    bench.client.delete_pod("on", "once")
    second, _ = bench.admit(again)
    assert settled(second) == settled(first), f"seen {settled(second)}, wanted {settled(first)}"


@case("an update of something else changes nothing of ours")
def unrelated_update(bench):
    before, _ = bench.admit(pod("updated", annotations=ASKING))
    after, _ = bench.client.patch_pod("on", "updated", {"metadata": {"labels": {"team": "a"}}})
    assert settled(after) == settled(before), f"seen {settled(after)}, wanted {settled(before)}"
    assert after["metadata"]["labels"] == {"team": "a"}


@case("an update of what is asked for changes the quota")
def update(bench):
    bench.admit(pod("resized", annotations=ASKING))
    after, _ = bench.client.patch_pod("on", "resized", {"metadata": {"annotations": {"ration.dev/memory": "4Gi"}}})
    assert slice_of(after) == {"memory": 4 * Gi}, slice_of(after)
    after, _ = bench.client.patch_pod("on", "resized", {"metadata": {"annotations": {"ration.dev/compute": "40%"}}})
    assert slice_of(after) == {"memory": 4 * Gi, "request": 40, "limit": 40}, slice_of(after)
    try:
        bench.client.patch_pod("on", "resized", {"metadata": {"annotations": {"ration.dev/memory": "lots"}}})
    except Refused as why:
        return why.message.split("denied the request: ", 1)[-1]
    raise AssertionError("an update that is not understood was admitted")


@case("what the webhook wrote cannot be edited, taken away or opted out of")
def no_way_round(bench):
    before, _ = bench.admit(pod("tampered", annotations=ASKING))
    ours = [key for key in before["metadata"]["annotations"] if key.startswith("ration.dev/") and key not in ASKING]
    told = []
    tries = {f"{key} edited": {"annotations": {key: "memory = 80GiB\nname = someone/else/main\n"}} for key in ours}
    tries |= {f"{key} removed": {"annotations": {key: None}} for key in ours}
    tries["the label opts out"] = {"labels": {"ration.dev/inject": "disabled"}}
    for what, change in tries.items():
        for step in (change, {"labels": {"step": "2"}}, change):  # the later ones could be such that nobody is asked about
            try:
                bench.client.patch_pod("on", "tampered", {"metadata": step})
            except Refused as why:
                told.append(why.message)
        after = bench.client.pod("on", "tampered")
        seen = {key: after["metadata"]["annotations"].get(key) for key in ours}
        wanted = {key: before["metadata"]["annotations"][key] for key in ours}
        assert seen == wanted, f"{what}: seen {seen}, wanted {wanted}"
    return f"{len(tries)} tries; {len(told)} refused, the others undone"


@case("nor can a pod that opted in by its label in a namespace that did not")
def no_way_round_by_label(bench):
    before, _ = bench.admit(pod("own-label", annotations=ASKING, labels={"ration.dev/inject": "enabled"}), "off")
    quota_key = next(key for key in before["metadata"]["annotations"] if key.startswith("ration.dev/quota"))
    for step in ({"labels": {"ration.dev/inject": None}}, {"annotations": {quota_key: "memory = 80GiB\n"}}):
        try:
            bench.client.patch_pod("off", "own-label", {"metadata": step})
        except Refused:
            pass
    after = bench.client.pod("off", "own-label")["metadata"]["annotations"].get(quota_key)
    wanted = before["metadata"]["annotations"][quota_key]
    assert after == wanted, f"seen {after!r}, wanted {wanted!r}"


class Sidecars(http.server.BaseHTTPRequestHandler):
    """A mutating webhook of somebody else's: adds a container with a GPU to each pod, once."""

    asked = 0

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        type(self).asked += 1
        response = {"uid": request["uid"], "allowed": True}
        if all(one["name"] != "theirs" for one in request["object"]["spec"]["containers"]):
            patch = [{"op": "add", "path": "/spec/containers/-", "value": container("theirs")}]
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@case("another webhook adds a container afterwards: ours is asked again, and changes only that")
def reinvocation(bench):
    bench.webhook
    directory = bench.directory / "theirs"
    directory.mkdir()
    authority = Authority(directory)
    certificate, key = authority.issue(directory, "theirs")
    port = free_port()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Sidecars)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = {"url": f"https://127.0.0.1:{port}/", "caBundle": authority.bundle()}
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    entry = {"name": "sidecars.example.com", "clientConfig": client, "rules": rules, "sideEffects": "None"}
    entry |= {"admissionReviewVersions": ["v1"], "reinvocationPolicy": "Never"}
    entry |= {"namespaceSelector": {"matchLabels": {"ration.dev/inject": "enabled"}}}
    try:
        # Webhooks are called in the order of their configurations' names: theirs after ours.
        bench.client.apply_webhooks("sidecars", [entry])

        def called():
            bench.client.create_pod("on", pod("probe", annotations=ASKING), dry_run=True)
            return Sidecars.asked > 0

        wait_until(called, 20, "the API server to ask the other webhook")
        stored, _ = bench.admit(pod("invaded", annotations={**ASKING, "ration.dev/memory.main": "2Gi"}))
    finally:
        bench.client.delete_webhooks("sidecars")
        server.shutdown()
    seen = {name: slice_of(stored, name) for name in ("main", "theirs")}
    assert seen == {"main": {"memory": 2 * Gi}, "theirs": {"memory": 8 * Gi}}, seen
    rounds = [key for key in bench.cluster.audited("on", "invaded") if "round_1" in key]
    assert rounds, "the audit log knows of no second round"
    names = [one["name"] for one in stored["spec"]["volumes"]]
    assert len(names) == len(set(names)), names

    def not_called():
        before = Sidecars.asked
        bench.client.create_pod("on", pod("probe", annotations=ASKING), dry_run=True)
        return Sidecars.asked == before

    wait_until(not_called, 20, "the other webhook to be forgotten")
    return seen


@case("a new configuration is in force without a restart; a broken one is not, and that is said")
def reload(bench):
    process = bench.webhook.process.process.pid
    bench.configure("maxima: {memory: 4Gi}\n")
    try:
        said = bench.refuse(pod(bench.name("reloaded"), annotations=ASKING))
        assert "maximum" in said, said
        log = bench.configure("maxima: {memroy: 40Gi}\n")
        assert "memroy" in log and "memory" in log, f"the log does not say what is wrong: {log}"
        bench.refuse(pod(bench.name("reloaded"), annotations=ASKING))
        failures = {key: value for key, value in bench.webhook.metrics().items() if "config" in key}
        assert failures, "no metric says so"
        status, _ = bench.webhook.ask_status("/readyz")
        assert status == 200, f"readiness {status}: a broken file must not take the webhook away"
    finally:
        bench.configure("{}\n")
    stored, _ = bench.admit(pod(bench.name("reloaded"), annotations=ASKING))
    assert is_injected(stored) and process == bench.webhook.process.process.pid
    return failures
