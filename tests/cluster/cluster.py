"""A Kubernetes control plane for tests: etcd and kube-apiserver in a directory of their own, and a client of theirs.

There is no kubelet, no scheduler and no controller: a pod is admitted, stored, and goes nowhere.
"""

import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

TOKEN = "cluster-tests"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_until(true, seconds, what, every=0.05):
    """Waits until `true()` is, and says what was waited for when it never is."""
    end = time.monotonic() + seconds
    while True:
        value = true()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(every)


class Process:
    """A server of ours, with its output in a file; ended by its id."""

    def __init__(self, name, command, directory, env=None):
        self.name, self.log = name, Path(directory) / f"{name}.log"
        self.command, self.env = [str(part) for part in command], env
        self.process = None
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.env, cwd=self.log.parent
            )

    def said(self):
        return self.log.read_text(errors="replace")

    def ended(self):
        return self.process.poll() is not None

    def wait_for(self, true, seconds, what):
        def ready():
            if self.ended():
                raise AssertionError(f"{self.name} ended with {self.process.returncode}: {self.said()[-1500:]}")
            return true()

        wait_until(ready, seconds, f"{self.name}: {what}")

    def stop(self, kill=False):
        if self.ended():
            return
        self.process.kill() if kill else self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Refused(Exception):
    """What the API server answered instead of doing it."""

    def __init__(self, status, body):
        self.status, self.body = status, body
        self.message = body.get("message", "") if isinstance(body, dict) else str(body)
        super().__init__(f"{status}: {self.message}")


def unquoted(header):
    """The text of a Warning header: `299 - "text"`, with backslashes before quotes."""
    text = re.fullmatch(r'\d+ \S+ "((?:[^"\\]|\\.)*)"', header)
    return re.sub(r"\\(.)", r"\1", text[1]) if text else header


class Client:
    """Speaks to the API server: one connection a thread."""

    def __init__(self, port, authority, token=TOKEN):
        self.port, self.token, self.local = port, token, threading.local()
        self.tls = ssl.create_default_context(cafile=authority)
        self.tls.check_hostname = False

    def call(self, method, path, body=None, kind="application/json", timeout=60):
        """The answer's object and its warnings. Refused where it is none of the 2xx."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind, "Accept": "application/json"}
        payload = None if body is None else json.dumps(body)
        for last_try in (False, True):
            link = getattr(self.local, "link", None)
            if link is None:
                link = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.tls, timeout=timeout)
                self.local.link = link
            try:
                link.request(method, path, payload, headers)
                answer = link.getresponse()
                content = answer.read()
                break
            except (http.client.HTTPException, OSError):
                # A connection that was idle may have been closed at the other end; a second one is told as it is.
                self.local.link = None
                if last_try:
                    raise
        try:
            content = json.loads(content)
        except ValueError:
            content = content.decode(errors="replace")
        if not 200 <= answer.status < 300:
            raise Refused(answer.status, content)
        headers = [text for name, text in answer.getheaders() if name.lower() == "warning"]
        return content, [unquoted(text) for text in headers]

    def get(self, path):
        return self.call("GET", path)[0]

    def create_pod(self, namespace, pod, dry_run=False):
        query = "?dryRun=All" if dry_run else ""
        return self.call("POST", f"/api/v1/namespaces/{namespace}/pods{query}", pod)

    def pod(self, namespace, name):
        return self.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def patch_pod(self, namespace, name, patch):
        return self.call("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}", patch, "application/merge-patch+json")

    def debug_pod(self, namespace, name, *containers):
        """Adds ephemeral containers, as `kubectl debug` did it before 1.23."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/ephemeralcontainers"
        there = self.get(path)
        there["ephemeralContainers"] = [*there.get("ephemeralContainers", []), *containers]
        return self.call("PUT", path, there)

    def delete_pod(self, namespace, name):
        return self.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})

    def make_namespace(self, name, labels=None):
        # What Kubernetes does by itself from 1.21 on.
        labels = {"kubernetes.io/metadata.name": name, **(labels or {})}
        return self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})

    def apply_webhooks(self, name, webhooks):
        """Made or changed, without a moment in which there are none."""
        path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        try:
            metadata = self.get(f"{path}/{name}")["metadata"]
        except Refused:
            self.call("POST", path, {"metadata": {"name": name}, "webhooks": webhooks})
        else:
            self.call("PUT", f"{path}/{name}", {"metadata": metadata, "webhooks": webhooks})

    def delete_webhooks(self, name):
        path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        try:
            self.call("DELETE", f"{path}/{name}")
        except Refused as why:
            if why.status != 404:
                raise


class Cluster:
    """etcd and kube-apiserver, ready."""

    def __init__(self, directory, api_server, kubectl, helm):
        self.directory, self.kubectl_path, self.helm_path = Path(directory), kubectl, helm
        self.processes = []
        try:
            self._start(api_server)
        except BaseException:
            self.stop()
            raise

    def _start(self, api_server):
        here = self.directory
        store, peers, self.port = free_port(), free_port(), free_port()
        etcd = Process(
            "etcd",
            ["etcd", "--data-dir", here / "etcd", "--unsafe-no-fsync", "--log-level", "warn"]
            + ["--listen-client-urls", f"http://127.0.0.1:{store}", "--advertise-client-urls", f"http://127.0.0.1:{store}"]
            + ["--listen-peer-urls", f"http://127.0.0.1:{peers}"],
            here,
        )
        self.processes.append(etcd)
        (here / "tokens.csv").write_text(f"{TOKEN},tests,tests,system:masters\n")
        subprocess.run(["openssl", "genrsa", "-out", here / "accounts.key", "2048"], check=True, capture_output=True)
        self.audit = here / "audit.log"
        (here / "audit.yaml").write_text(
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n"
            '  - {level: Metadata, verbs: [create, update, patch], resources: [{group: "", resources: [pods]}]}\n'
            "  - {level: None}\n"
        )
        server = Process(
            "kube-apiserver",
            [api_server, "--etcd-servers", f"http://127.0.0.1:{store}", "--bind-address", "127.0.0.1"]
            + ["--secure-port", self.port, "--insecure-port", "0", "--cert-dir", here / "serving"]
            + ["--service-account-key-file", here / "accounts.key", "--service-account-signing-key-file", here / "accounts.key"]
            + ["--service-account-issuer", "https://kubernetes.default.svc", "--service-cluster-ip-range", "10.0.0.0/24"]
            + ["--api-audiences", "https://kubernetes.default.svc", "--token-auth-file", here / "tokens.csv"]
            + ["--authorization-mode", "RBAC", "--disable-admission-plugins", "ServiceAccount", "--allow-privileged"]
            + ["--audit-policy-file", here / "audit.yaml", "--audit-log-path", self.audit, "--audit-log-mode", "blocking"]
            + ["--feature-gates", "EphemeralContainers=true"]
            + ["--max-requests-inflight", "2000", "--max-mutating-requests-inflight", "1000"],
            here,
        )
        self.processes.append(server)
        self.authority = here / "serving" / "apiserver.crt"
        server.wait_for(self.authority.exists, 60, "its certificate")
        self.client = Client(self.port, str(self.authority))
        self.wait_ready()
        self.version = self.client.get("/version")["gitVersion"]
        self.kubeconfig = self.write_kubeconfig("tests", TOKEN)

    def wait_ready(self):
        def ready():
            try:
                self.client.call("GET", "/readyz")
                return bool(self.client.get("/api/v1/namespaces/default"))
            except (Refused, OSError, http.client.HTTPException):
                return False

        self.processes[-1].wait_for(ready, 120, "readiness")

    def write_kubeconfig(self, name, token):
        path = self.directory / f"{name}.kubeconfig"
        server = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(self.authority)}
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": server}],
            "users": [{"name": "tests", "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        }))  # fmt: skip
        return path

    def tool(self, program, *arguments, check=True, stdin=None):
        """kubectl or helm, on this cluster: what it printed, and how it ended."""
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.directory)}
        done = subprocess.run(
            [str(program), *map(str, arguments)], env=env, capture_output=True, text=True, input=stdin, timeout=120
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{Path(program).name} {' '.join(map(str, arguments))}: {done.stderr or done.stdout}")
        return done

    def kubectl(self, *arguments, **how):
        return self.tool(self.kubectl_path, *arguments, **how)

    def helm(self, *arguments, **how):
        return self.tool(self.helm_path, *arguments, **how)

    def audited(self, namespace, name):
        """The annotations that admission left in the audit log for the creation of a pod."""
        found = {}
        for line in self.audit.read_text().splitlines():
            event = json.loads(line)
            about = event.get("objectRef", {})
            if event["verb"] == "create" and (about.get("namespace"), about.get("name")) == (namespace, name):
                found.update(event.get("annotations", {}))
        return found

    def stop(self):
        for process in reversed(self.processes):
            process.stop()

