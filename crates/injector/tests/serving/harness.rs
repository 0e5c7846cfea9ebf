//! Runs the built program, and speaks to it over real sockets as the API server does.

#![allow(dead_code)] // each test uses its part
#![allow(clippy::unwrap_used)] // in a test, a panic is how it fails

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ration_injector::certs::authority::{Plan, Step, Stored, step};
use ration_injector::certs::{chain, provider, unix_now};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

/// What the API server calls the webhook.
pub const NAME: &str = "injector.ration.svc";

/// A directory of the test's own.
pub fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A CA and a certificate for [`NAME`].
pub fn certificate() -> Stored {
    let plan = Plan::for_service("injector", "ration", &["127.0.0.1".to_owned()]);
    match step(&plan, None, "", unix_now()).unwrap() {
        Step::Write(stored, _) => *stored,
        Step::Keep => panic!("there was none to keep"),
    }
}

/// Puts a certificate where the program reads it: both files change at once for who follows the link.
pub fn install(stored: &Stored, directory: &Path) {
    let version = format!("..{}", unix_now_nanos());
    let place = directory.join(&version);
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("tls.crt"), &stored.certificate.0).unwrap();
    std::fs::write(place.join("tls.key"), &stored.certificate.1).unwrap();
    let link = directory.join("..tmp");
    std::os::unix::fs::symlink(&version, &link).unwrap();
    std::fs::rename(&link, directory.join("..data")).unwrap();
    for file in ["tls.crt", "tls.key"] {
        let _ = std::os::unix::fs::symlink(format!("..data/{file}"), directory.join(file));
    }
}

fn unix_now_nanos() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
}

/// The program, running.
pub struct Program {
    child: Child,
    log: Arc<Mutex<Vec<Value>>>,
    /// Where reviews are answered.
    pub listen: SocketAddr,
    /// Where it says how it is.
    pub status: SocketAddr,
}

impl Program {
    /// With a certificate in files, in this directory.
    pub fn with_files(directory: &Path, more: &[&str]) -> Program {
        let (certificate, key) = (directory.join("tls.crt"), directory.join("tls.key"));
        let mut args = vec!["--offline", "--tls-cert", text(&certificate), "--tls-key", text(&key)];
        args.extend_from_slice(more);
        Program::start(&args, &[])
    }

    /// With these arguments and variables.
    pub fn start(args: &[&str], variables: &[(&str, &str)]) -> Program {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ration-injector"))
            .args(["webhook", "--listen", "127.0.0.1:0", "--status", "127.0.0.1:0", "--log-format", "json"])
            .args(args)
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_else(|_| json!({ "message": line }));
                kept.lock().unwrap().push(line);
            }
        });
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut program = Program { child, log, listen: nowhere, status: nowhere };
        let started = program.logged("started");
        let address = |name: &str| started[name].as_str().unwrap().parse().unwrap();
        (program.listen, program.status) = (address("listen"), address("status"));
        program
    }

    /// Waits for a line that says this.
    pub fn logged(&self, words: &str) -> Value {
        let found = || {
            let log = self.log.lock().unwrap();
            log.iter().find(|line| line["message"].as_str().is_some_and(|message| message.contains(words))).cloned()
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(line) = found() {
                return line;
            }
            assert!(Instant::now() < deadline, "nothing logged about {words:?}: {:#?}", self.log.lock().unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// How many lines say this.
    pub fn lines(&self, words: &str) -> usize {
        let log = self.log.lock().unwrap();
        log.iter().filter(|line| line["message"].as_str().is_some_and(|message| message.contains(words))).count()
    }

    /// Waits until it says that it is ready.
    pub fn ready(&self) {
        wait("ready", || self.get("/readyz").status == 200);
    }

    /// What it says on its plain port.
    pub fn get(&self, path: &str) -> Response {
        let mut stream = TcpStream::connect(self.status).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").unwrap();
        Response::read(&mut stream).unwrap()
    }

    /// The value of a metric, by its whole name with labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let text = String::from_utf8(self.get("/metrics").body).unwrap();
        let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// A connection with TLS.
    pub fn connect(&self, trust: &Trust) -> io::Result<Client> {
        Client::connect(self.listen, trust)
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        // SAFETY: it signals a child of ours that was not waited for yet, so the number is still its own.
        assert_eq!(unsafe { libc::kill(self.id().cast_signed(), libc::SIGTERM) }, 0);
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// MiB, as the kernel counts them.
pub fn memory(process: u32, which: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(which)).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<f64>().unwrap() / 1024.0
}

/// Waits for something that must come.
pub fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Whom a client trusts.
#[derive(Clone)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// The CAs in these PEM texts.
    pub fn new(bundles: &[&str]) -> Trust {
        let mut roots = RootCertStore::empty();
        for ca in bundles.iter().flat_map(|bundle| chain(bundle.as_bytes()).unwrap()) {
            roots.add(ca).unwrap();
        }
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        // As Go does for webhooks. Without resumption: each connection shows a certificate.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Trust(Arc::new(config))
    }
}

/// One connection, kept alive.
pub struct Client {
    pub stream: StreamOwned<ClientConnection, TcpStream>,
    /// Whether the other side said that this was the last answer.
    pub over: bool,
}

impl Client {
    pub fn connect(address: SocketAddr, trust: &Trust) -> io::Result<Client> {
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(Duration::from_secs(20)))?;
        socket.set_nodelay(true)?;
        let connection = ClientConnection::new(Arc::clone(&trust.0), ServerName::try_from(NAME).unwrap())
            .map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Client { stream, over: false })
    }

    /// Sends a review and reads the answer.
    pub fn post(&mut self, body: &[u8]) -> io::Result<Response> {
        let head = format!(
            "POST /mutate?timeout=5s HTTP/1.1\r\nhost: {NAME}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.send(&[head.as_bytes(), body].concat())
    }

    /// Sends bytes as they are and reads an answer.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<Response> {
        self.stream.write_all(bytes)?;
        self.stream.flush()?;
        let response = Response::read(&mut self.stream)?;
        self.over = response.header("connection") == Some("close");
        Ok(response)
    }

    /// The certificate that the other side showed.
    pub fn shown(&self) -> Vec<u8> {
        self.stream.conn.peer_certificates().unwrap()[0].to_vec()
    }
}

/// An answer.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// One whose length is given.
    pub fn read(stream: &mut impl Read) -> io::Result<Response> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).map_err(io::Error::other)?;
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(head.clone()))?;
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let mut response = Response { status, headers, body: Vec::new() };
        let length = response.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        response.body.resize(length, 0);
        stream.read_exact(&mut response.body)?;
        Ok(response)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The body of an answered review.
    pub fn review(&self) -> Value {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        serde_json::from_slice::<Value>(&self.body).unwrap()["response"].take()
    }
}

/// A review as an API server sends it for a training pod of the usual size.
pub fn review(uid: &str, annotations: &Value) -> Vec<u8> {
    let mounts = json!([
        {"name": "data", "mountPath": "/data"}, {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "kube-api-access-7x2rl", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true},
    ]);
    let env: Vec<Value> =
        (0..24).map(|n| json!({"name": format!("SETTING_{n}"), "value": format!("value of setting {n}")})).collect();
    let managed = json!([{"manager": "kubectl-create", "operation": "Update", "apiVersion": "v1", "time": "2026-07-04T12:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:containers": {"k:{\"name\":\"train\"}": {".": {}, "f:env": {},
        "f:image": {}, "f:resources": {".": {}, "f:limits": {}}, "f:volumeMounts": {}}}, "f:volumes": {}}}}]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "train-6d4cf56db6-", "namespace": "team-a", "creationTimestamp": null,
            "labels": {"app": "train", "pod-template-hash": "6d4cf56db6"}, "annotations": annotations, "managedFields": managed,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train-6d4cf56db6",
                "uid": "12ab34cd-0000-4000-8000-000000000000", "controller": true, "blockOwnerDeletion": true}]},
        "spec": {
            "containers": [
                {"name": "train", "image": "registry.example/train:1.2.3", "command": ["python", "train.py"], "env": env,
                 "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "16Gi"}, "requests": {"nvidia.com/gpu": "1", "cpu": "4"}},
                 "volumeMounts": mounts, "imagePullPolicy": "IfNotPresent",
                 "securityContext": {"allowPrivilegeEscalation": false, "runAsNonRoot": true}},
                {"name": "sidecar", "image": "registry.example/logs:4", "args": ["--follow", "/data/log"], "resources": {},
                 "volumeMounts": mounts, "imagePullPolicy": "IfNotPresent"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                {"name": "kube-api-access-7x2rl", "projected": {"defaultMode": 420, "sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}]}}],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "schedulerName": "default-scheduler", "priority": 0,
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]},
        "status": {}});
    let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    let review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {
        "uid": uid, "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
        "namespace": "team-a", "operation": "CREATE", "object": pod, "oldObject": null, "dryRun": false,
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller", "groups": ["system:authenticated"]},
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}}});
    review.to_string().into_bytes()
}

/// A review of a pod that asks for 8 GiB.
pub fn asking(uid: &str) -> Vec<u8> {
    review(uid, &json!({"ration.dev/memory": "8Gi", "ration.dev/compute": "30%"}))
}
