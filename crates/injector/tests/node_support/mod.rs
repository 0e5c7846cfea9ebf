//! What the tests of the node part share: a node that is a directory, libraries to install on it, and tenants.
#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ration_region::{Facts, Gpu, Heard, Region};

/// Some GPU, and its region's file.
pub const GPU: Gpu = Gpu { uuid: *b"\x01\x23\x45\x67\x89\xab\xcd\xef somegpu", total: 80 << 30 };
pub const REGION: &str = "gpu-01234567-89ab-cdef-2073-6f6d65677075.region";
/// What is told everybody beside it.
pub const PUBLIC: &str = "gpu-01234567-89ab-cdef-2073-6f6d65677075.public";
/// A pod, and another one.
pub const POD: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";
pub const OTHER_POD: &str = "f2ab4f50-0000-4000-8000-000000000001";

/// A node: a directory that is removed in the end.
pub struct Host {
    pub dir: PathBuf,
}

impl Host {
    pub fn new(name: &str) -> Host {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("ration-node-{name}-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("host")).expect("a directory of our own");
        Host { dir }
    }

    /// What the node's programs may change.
    pub fn host(&self) -> PathBuf {
        self.dir.join("host")
    }

    pub fn lib(&self) -> PathBuf {
        self.host().join("ration/lib")
    }

    pub fn regions(&self) -> PathBuf {
        self.host().join("regions")
    }

    /// A pod's directory, which the kubelet makes.
    pub fn directory(&self, pod: &str) -> PathBuf {
        let directory = self.regions().join(pod);
        if std::fs::create_dir(&directory).is_ok() {
            std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o1777)).expect("it is ours");
        }
        directory
    }

    /// The region of the pod.
    pub fn region(&self) -> PathBuf {
        self.regions().join(POD).join(REGION)
    }

    /// A library that says this, and can be preloaded; the same for the same words. It is large enough to be interrupted.
    pub fn library(&self, says: &str) -> PathBuf {
        let file = self.dir.join(format!("{says}.so"));
        if !file.exists() {
            let source = self.dir.join(format!("{says}.c"));
            let code = format!("const char *says(void) {{ return \"{says}\"; }}\nchar room[1 << 20] = {{1}};\n");
            std::fs::write(&source, code).expect("room for a source");
            let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&file).arg(&source).status();
            assert!(made.expect("a C compiler: ci/setup installs one").success());
        }
        file
    }

    /// The program, with this node's places. What it is to do follows.
    pub fn node(&self, library: &Path, version: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ration-injector"));
        command.args(["node", "--library"]).arg(library).args(["--library-version", version]);
        command.arg("--root").arg(self.host().join("ration")).arg("--region-dir").arg(self.regions());
        command
    }

    pub fn install(&self, library: &Path, version: &str) -> Output {
        self.node(library, version).arg("install").output().expect("the program runs")
    }

    /// Installs, and says which directory it is in.
    pub fn installed(&self, library: &Path, version: &str) -> String {
        let output = self.install(library, version);
        assert!(output.status.success(), "{}", all_of(&output));
        self.current().expect("a current library")
    }

    pub fn current(&self) -> Option<String> {
        std::fs::read_link(self.lib().join("current")).ok().map(|to| to.display().to_string())
    }

    pub fn status(&self, extra: &[&str]) -> Output {
        let mut command = self.node(Path::new("/nowhere"), "0");
        command.arg("status").args(extra).output().expect("the program runs")
    }

    pub fn status_json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.status(&["--json"]).stdout).expect("JSON")
    }

    pub fn uninstall(&self, extra: &[&str]) -> Output {
        let mut command = self.node(Path::new("/nowhere"), "0");
        command.arg("uninstall").args(extra).output().expect("the program runs")
    }

    /// Starts the program that looks after the node, every 100 ms, and leaves nothing unused for longer than that.
    pub fn watch(&self, library: &Path, version: &str, extra: &[&str]) -> Watch {
        let mut command = self.node(library, version);
        command.args(["--status", "127.0.0.1:0", "--log-format", "json"]).args(extra);
        for (option, value) in [("--every", "0.1"), ("--grace", "0")] {
            if !extra.contains(&option) {
                command.args([option, value]);
            }
        }
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program runs");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut seen = String::new();
        let address = loop {
            let Some(Ok(line)) = lines.next() else { panic!("it ended without an address:\n{seen}") };
            let _ = writeln!(seen, "{line}");
            let log: serde_json::Value = serde_json::from_str(&line).expect("a log in JSON");
            if let Some(address) = log["address"].as_str() {
                break address.to_owned();
            }
        };
        let log = std::thread::spawn(move || lines.map_while(Result::ok).fold(seen, |all, line| all + &line + "\n"));
        Watch { child, address, log: Some(log) }
    }

    /// Everything on the node: modes, sizes, links.
    pub fn listing(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        list(&self.host(), &self.host(), &mut all);
        all
    }

    /// The names of the libraries, which may be removed this moment.
    pub fn libraries(&self) -> Vec<String> {
        let names =
            std::fs::read_dir(self.lib()).expect("the libraries").map(|entry| entry.expect("an entry").file_name());
        let names = names.map(|name| name.into_string().expect("a name"));
        names.filter(|name| name != "current" && !name.starts_with('.')).collect()
    }

    /// Every library that has its final name, with its bytes checked by another program.
    pub fn check_libraries(&self) -> Vec<String> {
        let mut names = self.libraries();
        names.sort();
        for name in &names {
            let file = self.lib().join(name).join("libration.so");
            let sum = Command::new("sha256sum").arg(&file).output().expect("sha256sum");
            let sum = String::from_utf8(sum.stdout).expect("text");
            let digits = name.rsplit('-').next().expect("a hash");
            assert!(digits.len() == 12 && sum.starts_with(digits), "{name} has the hash {sum:?}");
        }
        names
    }

    /// What is left unfinished.
    pub fn unfinished(&self) -> Vec<String> {
        let names =
            std::fs::read_dir(self.lib()).expect("the libraries").map(|entry| entry.expect("an entry").file_name());
        names.map(|name| name.into_string().expect("a name")).filter(|name| name.starts_with('.')).collect()
    }

    /// Starts a tenant: a process of the pod that joins its region, takes so many bytes, and stays.
    pub fn tenant(&self, container: &str, bytes: u64) -> Tenant {
        self.tenant_in(POD, container, bytes)
    }

    pub fn tenant_in(&self, pod: &str, container: &str, bytes: u64) -> Tenant {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "a_tenant", "--ignored", "--nocapture"]);
        command.env("TENANT", format!("{}\n{container}\n{bytes}", self.directory(pod).display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let joined = lines.any(|line| line.is_ok_and(|line| line.contains("tenant is in")));
        assert!(joined, "the tenant did not get in");
        Tenant { child }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn list(root: &Path, dir: &Path, all: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path()) {
        let about = entry.symlink_metadata().expect("it is there");
        let link = std::fs::read_link(&entry).unwrap_or_default();
        let text = format!(
            "{:o} {} {} {}",
            about.mode(),
            about.uid(),
            if about.is_dir() { 0 } else { about.len() },
            link.display()
        );
        all.insert(entry.strip_prefix(root).expect("below").display().to_string(), text);
        if about.is_dir() {
            list(root, &entry, all);
        }
    }
}

/// What `a_tenant` of each test file does.
pub fn be_a_tenant() {
    let Ok(orders) = std::env::var("TENANT") else { return };
    let mut orders = orders.lines();
    let mut next = || orders.next().expect("an order");
    let region = Region::open(Path::new(next()), &GPU).expect("a region");
    let member = region.join(next(), Some(8 << 30)).expect("a place");
    member.compute().says(&Heard::new(), &Facts::default(), 1);
    member.reserve(next().parse().expect("a number")).expect("room");
    println!("the tenant is in");
    std::io::stdout().flush().expect("a pipe");
    // Until it is killed, or the test is over.
    let _ = std::io::stdin().read_line(&mut String::new());
    std::process::exit(0);
}

pub struct Tenant {
    pub child: Child,
}

impl Tenant {
    pub fn kill(mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program that looks after the node.
pub struct Watch {
    pub child: Child,
    address: String,
    log: Option<std::thread::JoinHandle<String>>,
}

impl Watch {
    /// The status and the body of what a page says.
    pub fn get(&self, page: &str) -> (u16, String) {
        let mut stream = std::net::TcpStream::connect(&self.address).expect("it listens");
        write!(stream, "GET {page} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n").expect("it listens");
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stream, &mut text).expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        (head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code"), body.to_owned())
    }

    pub fn status(&self) -> serde_json::Value {
        let (code, body) = self.get("/status");
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// Waits until it has looked after the node once more, from beginning to end.
    pub fn look_again(&self) {
        let checks = || {
            let (_, body) = self.get("/metrics");
            let line = body.lines().find(|line| line.starts_with("ration_node_checks_total")).expect("a count");
            line.rsplit(' ').next().and_then(|number| number.parse::<f64>().ok()).expect("a number")
        };
        let before = checks();
        within(10, "it looks after the node", || checks() >= before + 2.0);
    }

    /// Asks it to end, and returns its log.
    pub fn end(mut self) -> String {
        // SAFETY: a child of this process that nobody has waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let status = self.child.wait().expect("it ends");
        let log = self.log.take().expect("a log").join().expect("a log");
        assert!(status.success(), "{status}\n{log}");
        log
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for something, and fails if it does not come.
pub fn within(seconds: u64, what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(seconds), "not within {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A process that has a library loaded, as a pod's has.
pub struct Pod {
    child: Child,
}

impl Pod {
    pub fn with(library: &Path) -> Pod {
        let child = Command::new("sleep").arg("1000").env("LD_PRELOAD", library).spawn().expect("a process");
        let pod = Pod { child };
        let real = library.canonicalize().expect("the library");
        within(10, "the library is loaded", || pod.maps().contains(real.to_str().expect("text")));
        pod
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn maps(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap_or_default()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn all_of(output: &Output) -> String {
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Fails, and says so; returns what it said.
pub fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", all_of(output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn mode(path: &Path) -> u32 {
    path.symlink_metadata().expect("it is there").permissions().mode() & 0o7777
}

pub fn is_root() -> bool {
    // SAFETY: takes nothing and always succeeds.
    unsafe { libc::geteuid() == 0 }
}

/// A container in the region of a pod's directory has said something, so that there is a public file beside it.
pub fn told(directory: &Path) -> Region {
    let region = Region::open(directory, &GPU).expect("a region");
    let member = region.join("team/told/main", None).expect("a place");
    member.compute().says(&Heard::new(), &Facts::default(), 1);
    drop(member);
    region
}
