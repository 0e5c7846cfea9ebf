"""Certificates that change while admissions go on, those that the webhook makes itself, and a webhook that is not there."""

import threading
import time

from bench import case
from cluster import Refused, wait_until
from pods import is_injected, is_untouched, pod
from webhook import Webhook, put

ASKING = {"ration.dev/memory": "8Gi"}


class Load:
    """Creates pods, dry, from several threads until it is told to stop; keeps what went wrong."""

    def __init__(self, client, threads=4):
        self.client, self.done, self.wrong, self.going = client, 0, [], True
        self.threads = [threading.Thread(target=self._create, daemon=True) for _ in range(threads)]

    def _create(self):
        while self.going:
            try:
                stored, _ = self.client.create_pod("on", pod("loaded-", annotations=ASKING, generate=True), dry_run=True)
                if not is_injected(stored):
                    self.wrong.append("not injected")
            except Exception as why:  # noqa: BLE001: each is a finding
                self.wrong.append(str(why))
            self.done += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.going = False
        for thread in self.threads:
            thread.join()


@case("certificates are exchanged under load, and no admission fails")
def rotation(bench):
    bench.webhook
    serials = {bench.webhook.serial()}
    with Load(bench.client) as load:
        for turn in range(5):
            before = load.done
            bench.webhook.rotate(f"turn-{turn}")
            wait_until(lambda: bench.webhook.serial() not in serials, 10, "the new certificate to be served")
            serials.add(bench.webhook.serial())
            wait_until(lambda: load.done > before + 20, 20, "20 admissions")
    assert not load.wrong, f"{len(load.wrong)} of {load.done} failed: {load.wrong[0]}"
    return f"{len(serials) - 1} exchanges, {load.done} admissions, none failed"


@case("a key that does not fit its certificate: the old ones stay, and that is said")
def broken_certificate(bench):
    serial, said = bench.webhook.serial(), len(bench.webhook.process.said())
    put(bench.webhook.key, "no key\n")
    wait_until(lambda: "key" in bench.webhook.process.said()[said:], 10, "the log to say so")
    assert bench.webhook.serial() == serial
    bench.admit(pod(bench.name("old-key"), annotations=ASKING))
    bench.webhook.rotate("mended")
    wait_until(lambda: bench.webhook.serial() != serial, 10, "the mended pair to be served")


@case("the webhook is down: namespaces that opted in refuse, others go on")
def down(bench):
    bench.webhook.stop()
    try:
        said = bench.refuse(pod("orphan", annotations=ASKING))
        assert "failed calling webhook" in said and "ration.dev" in said, said
        stored, _ = bench.client.create_pod("off", pod(bench.name("free")))
        assert is_untouched(stored), stored
    finally:
        bench.webhook.process.start()
        bench.webhook.wait_ready()

    def back():
        try:
            stored, _ = bench.client.create_pod("on", pod("back-", annotations=ASKING, generate=True))
            return is_injected(stored)
        except Refused:
            return False

    wait_until(back, 10, "admissions to go on")
    return said


@case("it is ended while it answers: what was begun is finished")
def graceful(bench):
    """Two replicas in turn, as in a rolling update: the API server is told of one that goes on before the other ends."""
    other = Webhook(bench.injector, bench.directory, bench.cluster.kubeconfig, name="second", authority=bench.webhook.authority)
    bench.stopping.append(other)
    first = bench.webhook
    with Load(bench.client) as load:
        wait_until(lambda: load.done > 20, 20, "20 admissions")
        bench._webhook = other
        bench.register()
        time.sleep(1)  # the API server has no way to say that it is done with the old address
        first.stop()
        before = load.done
        wait_until(lambda: load.done > before + 20, 20, "20 admissions")
    ended = first.process.process.returncode
    assert ended == 0, f"it ended with {ended}: {first.process.said()[-500:]}"
    assert not load.wrong, f"{len(load.wrong)} of {load.done} failed: {load.wrong[0]}"
    return f"{load.done} admissions, none failed"

