"""What every test works with: a cluster with the webhook registered, and a few namespaces. Made when first asked for."""

import inspect
import os
from pathlib import Path

from cluster import Cluster, Refused, wait_until
from webhook import Webhook, put

ROOT = Path(__file__).resolve().parents[2]
cases = []


class Skip(Exception):
    """Cannot be tried here, and why."""


class Broken(Exception):
    """What all tests need could not be started, so there is no use in going on."""


class Case:
    def __init__(self, module, name, run):
        self.module, self.name, self.run = module, name, run


def case(name):
    """Makes a test of a function. What it returns is printed beside its name."""

    def register(function):
        cases.append(Case(inspect.getmodule(function).__name__.removeprefix("test_"), name, function))
        return function

    return register


def needed(name):
    found = os.environ.get(name)
    if not found:
        raise Skip(f"{name} is not set: ci/cluster sets it")
    return found


class Bench:
    def __init__(self, directory):
        self.directory = Path(directory)
        self._cluster = self._webhook = None
        self.stopping = []
        self.admitted = {}  # "how it was asked for": the pod as it was stored, for test_schemas
        self._names = 0

    @property
    def cluster(self):
        if self._cluster is None:
            path = self.directory / "cluster"
            path.mkdir()
            try:
                self._cluster = Cluster(path, needed("KUBE_APISERVER"), needed("KUBECTL"), needed("HELM"))
            except (AssertionError, OSError) as why:
                raise Broken(f"the cluster does not start: {why}") from why
            print(f"      kube-apiserver {self._cluster.version}")
            for name, labels in {
                "on": {"ration.dev/inject": "enabled"},
                "off": {},
                "baseline": {"ration.dev/inject": "enabled", "pod-security.kubernetes.io/enforce": "baseline"},
                "restricted": {"ration.dev/inject": "enabled", "pod-security.kubernetes.io/enforce": "restricted"},
                "privileged": {"ration.dev/inject": "enabled", "pod-security.kubernetes.io/enforce": "privileged"},
            }.items():
                self._cluster.client.make_namespace(name, labels)
        return self._cluster

    @property
    def client(self):
        return self.cluster.client

    @property
    def injector(self):
        return needed("RATION_INJECTOR")

    @property
    def webhook(self):
        """Registered, and in force: the API server takes a moment to see a new configuration."""
        if self._webhook is None:
            try:
                self._webhook = Webhook(self.injector, self.directory, self.cluster.kubeconfig)
                self.register()
            except (AssertionError, OSError) as why:
                raise Broken(f"the webhook does not start: {why}") from why
        return self._webhook

    def register(self, **how):
        self.client.apply_webhooks("ration", self._webhook.entries(**how))
        probe = {"metadata": {"generateName": "probe-"}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
        before = self.asked()

        def answered():
            try:
                self.client.create_pod("on", probe, dry_run=True)
            except Refused:
                pass
            return self.asked() > before

        wait_until(answered, 20, "the API server to ask the webhook")

    def asked(self):
        """How many reviews the webhook has answered."""
        return sum(value for name, value in self._webhook.metrics().items() if "admission" in name and "_total" in name)

    def configure(self, text):
        """Gives the webhook another configuration, and waits until it is in force."""
        said = len(self.webhook.process.said())
        put(self.webhook.config, text)
        wait_until(lambda: "configuration changed" in self.webhook.process.said()[said:], 10, "the webhook to see its configuration")
        return self.webhook.process.said()[said:]

    def asked_apart(self, config, review):
        """What a webhook with this configuration answers that knows of no API server, as if of a current one."""
        apart = Webhook(self.injector, self.directory, None, config, self.name("apart"))
        try:
            return apart.review(review)
        finally:
            apart.stop()

    def name(self, stem="pod"):
        self._names += 1
        return f"{stem}-{self._names}"

    def admit(self, pod, namespace="on", how=None):
        """Creates a pod; it and the warnings. It is kept for the validation against schemas."""
        self.webhook  # noqa: B018: it must be there before the pod
        stored, warnings = self.client.create_pod(namespace, pod)
        self.admitted[how or f"{namespace}/{stored['metadata']['name']}"] = stored
        return stored, warnings

    def refuse(self, pod, namespace="on"):
        """What is said to whoever wants to create this pod, which must not be admitted."""
        self.webhook  # noqa: B018: it must be there before the pod
        try:
            stored, _ = self.client.create_pod(namespace, pod)
        except Refused as why:
            return why.message
        raise AssertionError(f"it was admitted, with annotations {stored['metadata'].get('annotations')}")

    def stop(self):
        for thing in reversed([self._cluster, self._webhook, *self.stopping]):
            if thing is not None:
                thing.stop()
