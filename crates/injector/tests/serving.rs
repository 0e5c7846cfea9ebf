//! The webhook over real sockets: what it answers, whom it does not wait for, and that nothing is lost when it ends or when
//! its certificate or its configuration changes.

#![allow(clippy::unwrap_used)] // in a test, a panic is how it fails

#[path = "serving/harness.rs"]
mod harness;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use harness::{Client, Program, Response, Trust, asking, certificate, directory, install, review, text, wait};
use serde_json::json;

/// The program with a certificate in files, and a client's trust in it.
fn start(name: &str, more: &[&str]) -> (Program, Trust) {
    let (directory, stored) = (directory(name), certificate());
    install(&stored, &directory);
    let program = Program::with_files(&directory, more);
    program.ready();
    (program, Trust::new(&[&stored.trusted]))
}

#[test]
fn reviews_are_answered_on_one_connection() {
    let (program, trust) = start("answers", &[]);
    let mut client = program.connect(&trust).unwrap();
    for uid in ["one", "two", "three"] {
        let response = client.post(&asking(uid)).unwrap();
        assert_eq!(response.header("content-type"), Some("application/json"));
        assert!(!client.over, "the connection is kept");
        let review = response.review();
        assert_eq!((&review["uid"], &review["allowed"]), (&json!(uid), &json!(true)), "{review}");
        assert_eq!(review["patchType"], "JSONPatch");
    }
    let denied = client.post(&review("four", &json!({"ration.dev/memory": "much"}))).unwrap().review();
    assert_eq!(denied["allowed"], false);
    assert_eq!(program.metric("ration_injector_admissions_total{outcome=\"injected\"}"), Some(3.0));
    assert_eq!(program.metric("ration_injector_admissions_total{outcome=\"denied\"}"), Some(1.0));
    assert_eq!(program.metric("ration_injector_admission_duration_seconds_count"), Some(4.0));
    assert_eq!(program.metric("ration_injector_connections"), Some(1.0));
    let line = program.logged("team-a/train-6d4cf56db6-*");
    assert_eq!((&line["outcome"], &line["level"]), (&json!("injected"), &json!("INFO")), "{line}");
}

#[test]
fn what_is_no_review_is_told_so() {
    let (program, trust) = start("garbage", &[]);
    let mut client = program.connect(&trust).unwrap();
    for garbage in
        [&b"{"[..], b"", b"[]", b"null", b"\xff\xfe", b"{\"kind\":\"AdmissionReview\"}", &vec![b'['; 100_000]]
    {
        let response = client.post(garbage).unwrap();
        assert_eq!(response.status, 400, "{}", String::from_utf8_lossy(&response.body));
        assert!(!response.body.is_empty());
    }
    let asked = |client: &mut Client, head: &str| client.send(head.as_bytes()).unwrap().status;
    assert_eq!(asked(&mut client, "GET /mutate HTTP/1.1\r\nhost: test\r\n\r\n"), 405);
    assert_eq!(asked(&mut client, "POST /other HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n"), 404);
    assert_eq!(asked(&mut client, "GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n"), 404, "that is the other port's");
    assert_eq!(asked(&mut client, "no HTTP at all\r\n\r\n"), 400);

    // No TLS, and TLS that ends half way.
    let mut plain = TcpStream::connect(program.listen).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "nothing is served without TLS");
    drop(TcpStream::connect(program.listen).unwrap());
    wait("failed handshakes are counted", || {
        program.metric("ration_injector_tls_handshakes_failed_total") >= Some(2.0)
    });
    // A head without an end.
    let mut client = program.connect(&trust).unwrap();
    let long = format!("POST /mutate HTTP/1.1\r\nhost: {}\r\n\r\n", "x".repeat(100_000));
    if let Ok(response) = client.send(long.as_bytes()) {
        assert_eq!(response.status, 431);
    }
    program.connect(&trust).unwrap().post(&asking("after")).unwrap().review();
}

#[test]
fn a_body_that_is_too_long_is_refused_unread() {
    let (program, trust) = start("long", &[]);
    let mut client = program.connect(&trust).unwrap();
    let response = client.post(&vec![b' '; (3 << 20) + 1]).unwrap();
    assert_eq!(response.status, 413);
    assert!(client.over);

    let mut client = program.connect(&trust).unwrap();
    let head = "POST /mutate HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n";
    client.stream.write_all(head.as_bytes()).unwrap();
    let piece = [format!("{:x}\r\n", 1 << 20).into_bytes(), vec![b' '; 1 << 20], b"\r\n".to_vec()].concat();
    // It may stop listening at any time after the third.
    let sent = (0..4).map_while(|_| client.stream.write_all(&piece).ok()).count();
    assert!(sent >= 3, "{sent} MiB were taken");
    if let Ok(response) = Response::read(&mut client.stream) {
        assert_eq!(response.status, 413);
    }
    wait("both are counted", || {
        program.metric("ration_injector_requests_rejected_total{reason=\"too-large\"}") == Some(2.0)
    });
    // The longest that is allowed is read.
    let mut longest = asking("longest");
    longest.resize(3 << 20, b' ');
    program.connect(&trust).unwrap().post(&longest).unwrap().review();
}

#[test]
fn nobody_waits_for_a_slow_client() {
    let (program, trust) = start("slow", &[]);
    // One says nothing at all; others promise as much as may be held at a time, and send nothing or a little.
    let mut silent = TcpStream::connect(program.listen).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let begun = Instant::now();
    let slow: Vec<Client> = (0..10)
        .map(|_| {
            let mut client = program.connect(&trust).unwrap();
            let head = "POST /mutate HTTP/1.1\r\nhost: test\r\ncontent-length: 1000000\r\n\r\n{";
            client.stream.write_all(head.as_bytes()).unwrap();
            client.stream.flush().unwrap();
            client
        })
        .collect();
    let mut client = program.connect(&trust).unwrap();
    for _ in 0..100 {
        let asked = Instant::now();
        client.post(&asking("quick")).unwrap().review();
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    }
    for mut client in slow {
        let status = Response::read(&mut client.stream).unwrap().status;
        assert!([408, 503].contains(&status), "{status}");
    }
    assert!(program.metric("ration_injector_requests_rejected_total{reason=\"slow\"}") > Some(0.0));
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0, "it is shown the door");
    assert!((9..20).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}

/// Pods as long as can be, by several at once: memory has a bound, and comes back.
#[test]
fn long_pods_take_a_bounded_amount_of_memory() {
    /// A few seconds, on a machine that keeps up.
    const LONGEST: Duration = Duration::from_secs(120);
    /// Nobody is sent away sooner: the program waits for ten seconds.
    const GIVEN_UP: Duration = Duration::from_secs(9);
    let (program, trust) = start("memory", &[]);
    // Many small objects are what takes the most memory for its length.
    let mut body: serde_json::Value = serde_json::from_slice(&asking("long")).unwrap();
    let env: Vec<_> = (0..60_000).map(|n| json!({"name": format!("SETTING_{n}"), "value": "some"})).collect();
    body["request"]["object"]["spec"]["containers"][0]["env"] = json!(env);
    let body = body.to_string().into_bytes();
    assert!((2 << 20..3 << 20).contains(&body.len()), "{}", body.len());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut client = program.connect(&trust).unwrap();
                let mut answered = 0;
                while answered < 2 {
                    let asked = Instant::now();
                    let status = client.post(&body).map(|response| response.status);
                    match &status {
                        Ok(200) => answered += 1,
                        // On a machine that stands still it waits in vain for its turn, or is too slow: it is to try again.
                        Ok(503 | 408) | Err(_) if asked.elapsed() >= GIVEN_UP => {
                            client = program.connect(&trust).unwrap();
                        }
                        _ => panic!("after {:?}: {status:?}", asked.elapsed()),
                    }
                    assert!(begun.elapsed() < LONGEST, "{status:?}");
                }
            });
        }
    });
    let mebibytes = |which| harness::memory(program.id(), which);
    println!("{:.0} MiB at a time, {:.0} MiB are kept", mebibytes("VmHWM:"), mebibytes("VmRSS:"));
    assert!(mebibytes("VmHWM:") < 200.0, "{} MiB at a time", mebibytes("VmHWM:"));
    assert!(mebibytes("VmRSS:") < 64.0, "{} MiB are kept", mebibytes("VmRSS:"));
}

/// Clients that send one review after the other until told to stop, each connection for as long as it lasts.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    threads: Vec<std::thread::JoinHandle<Vec<String>>>,
}

impl Load {
    /// `fresh`: every so many requests a new connection.
    fn start(program: &Program, trust: &Trust, clients: usize, fresh: usize) -> Load {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let threads = (0..clients)
            .map(|number| {
                let (address, trust) = (program.listen, trust.clone());
                let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
                std::thread::spawn(move || {
                    let (mut lost, mut reset) = (Vec::new(), None);
                    'connections: while !stop.load(Ordering::Relaxed) {
                        let mut client = match Client::connect(address, &trust) {
                            Ok(client) => client,
                            // Nothing was sent, so nothing is lost: that replica is gone.
                            Err(why) if why.kind() == std::io::ErrorKind::ConnectionRefused => break,
                            // The same, if the next is refused: it came in the moment in which the port was closed.
                            Err(why) if why.kind() == std::io::ErrorKind::ConnectionReset && reset.is_none() => {
                                reset = Some(format!("connection: {why}"));
                                continue;
                            }
                            Err(why) => {
                                lost.push(format!("connection: {why}"));
                                continue;
                            }
                        };
                        lost.extend(reset.take());
                        for request in 0..fresh {
                            match client.post(&asking(&format!("{number}-{request}"))) {
                                Ok(response) if response.review()["allowed"] == true => {
                                    answered.fetch_add(1, Ordering::Relaxed)
                                }
                                other => {
                                    lost.push(format!("request {request} of a connection: {other:?}"));
                                    continue 'connections;
                                }
                            };
                            if client.over || stop.load(Ordering::Relaxed) {
                                break;
                            }
                        }
                    }
                    lost
                })
            })
            .collect();
        Load { stop, answered, threads }
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Waits until so many more were answered.
    fn more(&self, number: usize) {
        let goal = self.answered() + number;
        wait("more reviews are answered", || self.answered() >= goal);
    }

    /// What was lost.
    fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

#[test]
fn ending_loses_no_request() {
    let (mut program, trust) = start("drain", &["--drain-delay", "2s"]);
    let mut idle = program.connect(&trust).unwrap();
    idle.post(&asking("before")).unwrap().review();
    let load = Load::start(&program, &trust, 4, 50);
    load.more(100);
    program.terminate();
    wait("it is not ready any more", || program.get("/readyz").status == 503);
    assert_eq!(program.get("/healthz").status, 200);
    load.more(100);
    let response = idle.post(&asking("while draining")).unwrap();
    response.review();
    assert!(idle.over, "whoever has a connection is told to get another");
    // Clients go on until there is nobody to connect to.
    assert_eq!(program.wait().code(), Some(0));
    assert_eq!(load.end(), Vec::<String>::new());
    program.logged("every request was answered");
}

#[test]
fn a_request_that_was_begun_is_ended_and_no_more() {
    let (mut program, trust) = start("begun", &["--drain-delay", "0s", "--drain-timeout", "5s"]);
    let mut begun = program.connect(&trust).unwrap();
    let body = asking("begun");
    let head = format!("POST /mutate HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", body.len());
    begun.stream.write_all(head.as_bytes()).unwrap();
    begun.stream.flush().unwrap();
    let _idle = program.connect(&trust).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    program.terminate();
    wait("nothing more is accepted", || TcpStream::connect(program.listen).is_err());
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(program.ended(), None, "it waits for what was begun");
    begun.send(&body).unwrap().review();
    assert_eq!(program.wait().code(), Some(0));
}

#[test]
fn a_client_that_never_ends_does_not_keep_it() {
    let (mut program, trust) = start("stuck", &["--drain-delay", "0s", "--drain-timeout", "1s"]);
    let mut stuck = program.connect(&trust).unwrap();
    stuck.stream.write_all(b"POST /mutate HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n\r\n").unwrap();
    stuck.stream.flush().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let told = Instant::now();
    program.terminate();
    assert_eq!(program.wait().code(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(4), "{:?}", told.elapsed());
    program.logged("cut off");
}

#[test]
fn a_certificate_changes_under_load_and_no_request_fails() {
    let (directory, old, new) = (directory("swap"), certificate(), certificate());
    install(&old, &directory);
    let program = Program::with_files(&directory, &["--reload-interval", "100ms"]);
    program.ready();
    let (both, only_old) = (Trust::new(&[&old.trusted, &new.trusted]), Trust::new(&[&old.trusted]));
    let mut kept = program.connect(&only_old).unwrap();
    let load = Load::start(&program, &both, 4, 5);
    load.more(50);
    let mut was = program.connect(&both).unwrap().shown();
    for stored in [&new, &old, &new] {
        install(stored, &directory);
        wait("the new one is shown", || program.connect(&both).unwrap().shown() != was);
        was = program.connect(&both).unwrap().shown();
        load.more(50);
    }
    assert_eq!(load.end(), Vec::<String>::new());
    kept.post(&asking("kept")).unwrap().review();
    assert!(program.connect(&only_old).is_err(), "a client that knows only the old CA is not fooled");
    assert_eq!(program.metric("ration_injector_certificate_reloads_total{result=\"ok\"}"), Some(4.0));
}

#[test]
fn a_certificate_that_cannot_be_used_is_not() {
    let (directory, good, other) = (directory("unusable"), certificate(), certificate());
    install(&good, &directory);
    let program = Program::with_files(&directory, &["--reload-interval", "50ms"]);
    program.ready();
    let trust = Trust::new(&[&good.trusted]);
    let expiry = program.metric("ration_injector_certificate_expiry_timestamp_seconds").unwrap();
    let mut damaged = good.clone();
    for (number, pair) in [
        (good.certificate.0.clone(), other.certificate.1.clone()),
        ("no certificate".to_owned(), good.certificate.1.clone()),
        (good.certificate.0.clone(), String::new()),
    ]
    .into_iter()
    .enumerate()
    {
        damaged.certificate = pair;
        install(&damaged, &directory);
        let failures = Some(number as f64 + 1.0);
        wait("it is counted", || {
            program.metric("ration_injector_certificate_reloads_total{result=\"failed\"}") == failures
        });
        program.connect(&trust).unwrap().post(&asking("still")).unwrap().review();
        assert_eq!(program.metric("ration_injector_certificate_in_order"), Some(0.0));
    }
    assert_eq!(program.lines("cannot be used; the old one is served on"), 3, "each is said once");
    assert_eq!(program.metric("ration_injector_certificate_expiry_timestamp_seconds"), Some(expiry));
    install(&good, &directory);
    wait("all is well again", || program.metric("ration_injector_certificate_in_order") == Some(1.0));
}

#[test]
fn a_configuration_is_followed_and_a_broken_one_is_not() {
    let directory = directory("config");
    let config = directory.join("config.yaml");
    std::fs::write(&config, "").unwrap();
    let stored = certificate();
    install(&stored, &directory);
    let program = Program::with_files(&directory, &["--reload-interval", "50ms", "--config", text(&config)]);
    program.ready();
    let mut client = program.connect(&Trust::new(&[&stored.trusted])).unwrap();
    let mut allowed = || client.post(&asking("config")).unwrap().review()["allowed"] == true;
    assert!(allowed());
    std::fs::write(&config, "maxima:\n  memory: 4Gi\n").unwrap();
    wait("the maximum holds", || !allowed());
    std::fs::write(&config, "maxima:\n  memory: [\n").unwrap();
    wait("it is counted", || program.metric("ration_injector_config_reloads_total{result=\"failed\"}") == Some(1.0));
    assert_eq!(program.metric("ration_injector_config_in_order"), Some(0.0));
    program.logged("cannot be used; the old one stays in force");
    assert!(!allowed(), "the old one stays in force");
    assert_eq!(program.get("/readyz").status, 200, "and that is no reason to stop");
    std::fs::remove_file(&config).unwrap();
    wait("it is counted", || program.metric("ration_injector_config_reloads_total{result=\"failed\"}") == Some(2.0));
    assert!(!allowed());
    std::fs::write(&config, "maxima:\n  memory: 40Gi\n").unwrap();
    wait("the new one holds", allowed);
    assert_eq!(program.metric("ration_injector_config_in_order"), Some(1.0));
}

#[test]
fn a_start_that_cannot_succeed_says_why() {
    let (directory, stored) = (directory("start"), certificate());
    install(&stored, &directory);
    let (certificate, key) = (directory.join("tls.crt"), directory.join("tls.key"));
    let (certificate, key) = (text(&certificate), text(&key));
    let broken = directory.join("broken.yaml");
    std::fs::write(&broken, "no-such-setting: 1\n").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let files = ["--offline", "--tls-cert", certificate, "--tls-key", key];
    for (args, code, words) in [
        (vec![], 2, "--cert-secret"),
        (vec!["--tls-cert", certificate], 2, "--tls-key"),
        (vec!["--cert-secret", "it", "--tls-cert", certificate, "--tls-key", key], 2, "cannot be used with"),
        (vec!["--drain-delay", "5 minutes", "--cert-secret", "it"], 2, "such as"),
        (vec!["--offline", "--tls-cert", key, "--tls-key", key], 1, "BEGIN CERTIFICATE"),
        (vec!["--offline", "--tls-cert", "/nowhere", "--tls-key", key], 1, "/nowhere"),
        ([&files[..], &["--config", text(&broken)]].concat(), 1, "no-such-setting"),
        ([&files[..], &["--listen", &taken]].concat(), 1, "cannot be listened on"),
        (vec!["--cert-secret", "it"], 1, "KUBECONFIG"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_ration-injector"))
            .arg("webhook")
            .args(&args)
            .args(if args.contains(&"--listen") { &[][..] } else { &["--listen", "127.0.0.1:0"] })
            .args(["--status", "127.0.0.1:0"])
            .env("KUBECONFIG", "/nowhere/kubeconfig")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
}
