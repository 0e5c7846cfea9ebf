"""Certificates that the webhook makes itself are renewed, its authority's too, while admissions go on.

That takes a minute, the shortest life that a certificate can be given. It begins when the webhook first starts and goes on
beside the other tests; this one, the last, waits for the rest of it.
"""

import base64
import threading
import time

from bench import case
from cluster import wait_until
from pods import is_injected, pod
from webhook import Webhook

NAMESPACE = "renewing"
ARGUMENTS = ["--cert-secret=own", "--webhook-configuration=own", "--service=own", "--name=127.0.0.1"]
LIVES = ["--ca-life=60s", "--cert-life=60s", "--ca-settle=5s"]


class Renewal:
    """Two replicas that share what they make, and a trickle of admissions that both of them see."""

    def __init__(self, bench):
        self.client, self.done, self.wrong, self.going = bench.client, 0, [], True
        # By this name, which 1.20 lets anyone give it, everybody else's webhooks leave it out: the chart's, which lead nowhere.
        self.client.make_namespace(NAMESPACE, {"renewal": "yes", "kubernetes.io/metadata.name": "kube-system"})
        self.replicas, entries = [], []
        chart = ("default", ["webhook", *ARGUMENTS, *LIVES])
        path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        self.client.call("POST", path, {"metadata": {"name": "own"}, "webhooks": []})
        for number in range(2):
            replica = Webhook(bench.injector, bench.directory, bench.cluster.kubeconfig, name=f"own-{number}", chart=chart)
            self.replicas.append(replica)
            entry = replica.entries(bundle="")[1]
            entry["name"] = f"replica-{number}.ration.dev"
            entry["namespaceSelector"] = {"matchLabels": {"renewal": "yes"}}
            entries.append(entry)
        self.client.apply_webhooks("own", entries)
        wait_until(lambda: all(self.bundles()), 30, "the replicas to write their authority into the configuration")
        self.first = self.seen()
        wait_until(self._admit, 20, "the API server to trust them")
        self.thread = threading.Thread(target=self._load, daemon=True)
        self.thread.start()
        bench.stopping.append(self)

    def bundles(self):
        path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/own"
        return [one["clientConfig"].get("caBundle") for one in self.client.get(path)["webhooks"]]

    def seen(self):
        """What is trusted now, and what is served: the authorities, and each replica's certificate's number."""
        secret = self.client.get("/api/v1/namespaces/default/secrets/own")["data"]
        return base64.b64decode(secret["ca.crt"]).decode(), base64.b64decode(secret["tls.crt"]).decode()

    def _admit(self):
        try:
            made = pod("renewed-", annotations={"ration.dev/memory": "1Gi"}, labels={"ration.dev/inject": "enabled"}, generate=True)
            stored, _ = self.client.create_pod(NAMESPACE, made, dry_run=True)
            return is_injected(stored)
        except Exception as why:  # noqa: BLE001: each is a finding
            self.last = str(why)
            return False

    def _load(self):
        while self.going:
            self.last = "it was not injected"
            if not self._admit():
                self.wrong.append(f"after {self.done}: {self.last}")
            self.done += 1
            time.sleep(0.05)

    def stop(self):
        self.going = False
        self.thread.join()
        self.client.delete_webhooks("own")
        for replica in self.replicas:
            replica.stop()


def begun(bench):
    if not hasattr(bench, "renewal"):
        bench.renewal = Renewal(bench)
    return bench.renewal


@case("the webhook's own authority and certificate are replaced under load, and no admission fails")
def renewed(bench):
    renewal = begun(bench)

    def replaced():
        authorities, certificate = renewal.seen()
        in_use = [text.split("-----END")[0] for text in (renewal.first[0], authorities)]  # the first of those that are trusted
        return certificate != renewal.first[1] and in_use[0] != in_use[1]

    wait_until(replaced, 150, "another authority to be in use", every=0.5)
    at_that_time = renewal.done
    wait_until(lambda: renewal.done > at_that_time + 40, 60, "40 admissions more")
    assert not renewal.wrong, f"{len(renewal.wrong)} of {renewal.done} failed: {renewal.wrong[0]}"
    return f"{renewal.done} admissions by two replicas, {renewal.done - at_that_time} of them under the new authority; none failed"
