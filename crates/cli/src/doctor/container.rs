//! Where this runs: on a machine, in a container, in a pod; and what is there of the driver's device files, and of what the injector mounts.

use std::path::PathBuf;

use rustix::fs::{Access, access};

use super::check::Check;
use crate::library::NAME;

/// What kind of place this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    None,
    Container,
    Pod,
}

/// Files are looked at from here on; it is not `/` in tests.
pub struct Root(pub PathBuf);

impl Root {
    pub fn real() -> Root {
        Root("/".into())
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    fn has(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    /// What kind of place this is. `get`: a variable of the environment.
    pub fn kind(&self, get: &dyn Fn(&str) -> Option<String>) -> Kind {
        let is_pod =
            get("KUBERNETES_SERVICE_HOST").is_some() || self.has("/var/run/secrets/kubernetes.io/serviceaccount");
        let is_container = ["/.dockerenv", "/run/.containerenv"].iter().any(|file| self.has(file))
            || get("container").is_some_and(|it| !it.is_empty());
        match (is_pod, is_container) {
            (true, _) => Kind::Pod,
            (_, true) => Kind::Container,
            _ => Kind::None,
        }
    }

    /// What this place is, and what a pod was given.
    pub fn check(&self, kind: Kind) -> Check {
        match kind {
            Kind::None => Check::ok("container", "none that can be told: this is a machine's own system"),
            Kind::Container => Check::ok("container", "a container, such as docker's"),
            Kind::Pod => self.pod(),
        }
    }

    fn pod(&self) -> Check {
        let preload = std::fs::read_to_string(self.at("/etc/ld.so.preload")).unwrap_or_default();
        let parts = [
            ("the quota file", self.has("/etc/ration/quota")),
            ("the library", self.has("/usr/local/ration/libration.so")),
            ("/etc/ld.so.preload", preload.contains(NAME)),
            ("a directory for its region", self.has("/run/ration-own")),
        ];
        let named = |is: bool| {
            let names: Vec<&str> = parts.iter().filter(|(_, has)| *has == is).map(|(name, _)| *name).collect();
            names.join(", ")
        };
        // Only these two are there however the injector delivers.
        let [(_, has_quota), (_, has_library), ..] = parts;
        match (has_quota, has_library) {
            (true, true) => Check::ok("container", format!("a pod in Kubernetes, with {}", named(true))),
            (false, false) => Check::warning(
                "container",
                "a pod in Kubernetes that was given no slice",
                "Ask for one: annotations ration.dev/memory and ration.dev/compute on the pod, in a namespace with the label \
                 ration.dev/inject: enabled. The injector does not touch pods that run already",
            ),
            _ => Check::problem(
                "container",
                format!("a pod in Kubernetes that was given {}, and lacks {}", named(true), named(false)),
                "Something hides what the injector put in: look at the pod's mounts (kubectl get pod -o yaml), and make the pod anew",
            ),
        }
    }

    /// The driver's device files, where there is no GPU to be seen.
    pub fn devices(&self, kind: Kind) -> Check {
        let give = match kind {
            Kind::None => {
                "Load the kernel module as root: nvidia-modprobe, or modprobe nvidia. If there is none, install the driver"
            }
            Kind::Container => "Start the container with a GPU: docker run --gpus all",
            Kind::Pod => "Ask for a GPU in the pod: nvidia.com/gpu: 1",
        };
        let control = self.at("/dev/nvidiactl");
        if !control.exists() {
            let module = match self.has("/proc/driver/nvidia/version") {
                true => "the kernel module is loaded",
                false => "no kernel module of NVIDIA's is loaded, or it cannot be seen from here",
            };
            return Check::problem("devices", format!("there is no /dev/nvidiactl; {module}"), give);
        }
        let gpus = self.gpus();
        if gpus.is_empty() {
            return Check::problem("devices", "there is /dev/nvidiactl, and no GPU's device (/dev/nvidia0)", give);
        }
        let uvm = self.at("/dev/nvidia-uvm");
        if !uvm.exists() {
            return Check::problem(
                "devices",
                "there is no /dev/nvidia-uvm, which CUDA needs",
                "Make it, as root on the machine: nvidia-modprobe -u -c 0; and start the container anew",
            );
        }
        let closed: Vec<String> = std::iter::once(control)
            .chain(gpus)
            .chain([uvm])
            .filter(|file| access(file, Access::READ_OK | Access::WRITE_OK).is_err())
            .map(|file| file.display().to_string())
            .collect();
        if !closed.is_empty() {
            return Check::problem(
                "devices",
                format!("this user may not use {}", closed.join(", ")),
                "Give the user the group that they have (ls -l /dev/nvidia*), or let whoever runs the machine set their mode to 0666",
            );
        }
        Check::ok("devices", "the device files are there, and this user may use them")
    }

    /// The devices of GPUs: `/dev/nvidia0` and so on.
    fn gpus(&self) -> Vec<PathBuf> {
        let is_one = |path: &PathBuf| {
            let number = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("nvidia"));
            number.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let entries = std::fs::read_dir(self.at("/dev")).into_iter().flatten().flatten();
        let mut gpus: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_one).collect();
        gpus.sort();
        gpus
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Status;
    use super::*;

    struct Tree(Root);

    impl Tree {
        fn with(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = Root(std::env::temp_dir().join(format!("ration-doctor-{name}-{}", std::process::id())));
            let tree = Tree(root);
            std::fs::create_dir_all(&tree.0.0).expect("temporary files can be made");
            files.iter().for_each(|(path, text)| tree.add(path, text));
            tree
        }

        fn add(&self, path: &str, text: &str) {
            let path = self.0.at(path);
            std::fs::create_dir_all(path.parent().expect("not the root")).expect("ours");
            std::fs::write(path, text).expect("ours");
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0.0);
        }
    }

    #[test]
    fn where_one_is_shows() {
        let nothing = |_: &str| None;
        assert_eq!(Tree::with("bare", &[]).0.kind(&nothing), Kind::None);
        assert_eq!(Tree::with("docker", &[("/.dockerenv", "")]).0.kind(&nothing), Kind::Container);
        let pod = |name: &str| (name == "KUBERNETES_SERVICE_HOST").then(|| "10.0.0.1".to_owned());
        assert_eq!(Tree::with("pod", &[("/.dockerenv", "")]).0.kind(&pod), Kind::Pod);
    }

    #[test]
    fn a_pod_has_all_that_the_injector_gives_or_nothing() {
        let tree = Tree::with("injected", &[]);
        let status = |tree: &Tree| tree.0.check(Kind::Pod).status;
        assert_eq!(status(&tree), Status::Warning);
        tree.add("/etc/ration/quota", "memory = 1GiB\n");
        let check = tree.0.check(Kind::Pod);
        assert!(check.status == Status::Problem && check.found.contains("lacks the library"), "{check:?}");
        tree.add("/usr/local/ration/libration.so", "");
        assert_eq!(status(&tree), Status::Ok);
        assert_eq!(tree.0.check(Kind::None).status, Status::Ok);
    }

    #[test]
    fn device_files_that_are_missing_are_named() {
        let tree = Tree::with("devices", &[]);
        let found = |kind| tree.0.devices(kind);
        let check = found(Kind::Container);
        assert!(check.found.contains("no /dev/nvidiactl") && check.remedy.is_some_and(|it| it.contains("--gpus")));
        tree.add("/dev/nvidiactl", "");
        assert!(found(Kind::None).found.contains("no GPU's device"));
        tree.add("/dev/nvidia0", "");
        tree.add("/dev/nvidia-caps", "");
        assert_eq!(tree.0.gpus().len(), 1);
        assert!(found(Kind::None).found.contains("no /dev/nvidia-uvm"));
        tree.add("/dev/nvidia-uvm", "");
        assert_eq!(found(Kind::None).status, Status::Ok);
    }
}
