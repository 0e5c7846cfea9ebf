"""The injector's webhook as a process, its certificates, and how the API server is told of it."""

import base64
import http.client
import json
import os
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from cluster import Process, free_port

SELECTED = {"key": "ration.dev/inject", "operator": "In", "values": ["enabled"]}
NOT_SELECTED = {"key": "ration.dev/inject", "operator": "NotIn", "values": ["enabled"]}


class Authority:
    """Issues certificates for 127.0.0.1."""

    def __init__(self, directory, name="authority"):
        self.directory, self.key, self.certificate = Path(directory), Path(directory) / f"{name}.key", Path(directory) / f"{name}.crt"
        self._openssl("req", "-x509", *self._new_key(self.key), "-days", "2", "-subj", f"/CN={name}", "-out", self.certificate)

    @staticmethod
    def _new_key(path):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path]

    def _openssl(self, *arguments):
        done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(f"openssl {arguments[0]}: {done.stderr}")
        return done.stdout

    def issue(self, directory, name):
        """NAME.crt and NAME.key, in that directory."""
        directory = Path(directory)
        request, names = directory / f"{name}.csr", directory / f"{name}.ext"
        names.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n")
        self._openssl("req", "-new", *self._new_key(directory / f"{name}.key"), "-subj", f"/CN={name}", "-out", request)
        self._openssl(
            *["x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial"],
            *["-days", "1", "-extfile", names, "-out", directory / f"{name}.crt"],
        )
        return directory / f"{name}.crt", directory / f"{name}.key"

    def bundle(self):
        return base64.b64encode(self.certificate.read_bytes()).decode()


def put(path, content):
    """Writes a file as a careful program does: whole, and then in its place."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.replace(beside, path)


class Webhook:
    """`ration-injector webhook`, with its files in a directory that tests may write to."""

    def __init__(self, program, directory, kubeconfig, config="{}\n", name="webhook", authority=None, chart=None):
        """With `chart`, a namespace and the arguments that the chart has for it: it then makes its own certificates. Without a
        `kubeconfig`, it knows of no API server."""
        self.directory = Path(directory) / name
        self.directory.mkdir()
        self.program, self.port, self.status = program, free_port(), free_port()
        self.config = self.directory / "config.yaml"
        put(self.config, config)
        changed = {"--listen": f"127.0.0.1:{self.port}", "--status": f"127.0.0.1:{self.status}", "--config": str(self.config)}
        env = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "POD_"))}
        if kubeconfig:
            env["KUBECONFIG"] = str(kubeconfig)
        if chart:
            env["POD_NAMESPACE"], given = chart
            kept = [one for one in given if one.split("=")[0] not in changed]
        else:
            self.authority = authority or Authority(self.directory)
            self.certificate, self.key = self.directory / "tls.crt", self.directory / "tls.key"
            self.rotate("first")
            kept = ["webhook", f"--tls-cert={self.certificate}", f"--tls-key={self.key}"]
        command = [program, *kept, *(f"{flag}={value}" for flag, value in changed.items())]
        command += ["--reload-interval=100ms", "--drain-delay=100ms", *([] if kubeconfig else ["--offline"])]
        self.process = Process(name, command, self.directory, env)
        self.wait_ready()

    def wait_ready(self):
        self.process.wait_for(lambda: self.ask_status("/readyz")[0] == 200, 20, "readiness")

    def rotate(self, name):
        """A new certificate of the same authority, in the place of the old."""
        certificate, key = self.authority.issue(self.directory, name)
        put(self.key, key.read_bytes())
        put(self.certificate, certificate.read_bytes())
        return certificate

    def ask_status(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.status}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as why:
            return why.code, why.read().decode()
        except OSError as why:
            return 0, str(why)

    def metrics(self):
        """The metrics that are plain counters and gauges: the line's left side, and its number."""
        lines = (line.rsplit(" ", 1) for line in self.ask_status("/metrics")[1].splitlines() if not line.startswith("#"))
        return {line[0]: float(line[1]) for line in lines if len(line) == 2}

    def serial(self):
        """Of the certificate that is served now."""
        return self.handshake(self._tls(), "127.0.0.1")["serialNumber"]

    def handshake(self, trusting, name):
        """The certificate that is served to who asks for this name; an error where it is not trusted for it."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as link:
            with trusting.wrap_socket(link, server_hostname=name) as session:
                return session.getpeercert()

    def _tls(self):
        return ssl.create_default_context(cafile=str(self.authority.certificate))

    def review(self, review):
        """Asks it directly, as an API server would that is newer than the one here."""
        link = http.client.HTTPSConnection("127.0.0.1", self.port, context=self._tls(), timeout=10)
        link.request("POST", "/mutate?timeout=5s", json.dumps(review), {"Content-Type": "application/json"})
        answer = link.getresponse()
        body = answer.read()
        assert answer.status == 200, f"{answer.status}: {body[:300]}"
        return json.loads(body)["response"]

    def entries(self, excluded=("kube-system",), bundle=None):
        """As the chart has them, but for the way to get there: nothing here routes to a Service."""

        def entry(name, selector, objects):
            found = {
                "name": f"{name}.ration.dev",
                "clientConfig": {"url": f"https://127.0.0.1:{self.port}/mutate", "caBundle": self.authority.bundle() if bundle is None else bundle},
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 5,
                "reinvocationPolicy": "IfNeeded",
                "rules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["pods"]},
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods/ephemeralcontainers"]},
                ],
                "namespaceSelector": {"matchExpressions": [
                    selector,
                    {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(excluded)},
                ]},
            }  # fmt: skip
            if objects:
                found["objectSelector"] = objects
            return found

        return [
            entry("namespaces", SELECTED, None),
            entry("pods", NOT_SELECTED, {"matchLabels": {"ration.dev/inject": "enabled"}}),
        ]

    def stop(self, kill=False):
        self.process.stop(kill)
