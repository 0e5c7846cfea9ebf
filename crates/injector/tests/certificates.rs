//! Certificates that replicas make and keep in a Secret: they agree, whoever trusts the webhook's configuration trusts every
//! replica at every time, and what goes wrong is said and mended.

#![allow(clippy::unwrap_used)] // in a test, a panic is how it fails

#[path = "certificates/cluster.rs"]
mod cluster;
#[path = "serving/harness.rs"]
mod harness;

use std::sync::Arc;
use std::time::Duration;

use cluster::{CONFIGURATION, Cluster, SECRET, SECRETS};
use harness::{NAME, Program, Trust, asking, certificate, directory, wait};
use ration_injector::certs::authority::{Plan, verifies};
use ration_injector::certs::cluster::{Found, Keeper};
use ration_injector::certs::{chain, unix_now};
use serde_json::{Value, json};
use tokio::sync::Barrier;

const DAY: i64 = 86_400;

fn keeper(cluster: &Cluster) -> Keeper {
    Keeper {
        client: cluster.client(),
        namespace: "ration".to_owned(),
        secret: "certs".to_owned(),
        configuration: "ration-injector".to_owned(),
        plan: Plan::for_service("injector", "ration", &[]),
    }
}

/// One look, by a replica of its own.
fn round(cluster: &Cluster, now: i64) -> Result<Found, String> {
    wait_for(async { keeper(cluster).round(now).await })
}

fn wait_for<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Whether whoever trusts these takes what that replica serves.
fn trusts(trusted: &str, served: &str, now: i64) -> bool {
    let leaf = chain(served.as_bytes()).unwrap().remove(0);
    chain(trusted.as_bytes()).unwrap().iter().any(|ca| verifies(&leaf, ca, NAME, now))
}

#[test]
fn replicas_that_start_at_once_agree() {
    let cluster = Cluster::start();
    cluster.world(|world| world.race = Some(Arc::new(Barrier::new(2))));
    let now = unix_now();
    let (one, two): (Found, Found) = wait_for(async {
        let (one, two) = (keeper(&cluster), keeper(&cluster));
        let (one, two) = tokio::join!(one.round(now), two.round(now));
        (one.unwrap(), two.unwrap())
    });
    assert_eq!(one.stored, two.stored, "both serve the same");
    assert_eq!(one.written.is_some() as u8 + two.written.is_some() as u8, 1, "one wrote, the other took it");
    assert_eq!(cluster.count("POST secrets 409"), 1, "they did race");
    assert_eq!(cluster.trusted().as_deref(), Some(one.stored.trusted.as_str()));
    assert!(trusts(&cluster.trusted().unwrap(), &one.stored.certificate.0, now));
    cluster.world(|world| {
        let webhook = &world.get(CONFIGURATION).unwrap()["webhooks"][1];
        assert_eq!(webhook["aFieldOfTheFuture"]["kept"], true, "nothing else is touched");
        assert_eq!(webhook["clientConfig"]["service"]["path"], "/mutate");
    });
}

/// A day at a time for three years. One replica looks every day, the other every third; what API servers trust is what the
/// configuration had the day before.
#[test]
fn a_ca_is_replaced_while_every_replica_is_trusted() {
    let cluster = Cluster::start();
    let mut cas = std::collections::BTreeSet::new();
    wait_for(async {
        let (one, two) = (keeper(&cluster), keeper(&cluster));
        let start = unix_now();
        let mut served = [String::new(), String::new()];
        let mut told = String::new();
        for day in 0..3 * 365 {
            let now = start + day * DAY;
            for (number, replica) in [&one, &two].into_iter().enumerate() {
                if number == 0 || day % 3 == 0 {
                    served[number] = replica.round(now).await.unwrap().stored.certificate.0;
                }
            }
            if day > 0 {
                for served in &served {
                    assert!(trusts(&told, served, now), "day {day}");
                }
            }
            told = cluster.trusted().unwrap();
            cas.extend(chain(told.as_bytes()).unwrap().into_iter().map(|ca| ca.to_vec()));
            assert!(told.len() < 4096, "CAs that expired are forgotten");
        }
    });
    assert!((4..=7).contains(&cas.len()), "{} CAs in three years", cas.len());
}

#[test]
fn what_others_change_meanwhile_is_not_overwritten() {
    let cluster = Cluster::start();
    let empty = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": "certs", "namespace": "ration", "labels": {"of": "the chart"}}});
    cluster.world(|world| {
        world.put(SECRET, empty);
        world.meddle = 3;
    });
    let found = round(&cluster, unix_now()).unwrap();
    assert_eq!(cluster.count("PUT secrets 409") + cluster.count("PATCH mutatingwebhookconfigurations 422"), 3);
    assert_eq!(cluster.trusted(), Some(found.stored.trusted));
    cluster.world(|world| {
        let secret = world.get(SECRET).unwrap();
        assert_eq!(secret["metadata"]["labels"]["of"], "the chart");
        assert!(secret["data"]["tls.crt"].is_string());
    });
    // And somebody who never stops is given up on, for now.
    cluster.world(|world| {
        world.remove(SECRET);
        world.put(
            SECRET,
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "certs", "namespace": "ration"}}),
        );
        world.meddle = 1000;
    });
    let why = round(&cluster, unix_now()).unwrap_err();
    assert!(why.contains("ration/certs"), "{why}");
}

#[test]
fn what_is_damaged_or_removed_is_mended() {
    let cluster = Cluster::start();
    let now = unix_now();
    let round = || round(&cluster, now).unwrap();
    let first = round();
    let again = round();
    assert_eq!((again.written, again.told), (None, false), "nothing is written when all is well");

    // Somebody applies the configuration anew.
    cluster.world(|world| {
        let mut configuration = world.get(CONFIGURATION).cloned().unwrap();
        for webhook in configuration["webhooks"].as_array_mut().unwrap() {
            webhook["clientConfig"].as_object_mut().unwrap().remove("caBundle");
        }
        world.put(CONFIGURATION, configuration);
    });
    let told = round();
    assert_eq!((told.written, told.told), (None, true));
    assert_eq!(cluster.trusted(), Some(first.stored.trusted.clone()));

    // Somebody damages the Secret: the CA goes on being trusted, for a replica may serve by it still.
    cluster.world(|world| {
        let mut secret = world.get(SECRET).cloned().unwrap();
        secret["data"]["ca.key"] = json!("");
        world.put(SECRET, secret);
    });
    let mended = round();
    assert!(mended.written.is_some());
    assert!(trusts(&mended.stored.trusted, &first.stored.certificate.0, now));
    assert!(trusts(&mended.stored.trusted, &mended.stored.certificate.0, now));
    assert_eq!(cluster.trusted(), Some(mended.stored.trusted.clone()));

    // Somebody removes it.
    cluster.world(|world| world.remove(SECRET));
    let anew = round();
    assert!(trusts(&cluster.trusted().unwrap(), &anew.stored.certificate.0, now));
}

/// Two whole programs, one cluster: both are ready, and whoever trusts the configuration can speak to both.
#[test]
fn two_programs_serve_the_same_ca() {
    let cluster = Cluster::start();
    cluster.world(|world| world.race = Some(Arc::new(Barrier::new(2))));
    let kubeconfig = cluster.kubeconfig(&directory("two"));
    let start = || Program::start(&["--cert-secret", "certs", "--service", "injector"], &[("KUBECONFIG", &kubeconfig)]);
    let (one, two) = (start(), start());
    one.ready();
    two.ready();
    let trust = Trust::new(&[&cluster.trusted().unwrap()]);
    for program in [&one, &two] {
        let mut client = program.connect(&trust).unwrap();
        client.post(&asking("both")).unwrap().review();
        assert!(program.metric("ration_injector_certificate_expiry_timestamp_seconds") > Some(1.0e9));
    }
    assert_eq!(one.connect(&trust).unwrap().shown(), two.connect(&trust).unwrap().shown());
    assert_eq!(cluster.count("POST secrets 200"), 1);
}

/// What another replica wrote is taken up within seconds; connections and requests do not notice.
#[test]
fn a_renewed_certificate_is_taken_up_while_it_serves() {
    let cluster = Cluster::start();
    let kubeconfig = cluster.kubeconfig(&directory("renewed"));
    let program = Program::start(&["--cert-secret", "certs", "--service", "injector"], &[("KUBECONFIG", &kubeconfig)]);
    program.ready();
    let old = cluster.trusted().unwrap();
    let new = certificate();
    let both = Trust::new(&[&old, &new.trusted]);
    let mut kept = program.connect(&both).unwrap();
    let was = kept.shown();
    let encoded = |text: &str| json!(k8s_openapi::ByteString(text.as_bytes().to_vec()));
    cluster.world(|world| {
        let mut secret = world.get(SECRET).cloned().unwrap();
        secret["data"] = json!({"ca.crt": encoded(&format!("{}{old}", new.trusted)), "ca.key": encoded(&new.ca_key),
            "tls.crt": encoded(&new.certificate.0), "tls.key": encoded(&new.certificate.1)});
        world.put(SECRET, secret);
    });
    let mut answered = 0;
    while program.connect(&both).unwrap().shown() == was {
        for _ in 0..10 {
            kept.post(&asking("meanwhile")).unwrap().review();
            program.connect(&both).unwrap().post(&asking("anew")).unwrap().review();
            answered += 1;
        }
        assert!(answered < 100_000, "it is never taken up");
    }
    kept.post(&asking("after")).unwrap().review();
    wait("both CAs are trusted", || chain(cluster.trusted().unwrap().as_bytes()).unwrap().len() == 2);
}

#[test]
fn what_is_forbidden_is_said_and_what_was_served_is_served_on() {
    let cluster = Cluster::start();
    let kubeconfig = cluster.kubeconfig(&directory("forbidden"));
    cluster.world(|world| world.forbidden = vec![SECRETS]);
    let program = Program::start(&["--cert-secret", "certs", "--service", "injector"], &[("KUBECONFIG", &kubeconfig)]);
    let line = program.logged("the certificate cannot be looked after now");
    assert!(line["why"].as_str().unwrap().contains("secret ration/certs cannot be read"), "{line}");
    let unready = program.get("/readyz");
    assert_eq!(unready.status, 503);
    assert!(String::from_utf8_lossy(&unready.body).contains("no certificate yet"), "{unready:?}");
    assert_eq!(program.get("/healthz").status, 200);
    // The configuration is not there, then it is.
    let configuration = cluster.world(|world| {
        let configuration = world.get(CONFIGURATION).cloned().unwrap();
        world.remove(CONFIGURATION);
        world.forbidden.clear();
        configuration
    });
    wait("the Secret is there", || cluster.world(|world| world.get(SECRET).is_some()));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(program.get("/readyz").status, 503);
    cluster.world(|world| drop(world.put(CONFIGURATION, configuration)));
    program.ready();
    cluster.world(|world| world.forbidden = vec!["/api"]);
    let trust = Trust::new(&[&cluster.trusted().unwrap()]);
    wait("it is said that something is wrong", || program.metric("ration_injector_certificate_in_order") == Some(0.0));
    program.connect(&trust).unwrap().post(&asking("on")).unwrap().review();
    assert_eq!(program.get("/readyz").status, 200, "what was trusted is trusted on");
}

/// A pod that would need a hostPath volume, in a namespace whose labels forbid that.
#[test]
fn the_labels_of_namespaces_are_followed() {
    let cluster = Cluster::start();
    let enabled = json!({"ration.dev/inject": "enabled", "of": "no interest"});
    let baseline = json!({"ration.dev/inject": "enabled", "pod-security.kubernetes.io/enforce": "baseline"});
    cluster.label("other", &json!({}));
    cluster.label("team-a", &baseline);
    let kubeconfig = cluster.kubeconfig(&directory("labels"));
    let program = Program::start(&["--cert-secret", "certs", "--service", "injector"], &[("KUBECONFIG", &kubeconfig)]);
    program.ready();
    let mut client = program.connect(&Trust::new(&[&cluster.trusted().unwrap()])).unwrap();
    let mut asked = || -> Value { client.post(&asking("labels")).unwrap().review() };
    let denied = asked();
    assert_eq!(denied["allowed"], false);
    assert!(denied["status"]["message"].as_str().unwrap().contains("baseline"), "{denied}");
    wait("it watches", || cluster.count("watch") == 1);
    cluster.label("team-a", &enabled);
    wait("the change is seen", || asked()["allowed"] == true);
    cluster.label("team-a", &baseline);
    wait("and back", || asked()["allowed"] == false);
    // A watch that ends goes on; one that ends in an error begins anew, with what happened meanwhile.
    cluster.end_watches(None);
    wait("it watches again", || cluster.count("watch") == 2);
    cluster.label("team-a", &enabled);
    wait("the change is seen", || asked()["allowed"] == true);
    let lists = cluster.count("GET namespaces 200");
    cluster.end_watches(Some(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version", "reason": "Expired", "code": 410})));
    wait("it watches anew", || cluster.count("watch") == 3);
    assert!(cluster.count("GET namespaces 200") > lists);
    cluster.label("team-a", &baseline);
    wait("the change is seen", || asked()["allowed"] == false);
    assert_eq!(program.metric("ration_injector_namespaces"), Some(2.0));
    // Where they cannot be followed, they are not known, and the API server's own check decides.
    cluster.world(|world| world.forbidden = vec!["/api/v1/namespaces"]);
    cluster.end_watches(Some(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "gone", "reason": "Expired", "code": 410})));
    wait("they are not known", || asked()["allowed"] == true);
    assert_eq!(program.metric("ration_injector_namespaces_in_order"), Some(0.0));
}
