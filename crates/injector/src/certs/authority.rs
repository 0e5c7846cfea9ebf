//! Makes and renews a CA and a certificate that it issued. Arithmetic about time, and no I/O: the clock is an argument.
//!
//! A CA is replaced in three steps, so that at every moment the API server trusts every certificate that some replica may
//! still serve:
//!
//! | step | when | what is written |
//! |---|---|---|
//! | stage | a third of the CA's life is left | a next CA, trusted beside the one in use; nothing is issued by it yet |
//! | switch | the next CA has been in the webhook's configuration for a while | a certificate issued by it, which replicas take up as they see it |
//! | forget | the old CA has expired | it is trusted no more |
//!
//! The certificate itself is renewed under the same CA when a third of its life is left.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

use super::{Certificate, chain, provider, x509};

/// What is made, and for how long. Times are in seconds.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What the API server calls us: names and addresses.
    pub names: Vec<String>,
    /// How long a CA is valid.
    pub ca_life: i64,
    /// How long a certificate is valid, and at most as long as its CA.
    pub certificate_life: i64,
    /// How long a CA is trusted before anything that it issued is served: longer than it takes any API server to hear of it.
    pub settle: i64,
    /// Clocks may differ by this: certificates are valid from so much before they are made.
    pub skew: i64,
}

impl Plan {
    /// For a service, by all names under which a cluster knows it, and some more.
    pub fn for_service(service: &str, namespace: &str, more: &[String]) -> Plan {
        let mut names = vec![
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
            format!("{service}.{namespace}"),
            service.to_owned(),
        ];
        names.extend_from_slice(more);
        Plan { names, ca_life: 365 * 86_400, certificate_life: 90 * 86_400, settle: 600, skew: 300 }
    }

    /// Whether certificates can be renewed in time by this plan.
    pub fn check(&self) -> Result<(), String> {
        let (ca, certificate, settle) = (self.ca_life, self.certificate_life, self.settle);
        if certificate < 60 || ca < certificate || settle > ca / 6 {
            return Err(format!(
                "a CA for {ca} s, trusted for {settle} s before it is used, and certificates for {certificate} s cannot be \
                 renewed in time: a certificate's life is at least a minute and at most the CA's, and a CA is used after at \
                 most a sixth of its life"
            ));
        }
        Ok(())
    }
}

/// What replicas share. All of it is PEM.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stored {
    /// The CAs that are trusted: the one in use first.
    pub trusted: String,
    /// The key of the CA in use.
    pub ca_key: String,
    /// The CA that will be used next, if there is one: its certificate and its key.
    pub next: Option<(String, String)>,
    /// The certificate that is served, and its key.
    pub certificate: (String, String),
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: all is in order.
    Keep,
    /// This takes the place of what is stored, for this reason.
    Write(Box<Stored>, &'static str),
}

/// More CAs than this at a time are never needed; a longer list is somebody's mistake, and would grow for ever.
const MOST_TRUSTED: usize = 4;

/// What is to be done about what is stored, given the CAs that API servers have been told to trust.
pub fn step(plan: &Plan, stored: Option<&Stored>, told: &str, now: i64) -> Result<Step, String> {
    let Some(stored) = stored else {
        return write(fresh(plan, &[], now)?, "there was none");
    };
    let trusted = chain(stored.trusted.as_bytes()).unwrap_or_default();
    let Some(ca) = Ca::usable(trusted.first(), &stored.ca_key, now) else {
        let next = stored.next.as_ref().and_then(|(ca, key)| Ca::usable(chain(ca.as_bytes()).ok()?.first(), key, now));
        return match next {
            Some(next) => write(switch(plan, &next, &trusted, now)?, "the CA in use had expired"),
            None => write(fresh(plan, &trusted, now)?, "what there was could not be used, or had expired"),
        };
    };
    if let Some((certificate, key)) = &stored.next {
        let told = chain(told.as_bytes()).unwrap_or_default();
        match Ca::usable(chain(certificate.as_bytes()).unwrap_or_default().first(), key, now) {
            Some(next) if told.contains(&next.certificate) && now >= next.made(plan) + plan.settle => {
                return write(switch(plan, &next, &trusted, now)?, "the next CA takes over");
            }
            Some(_) => {}
            None => return write(stage(plan, stored, &ca, &trusted, now)?, "the next CA could not be used"),
        }
    } else if ca.left(now) < ca.life() / 3 {
        return write(stage(plan, stored, &ca, &trusted, now)?, "the CA will expire: a next one is made known");
    }
    if !serves(plan, stored, &ca, now) {
        let certificate = issue(plan, &ca, now)?;
        return write(Stored { certificate, ..stored.clone() }, "the certificate was to be renewed");
    }
    let kept = bundle(&trusted, now);
    if kept != stored.trusted {
        return write(Stored { trusted: kept, ..stored.clone() }, "an old CA is not trusted any more");
    }
    Ok(Step::Keep)
}

fn write(stored: Stored, why: &'static str) -> Result<Step, String> {
    Ok(Step::Write(Box::new(stored), why))
}

/// A CA and a certificate, from nothing. CAs that may still be needed are trusted on.
fn fresh(plan: &Plan, old: &[CertificateDer<'static>], now: i64) -> Result<Stored, String> {
    let ca = Ca::make(plan, now)?;
    switch(plan, &ca, old, now)
}

/// Makes a next CA known.
fn stage(
    plan: &Plan,
    stored: &Stored,
    ca: &Ca,
    trusted: &[CertificateDer<'static>],
    now: i64,
) -> Result<Stored, String> {
    let next = Ca::make(plan, now)?;
    let mut all = vec![ca.certificate.clone(), next.certificate.clone()];
    all.extend(trusted.iter().skip(1).cloned());
    let next = (to_pem(&next.certificate), next.key.serialize_pem());
    Ok(Stored { trusted: bundle(&all, now), next: Some(next), ..stored.clone() })
}

/// Serves by this CA from now on.
fn switch(plan: &Plan, ca: &Ca, trusted: &[CertificateDer<'static>], now: i64) -> Result<Stored, String> {
    let mut all = vec![ca.certificate.clone()];
    all.extend(trusted.iter().filter(|old| **old != ca.certificate).cloned());
    Ok(Stored {
        trusted: bundle(&all, now),
        ca_key: ca.key.serialize_pem(),
        next: None,
        certificate: issue(plan, ca, now)?,
    })
}

/// Whether what is served is in order: issued by the CA in use, for all names, and not to be renewed yet.
fn serves(plan: &Plan, stored: &Stored, ca: &Ca, now: i64) -> bool {
    let (certificate, key) = &stored.certificate;
    if Certificate::from_pem(certificate.as_bytes(), key.as_bytes()).is_err() {
        return false;
    }
    let Some(leaf) = chain(certificate.as_bytes()).ok().and_then(|chain| chain.into_iter().next()) else {
        return false;
    };
    let Ok(valid) = x509::validity(&leaf) else { return false };
    valid.not_after - now >= (valid.not_after - valid.not_before) / 3
        && plan.names.iter().all(|name| verifies(&leaf, &ca.certificate, name, now))
}

/// Whether a client that trusts the CA takes the certificate for this name.
pub fn verifies(leaf: &CertificateDer<'_>, ca: &CertificateDer<'static>, name: &str, now: i64) -> bool {
    let mut roots = RootCertStore::empty();
    let Ok(name) = ServerName::try_from(name.to_owned()) else { return false };
    if roots.add(ca.clone()).is_err() {
        return false;
    }
    let Ok(verifier) = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build() else {
        return false;
    };
    let since_1970 = std::time::Duration::from_secs(u64::try_from(now).unwrap_or(0));
    verifier.verify_server_cert(leaf, &[], &name, &[], UnixTime::since_unix_epoch(since_1970)).is_ok()
}

/// The CAs that have not expired, as PEM.
fn bundle(certificates: &[CertificateDer<'static>], now: i64) -> String {
    let valid = certificates.iter().filter(|ca| x509::validity(ca).is_ok_and(|valid| valid.not_after > now));
    valid.take(MOST_TRUSTED).map(to_pem).collect()
}

fn to_pem(certificate: &CertificateDer<'static>) -> String {
    let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", certificate.to_vec()), lines)
}

/// A CA that can issue.
struct Ca {
    certificate: CertificateDer<'static>,
    key: KeyPair,
    valid: x509::Validity,
}

impl Ca {
    fn make(plan: &Plan, now: i64) -> Result<Ca, String> {
        let key = KeyPair::generate().map_err(|why| format!("no key can be made: {why}"))?;
        let mut params = ca_params(&key);
        valid(&mut params, now - plan.skew, now + plan.ca_life);
        let made = params.self_signed(&key).map_err(|why| format!("no CA can be made: {why}"))?;
        let certificate = made.der().clone();
        let valid = x509::validity(&certificate)?;
        Ok(Ca { certificate, key, valid })
    }

    /// What is stored, if it is whole, belongs together and has not expired. That it is not valid yet only says that another
    /// replica's clock is ahead of ours, and is no reason to make another.
    fn usable(certificate: Option<&CertificateDer<'static>>, key: &str, now: i64) -> Option<Ca> {
        let certificate = certificate?.clone();
        let valid = x509::validity(&certificate).ok().filter(|valid| now < valid.not_after)?;
        Certificate::from_pem(to_pem(&certificate).as_bytes(), key.as_bytes()).ok()?;
        Some(Ca { certificate, key: KeyPair::from_pem(key).ok()?, valid })
    }

    fn left(&self, now: i64) -> i64 {
        self.valid.not_after - now
    }

    fn life(&self) -> i64 {
        self.valid.not_after - self.valid.not_before
    }

    /// When it was made.
    fn made(&self, plan: &Plan) -> i64 {
        self.valid.not_before + plan.skew
    }
}

/// What a CA with this key is called. The name comes from the key, so that it need not be read from the certificate, and
/// no two CAs have the same.
fn ca_params(key: &KeyPair) -> CertificateParams {
    use std::fmt::Write as _;
    let digest = ring::digest::digest(&ring::digest::SHA256, key.public_key_raw());
    let mut name = "ration-injector CA ".to_owned();
    for byte in digest.as_ref().iter().take(8) {
        let _ = write!(name, "{byte:02x}");
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params
}

/// A certificate for all names, and its key.
fn issue(plan: &Plan, ca: &Ca, now: i64) -> Result<(String, String), String> {
    let told = |why: rcgen::Error| format!("no certificate can be made for {}: {why}", plan.names.join(", "));
    let mut params = CertificateParams::new(plan.names.clone()).map_err(told)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "ration-injector");
    valid(&mut params, now - plan.skew, (now + plan.certificate_life).min(ca.valid.not_after));
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(told)?;
    let ca_params = ca_params(&ca.key);
    let certificate = params.signed_by(&key, &Issuer::from_params(&ca_params, &ca.key)).map_err(told)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// Makes it valid from then until then. Before 1970 there were no certificates.
fn valid(params: &mut CertificateParams, from: i64, until: i64) {
    let since_1970 = |seconds| std::time::Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    params.not_before = date_time_ymd(1970, 1, 1) + since_1970(from);
    params.not_after = date_time_ymd(1970, 1, 1) + since_1970(until);
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;
    const START: i64 = 1_800_000_000;

    fn plan() -> Plan {
        Plan::for_service("injector", "ration", &["127.0.0.1".to_owned()])
    }

    fn written(step: Step) -> (Stored, &'static str) {
        match step {
            Step::Write(stored, why) => (*stored, why),
            Step::Keep => panic!("nothing is written"),
        }
    }

    fn first(pem: &str) -> CertificateDer<'static> {
        chain(pem.as_bytes()).unwrap().remove(0)
    }

    #[test]
    fn from_nothing_there_is_a_certificate_for_every_name() {
        let (stored, _) = written(step(&plan(), None, "", START).unwrap());
        Certificate::from_pem(stored.certificate.0.as_bytes(), stored.certificate.1.as_bytes()).unwrap();
        let (leaf, ca) = (first(&stored.certificate.0), first(&stored.trusted));
        for name in ["injector.ration.svc", "injector.ration.svc.cluster.local", "injector", "127.0.0.1"] {
            assert!(verifies(&leaf, &ca, name, START), "{name}");
        }
        assert!(!verifies(&leaf, &ca, "other.ration.svc", START));
        assert!(!verifies(&leaf, &ca, "injector", START + 91 * DAY));
        assert_eq!(step(&plan(), Some(&stored), &stored.trusted, START), Ok(Step::Keep));
    }

    #[test]
    fn what_is_damaged_is_made_anew() {
        let (good, _) = written(step(&plan(), None, "", START).unwrap());
        let (other, _) = written(step(&plan(), None, "", START).unwrap());
        for (what, damaged) in [
            ("nothing", Stored::default()),
            ("no key of the CA", Stored { ca_key: String::new(), ..good.clone() }),
            ("another's key", Stored { ca_key: other.ca_key.clone(), ..good.clone() }),
            ("no PEM", Stored { trusted: "-----BEGIN CERTIFICATE-----".to_owned(), ..good.clone() }),
            ("another's certificate", Stored { certificate: other.certificate.clone(), ..good.clone() }),
            ("no certificate", Stored { certificate: (String::new(), String::new()), ..good.clone() }),
        ] {
            let (stored, _) = written(step(&plan(), Some(&damaged), "", START).unwrap());
            let (leaf, ca) = (first(&stored.certificate.0), first(&stored.trusted));
            assert!(verifies(&leaf, &ca, "injector.ration.svc", START), "{what}");
            assert_eq!(step(&plan(), Some(&stored), "", START), Ok(Step::Keep), "{what}");
        }
    }

    #[test]
    fn another_name_makes_another_certificate_under_the_same_ca() {
        let (stored, _) = written(step(&plan(), None, "", START).unwrap());
        let more = Plan::for_service("injector", "ration", &["webhook.example".to_owned()]);
        let (renewed, _) = written(step(&more, Some(&stored), "", START).unwrap());
        assert_eq!(renewed.trusted, stored.trusted);
        assert!(verifies(&first(&renewed.certificate.0), &first(&stored.trusted), "webhook.example", START));
    }

    /// Ten years, day by day. API servers are told of CAs a day late, and a replica serves a certificate of yesterday: the
    /// one is always trusted by the other.
    #[test]
    fn what_any_replica_serves_is_always_trusted() {
        let plan = plan();
        let (mut stored, _) = written(step(&plan, None, "", START).unwrap());
        let (mut told, mut served) = (stored.trusted.clone(), stored.certificate.0.clone());
        let (mut cas, mut leaves) = (1, 1);
        for day in 0..3650 {
            let now = START + day * DAY;
            for when in [now, now + DAY - 1] {
                let leaf = first(&served);
                let trusted = chain(told.as_bytes()).unwrap();
                assert!(trusted.iter().any(|ca| verifies(&leaf, ca, "injector.ration.svc", when)), "day {day}");
            }
            let was = stored.clone();
            while let Step::Write(next, _) = step(&plan, Some(&stored), &told, now).unwrap() {
                stored = *next;
            }
            cas += usize::from(first(&was.trusted) != first(&stored.trusted));
            leaves += usize::from(was.certificate != stored.certificate);
            told.clone_from(&was.trusted);
            served.clone_from(&was.certificate.0);
            assert!(chain(stored.trusted.as_bytes()).unwrap().len() <= 3, "day {day}");
        }
        assert!((13..=18).contains(&cas), "{cas} CAs in ten years");
        assert!((55..=80).contains(&leaves), "{leaves} certificates in ten years");
    }

    #[test]
    fn a_next_ca_waits_until_api_servers_know_it() {
        let plan = plan();
        let (stored, _) = written(step(&plan, None, "", START).unwrap());
        let late = START + 300 * DAY;
        let (mut staged, _) = written(step(&plan, Some(&stored), &stored.trusted, late).unwrap());
        assert!(staged.next.is_some());
        assert_eq!(chain(staged.trusted.as_bytes()).unwrap().len(), 2);
        assert_eq!(first(&staged.trusted), first(&stored.trusted), "the old one is still in use");
        // Renewed, but by the CA in use.
        (staged, _) = written(step(&plan, Some(&staged), &stored.trusted, late).unwrap());
        assert!(verifies(&first(&staged.certificate.0), &first(&stored.trusted), "injector", late));
        // Long after, but nobody was told; then at once, but just told; then both.
        assert_eq!(step(&plan, Some(&staged), &stored.trusted, late + DAY), Ok(Step::Keep));
        assert_eq!(step(&plan, Some(&staged), &staged.trusted, late + 1), Ok(Step::Keep));
        let (switched, _) = written(step(&plan, Some(&staged), &staged.trusted, late + plan.settle).unwrap());
        assert_eq!(switched.next, None);
        assert_ne!(first(&switched.trusted), first(&stored.trusted));
        assert_eq!(chain(switched.trusted.as_bytes()).unwrap().len(), 2, "the old one is trusted on");
        assert!(verifies(&first(&switched.certificate.0), &first(&switched.trusted), "injector", late + DAY));
        // And once it has expired, it is forgotten.
        let (forgot, _) = written(step(&plan, Some(&switched), &switched.trusted, START + 366 * DAY).unwrap());
        let (forgot, _) = match step(&plan, Some(&forgot), "", START + 366 * DAY).unwrap() {
            Step::Keep => (forgot, ""),
            more => written(more),
        };
        assert_eq!(chain(forgot.trusted.as_bytes()).unwrap().len(), 1);
    }

    #[test]
    fn after_years_of_silence_it_starts_again() {
        let (stored, _) = written(step(&plan(), None, "", START).unwrap());
        let later = START + 2000 * DAY;
        let (again, _) = written(step(&plan(), Some(&stored), &stored.trusted, later).unwrap());
        assert!(verifies(&first(&again.certificate.0), &first(&again.trusted), "injector", later));
        assert_eq!(chain(again.trusted.as_bytes()).unwrap().len(), 1, "what expired is not trusted");
    }
}
