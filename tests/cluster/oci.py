"""Turns an admitted pod into real containers: the part of a kubelet and of a container runtime that its spec speaks of.

What is taken from the spec: command and arguments, the environment (values, downward API fields, `$(NAME)`), volumes of the
kinds hostPath, downwardAPI, emptyDir and image with subPath, subPathExpr and readOnly, and the security contexts. A field that is not known here
and would matter is an error, so that nothing is left out in silence. Each container has PID, mount, IPC, UTS and network
namespaces of its own.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from pods import field, the_container

DEFAULT_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID", "KILL", "NET_BIND_SERVICE"]
KNOWN_CONTAINER_FIELDS = {
    "name", "image", "command", "args", "env", "resources", "volumeMounts", "securityContext", "workingDir", "imagePullPolicy",
    "terminationMessagePath", "terminationMessagePolicy", "targetContainerName",
    "ports", "startupProbe", "readinessProbe", "livenessProbe",  # there is nobody to probe it
}  # fmt: skip
KNOWN_SECURITY_FIELDS = {
    "runAsUser", "runAsGroup", "runAsNonRoot", "readOnlyRootFilesystem", "allowPrivilegeEscalation", "capabilities", "privileged",
    "fsGroup", "seccompProfile", "supplementalGroups",
}  # fmt: skip


class Node:
    """A machine: its file system under a directory of its own, and the GPU that its runtime brings into containers.

    `images` has the root file system of each image, by its reference; `image` is that of all others.
    """

    def __init__(self, image, gpu_libraries, world, images=None):
        self.root = Path(tempfile.mkdtemp(prefix="ration-node-"))
        # /run is memory on every machine. It need not be executable, and often is not.
        self.memory = Path(tempfile.mkdtemp(prefix="ration-node-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.root.chmod(0o755)
        self.memory.chmod(0o755)
        self.image, self.images = Path(image), images or {}
        self.gpu_libraries, self.world = gpu_libraries, Path(world)
        self.containers, self._count = [], 0

    def path(self, of_host):
        if of_host == "/run" or of_host.startswith("/run/"):
            return self.memory / of_host[len("/run") :].lstrip("/")
        return self.root / of_host.lstrip("/")

    def stop(self):
        for one in self.containers:
            one.stop()
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self.memory, ignore_errors=True)

    def run(self, pod, name="main", command=None):
        """Starts a container of an admitted pod. `command` is the image's, for a spec that says none."""
        self._count += 1
        bundle = self.root / "bundles" / f"{pod['metadata']['name']}-{name}-{self._count}"
        bundle.mkdir(parents=True)
        started = Container(self, pod, name, bundle, command)
        self.containers.append(started)
        return started


def expanded(text, known):
    """`$(NAME)` where the name is known; `$$` is a dollar."""
    replace = lambda found: "$" + found[0][2:] if found[0].startswith("$$") else known.get(found[1], found[0])  # noqa: E731
    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)", replace, text)


def environment(pod, container, of_image):
    known = {}
    for one in container.get("env", []):
        if "valueFrom" in one:
            assert "fieldRef" in one["valueFrom"], f"{one}: this source of a value is not known here"
            known[one["name"]] = field(pod, one["valueFrom"]["fieldRef"]["fieldPath"])
        else:
            known[one["name"]] = expanded(one.get("value", ""), known)
    return {**of_image, **known}


class Container:
    def __init__(self, node, pod, name, bundle, command):
        self.node, self.pod, self.bundle = node, pod, bundle
        self.id = f"ration-{os.getpid()}-{bundle.name}"[:100]
        self.spec = the_container(pod, name)
        unknown = set(self.spec) - KNOWN_CONTAINER_FIELDS
        assert not unknown, f"{unknown} of the container are not known here"
        self.security = {**pod["spec"].get("securityContext", {}), **self.spec.get("securityContext", {})}
        unknown = set(self.security) - KNOWN_SECURITY_FIELDS
        assert not unknown, f"{unknown} of the security context are not known here"
        self.rootfs = bundle / "rootfs"
        shutil.copytree(node.images.get(self.spec["image"], node.image), self.rootfs, symlinks=True)
        (bundle / "config.json").write_text(json.dumps(self.config(command), indent=1))
        self.output = open(bundle / "output", "wb")
        self.process = subprocess.Popen(
            ["runc", "--root", str(node.root / "runc"), "run", "--bundle", str(bundle), self.id],
            stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------- from spec to config

    def config(self, command):
        of_image = {"PATH": "/bin", "HOME": "/"}
        asked_for = [one["name"] for one in self.spec.get("env", [])] + list(self.spec.get("resources", {}).get("limits", {}))
        has_gpu = "nvidia.com/gpu" in asked_for or "NVIDIA_VISIBLE_DEVICES" in asked_for
        mounts = [*self.machinery(), *self.volume_mounts()]
        if has_gpu:  # what NVIDIA's runtime does: the driver's libraries, and the devices
            of_image["RATION_SIM_DIR"] = "/dev/gpu-world"
            for path in self.node.gpu_libraries:
                mounts.append(bind(path, f"/usr/lib/x86_64-linux-gnu/{Path(path).name}", ["ro"]))
            mounts.append(bind(self.node.world, "/dev/gpu-world", ["rw"]))
        env = environment(self.pod, self.spec, of_image)
        argv = [*self.spec.get("command", command or []), *self.spec.get("args", [])]
        user = self.security.get("runAsUser", 0)
        if self.security.get("runAsNonRoot"):
            assert user != 0, "the kubelet would not run it: runAsNonRoot, and the image's user is root"
        capabilities = self.capabilities() if user == 0 else []
        sets = {kind: capabilities for kind in ("bounding", "effective", "permitted")}
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False, "cwd": self.spec.get("workingDir", "/"),
                "user": {"uid": user, "gid": self.security.get("runAsGroup", 0)},
                "args": [expanded(one, env) for one in argv], "env": [f"{key}={value}" for key, value in env.items()],
                "capabilities": sets, "noNewPrivileges": self.security.get("allowPrivilegeEscalation") is False,
            },
            "root": {"path": "rootfs", "readonly": bool(self.security.get("readOnlyRootFilesystem"))},
            "hostname": self.pod["metadata"]["name"][:63],
            "mounts": mounts,
            "linux": {
                "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")],
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
                "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"],
                "resources": {"devices": [{"allow": True, "access": "rwm"}]},
            },
        }  # fmt: skip

    def capabilities(self):
        if self.security.get("privileged"):
            raise AssertionError("a privileged container is not known here")
        changes = self.security.get("capabilities", {})
        dropped = set(changes.get("drop", []))
        kept = [] if "ALL" in dropped else [one for one in DEFAULT_CAPABILITIES if one not in dropped]
        return [f"CAP_{one}" for one in kept + changes.get("add", [])]

    @staticmethod
    def machinery():
        return [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=64k"]},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]},
        ]  # fmt: skip

    def volume_mounts(self):
        mounts = []
        for at in self.spec.get("volumeMounts", []):
            unknown = set(at) - {"name", "mountPath", "readOnly", "subPath", "subPathExpr"}
            assert not unknown, f"{unknown} of a mount are not known here"
            source = self.volume(at["name"])
            if "subPath" in at:
                source = source / at["subPath"]
                assert source.exists(), f"FailedMount: {at['subPath']} is not in the volume {at['name']}"
            if "subPathExpr" in at:
                source = self.made_within(source, expanded(at["subPathExpr"], environment(self.pod, self.spec, {})))
            read_only = at.get("readOnly") or "image" in next(one for one in self.pod["spec"]["volumes"] if one["name"] == at["name"])
            # The runtime follows links when it binds, so that a later change of the link is not seen.
            mounts.append(bind(source.resolve(), at["mountPath"], ["ro" if read_only else "rw"]))
        return mounts

    @staticmethod
    def made_within(volume, name):
        """As the kubelet does: a directory that is not there is made, with the mode of the volume."""
        assert name and "$" not in name and not name.startswith("/") and ".." not in name.split("/"), f"FailedMount: {name!r}"
        made = volume / name
        if not made.exists():
            made.mkdir()
            made.chmod(volume.stat().st_mode & 0o7777)
        assert made.is_dir() and not made.is_symlink(), f"FailedMount: {name} is no directory"
        return made

    def volume(self, name):
        """The volume's directory on the node, made if need be."""
        spec = next(one for one in self.pod["spec"]["volumes"] if one["name"] == name)
        made = self.node.root / "pods" / self.pod["metadata"]["uid"] / name
        if "hostPath" in spec:
            path, kind = self.node.path(spec["hostPath"]["path"]), spec["hostPath"].get("type", "")
            if kind == "Directory":
                assert path.is_dir(), f"FailedMount: hostPath type check failed: {spec['hostPath']['path']} is not a directory"
            elif kind == "DirectoryOrCreate":
                path.mkdir(parents=True, exist_ok=True)
            else:
                raise AssertionError(f"hostPath of type {kind!r} is not known here")
            return path
        if "downwardAPI" in spec:
            self.write_downward(made, spec["downwardAPI"])
            return made
        if "emptyDir" in spec:
            made.mkdir(parents=True, exist_ok=True)
            made.chmod(0o777)
            return made
        if "image" in spec:
            return Path(self.node.images[spec["image"]["reference"]])
        raise AssertionError(f"a volume of this kind is not known here: {spec}")

    def write_downward(self, into, spec):
        """As the kubelet does: the files in a directory with a date, a link to it, and links to each file through that."""
        if into.exists():
            return
        dated = into / "..2026"
        dated.mkdir(parents=True)
        mode = spec.get("defaultMode", 0o644)
        for item in spec["items"]:
            file = dated / item["path"]
            file.write_text(field(self.pod, item["fieldRef"]["fieldPath"]))
            file.chmod(item.get("mode", mode))
            (into / item["path"]).symlink_to(f"..data/{item['path']}")
        (into / "..data").symlink_to("..2026")

    # ------------------------------------------------------------------------------------------------ while it runs

    def said(self):
        return (self.bundle / "output").read_text(errors="replace")

    def finish(self, seconds):
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in {seconds} s; it said {self.said()[-500:]!r}") from None
        finally:
            self.stop()
        return status

    def terminate(self, seconds):
        """As the kubelet ends a container: asks it to, and waits."""
        runc = ["runc", "--root", str(self.node.root / "runc")]
        subprocess.run([*runc, "kill", self.id, "TERM"], check=True, capture_output=True)
        return self.finish(seconds)

    def stop(self):
        if self.process.poll() is None:
            runc = ["runc", "--root", str(self.node.root / "runc")]
            subprocess.run([*runc, "kill", self.id, "KILL"], capture_output=True)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
            subprocess.run([*runc, "delete", "--force", self.id], capture_output=True)
        self.output.close()


def bind(source, destination, options):
    return {"destination": destination, "type": "bind", "source": str(source), "options": ["bind", *options]}
