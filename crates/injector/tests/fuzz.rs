//! Reviews that nobody would write, and pods that somebody might: always an answer, and always one that an API server takes.
//!
//! `RATION_FUZZ_REVIEWS` is how many (25,000 without it), `RATION_FUZZ_SEED` where they begin. A failure prints the seed of the
//! one review that caused it.

use std::collections::BTreeMap;

use ration_injector::config::Config;
use ration_injector::review::{Context, Labels, Outcome, answer_in, missing_pod};
use serde_json::{Map, Value, json};

#[path = "reviews/support.rs"]
mod support;

use support::{NAMESPACE, as_library, config, listed, review, taken};

/// A small generator (xorshift64*): the same reviews everywhere.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        // Seeds that differ by one should not begin alike.
        Dice((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() >> 33) as usize % most.max(1)
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

const NAMES: [&str; 6] =
    ["main", "side", "init", "ration-library", "a-name-that-is-so-long-that-nothing-more-fits-in-sixty-three", "B\nad"];
const VALUES: [&str; 26] = [
    "8Gi",
    "8GiB",
    "25%",
    "100%",
    "0=8Gi,1=25%",
    "30%",
    "8g",
    "",
    "-1",
    "0",
    ".5Gi",
    "8589934592000m",
    "9999999999999999999Gi",
    "latency",
    "batch",
    "GPU-8932f937=8GiB",
    "0.5",
    "1e3",
    "1e99",
    "\u{0}\n",
    "ünïcode",
    "50",
    "1",
    "4096",
    "3k",
    "8Gi,8Gi",
];
const ANNOTATIONS: [&str; 18] = [
    "ration.dev/memory",
    "ration.dev/compute",
    "ration.dev/compute-request",
    "ration.dev/compute-limit",
    "ration.dev/priority",
    "ration.dev/memory.main",
    "ration.dev/compute.side",
    "ration.dev/memory.nobody",
    "ration.dev/speed",
    "ration.dev/quota.main",
    "ration.dev/preload",
    "ration.dev/injected",
    "gpu-fraction",
    "gpu-memory",
    "gpu-fraction-num-devices",
    "gpu-fraction-container-name",
    "unrelated",
    "ration.dev/",
];
const RESOURCES: [&str; 11] = [
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/priority",
    "volcano.sh/gpu-memory",
    "volcano.sh/vgpu-number",
    "cpu",
    "memory",
];
const AMOUNTS: [&str; 10] = ["1", "0", "2", "3k", "4096", "50", "100", "1500m", "x", "18446744073709551616"];
const VOLUMES: [&str; 6] = ["data", "ration-library", "ration-region", "ration-quota-main", "ration-quota-side", "x"];
const PATHS: [&str; 11] = [
    "/data",
    "/run/ration-own",
    "/run/ration-pods",
    "/etc/ration",
    "/etc",
    "/run/ration/",
    "/usr/local/ration",
    "/etc/ld.so.preload",
    "//etc/./ration",
    "etc/ration",
    "",
];
const VARIABLES: [&str; 6] =
    ["LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "RATION_MEMORY", "PATH", "LD_PRELOAD", "RATION_POD_UID"];
const CONFIGS: [&str; 8] = [
    "{}",
    "preload: env",
    "{delivery: image, library: {image: 'example.com/r:1'}}",
    "{delivery: initContainer, library: {image: 'example.com/r:1'}, preload: env}",
    "{defaults: {memory: 4GiB, compute: 25%}, maxima: {memory: 16GiB, computeLimit: 80%, priority: normal}}",
    "{foreignResources: ignore, withoutQuota: deny, privileged: allow}",
    "{maxima: {memory: 50%, compute: 50%}, optOut: deny}",
    "{namespaces: {team-a: {defaults: {memory: 1GiB}}}, gpuResources: ['example.com/*', nvidia.com/gpu]}",
];

fn map(dice: &mut Dice, keys: &[&str], values: &[&str], most: usize) -> Value {
    let count = dice.below(most + 1);
    (0..count).map(|_| ((*dice.pick(keys)).to_owned(), json!(dice.pick(values)))).collect::<Map<_, _>>().into()
}

fn container(dice: &mut Dice, name: &str) -> Value {
    let mut one = json!({"name": name, "image": "cuda"});
    if !dice.one_in(4) {
        let resources = if dice.one_in(4) {
            map(dice, &RESOURCES, &AMOUNTS, 4)
        } else {
            map(dice, &RESOURCES[..6], &["1", "2"], 3)
        };
        one["resources"] = json!({"limits": resources});
        if dice.one_in(2) {
            one["resources"]["limits"]["nvidia.com/gpu"] = json!("1");
        }
        if dice.one_in(8) {
            one["resources"]["claims"] = json!([{"name": "gpu"}]);
        }
    }
    if dice.one_in(3) {
        let count = dice.below(3);
        let env = (0..count).map(|_| match dice.below(4) {
            3 => json!({"name": "RATION_POD_UID", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}}),
            0 => json!({"name": dice.pick(&VARIABLES), "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
            _ => json!({"name": dice.pick(&VARIABLES), "value": dice.pick(&VALUES)}),
        });
        one["env"] = env.collect();
    }
    if dice.one_in(4) {
        let count = dice.below(3);
        let mount = |dice: &mut Dice| match dice.below(6) {
            0 => json!({"name": "ration-region", "mountPath": "/run/ration-own", "subPathExpr": "$(RATION_POD_UID)"}),
            1 => json!({"name": "ration-region", "mountPath": "/run/ration"}),
            _ => json!({"name": dice.pick(&VOLUMES), "mountPath": dice.pick(&PATHS), "readOnly": dice.one_in(2)}),
        };
        one["volumeMounts"] = (0..count).map(|_| mount(dice)).collect();
    }
    if dice.one_in(8) {
        one["securityContext"] = match dice.below(3) {
            0 => json!({"privileged": dice.one_in(2)}),
            1 => json!({"capabilities": {"add": ["SYS_ADMIN"]}}),
            _ => json!({}),
        };
    }
    if dice.one_in(10) {
        one["futureField"] = json!({"a": [1, null]});
    }
    one
}

fn pod(dice: &mut Dice) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}});
    if !dice.one_in(5) {
        pod["metadata"]["annotations"] = if dice.one_in(4) {
            map(dice, &ANNOTATIONS, &VALUES, 3)
        } else {
            map(dice, &ANNOTATIONS[..3], &["25%", "30%"], 3)
        };
    }
    if dice.one_in(6) {
        pod["metadata"]["labels"] = json!({"ration.dev/inject": dice.pick(&["enabled", "disabled", "yes"])});
    }
    let count = 1 + dice.below(2);
    pod["spec"]["containers"] = (0..count)
        .map(|at| {
            let name = if dice.one_in(8) { *dice.pick(&NAMES) } else { NAMES[at] };
            container(dice, name)
        })
        .collect();
    if dice.one_in(4) {
        let name = if dice.one_in(5) { *dice.pick(&NAMES) } else { "init" };
        pod["spec"]["initContainers"] = json!([container(dice, name)]);
    }
    if dice.one_in(4) {
        let volume = match dice.below(5) {
            0 => json!({"hostPath": {"path": dice.pick(&["/", "/run/ration-pods", "/var/lib/ration/lib/current/x"])}}),
            1 => json!({"configMap": {"name": "c"}}),
            2 => json!({"downwardAPI": {"items": []}}),
            3 => json!({"futureSource": {}}),
            _ => json!({"emptyDir": {}}),
        };
        pod["spec"]["volumes"] = json!([volume]);
        pod["spec"]["volumes"][0]["name"] = json!(dice.pick(&VOLUMES));
    }
    if dice.one_in(20) {
        pod["spec"]["hostPID"] = json!(true);
    }
    pod
}

/// Any place in a value.
fn somewhere<'a>(dice: &mut Dice, mut value: &'a mut Value) -> &'a mut Value {
    loop {
        let inside = value.as_object().map_or(0, Map::len) + value.as_array().map_or(0, Vec::len);
        if inside == 0 || dice.one_in(6) {
            return value;
        }
        let at = dice.below(inside);
        value = match value {
            Value::Object(map) => map.values_mut().nth(at).expect("it is there"),
            Value::Array(list) => &mut list[at],
            _ => unreachable!("nothing else has anything inside"),
        };
    }
}

fn odd(dice: &mut Dice) -> Value {
    match dice.below(9) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(1e300),
        4 => json!([]),
        5 => json!({}),
        6 => json!(dice.pick(&VALUES)),
        7 => json!([{"name": "main"}]),
        _ => json!("x".repeat(dice.below(300))),
    }
}

fn damage(dice: &mut Dice, value: &mut Value) {
    let odd = odd(dice);
    let place = somewhere(dice, value);
    match place {
        Value::Object(map) if dice.one_in(2) => {
            let key = map.keys().nth(dice.below(map.len().max(1))).cloned();
            if let Some(key) = key {
                map.remove(&key);
            }
        }
        Value::Array(list) if dice.one_in(2) && !list.is_empty() => {
            let copy = list[dice.below(list.len())].clone();
            list.push(copy);
        }
        place => *place = odd,
    }
}

/// A review, and the pod that it is about where it has none itself.
fn question(dice: &mut Dice, config: &Config) -> (Value, Option<Value>) {
    let object = pod(dice);
    let mut lent = None;
    let mut question = match dice.below(5) {
        0 | 1 => review("CREATE", None, &object, &Value::Null),
        kind => {
            // An update is of a pod as it may be: one that was let in.
            let created = review("CREATE", None, &object, &Value::Null);
            let namespaces = BTreeMap::new();
            let answer =
                answer_in(&Context { config, namespaces: &namespaces, pod: None }, created.to_string().as_bytes());
            let old = taken(&answer, &created).pod;
            let mut new = old.clone();
            if kind == 2 {
                let (key, value) = (*dice.pick(&ANNOTATIONS), json!(dice.pick(&VALUES)));
                if new["metadata"]["annotations"].is_object() {
                    new["metadata"]["annotations"][key] = value;
                }
                review("UPDATE", None, &new, &old)
            } else {
                let mut debug = container(dice, "debug");
                debug.as_object_mut().expect("an object").remove("resources");
                if dice.one_in(2) {
                    debug["targetContainerName"] = json!(dice.pick(&NAMES));
                }
                if kind == 3 {
                    new["spec"]["ephemeralContainers"] = json!([debug]);
                    review("UPDATE", Some("ephemeralcontainers"), &new, &old)
                } else {
                    lent = (!dice.one_in(4)).then_some(old);
                    listed(&json!([debug]))
                }
            }
        }
    };
    for _ in 0..[0, 0, 0, 1, 2, 8][dice.below(6)] {
        // Mostly the pod: what is wrong with the rest is soon said.
        match question.pointer_mut("/request/object") {
            Some(object) if !dice.one_in(8) => damage(dice, object),
            _ => damage(dice, &mut question),
        }
    }
    (question, lent)
}

fn bytes(dice: &mut Dice, question: &Value) -> Vec<u8> {
    let mut bytes = question.to_string().into_bytes();
    if dice.one_in(12) {
        for _ in 0..=dice.below(4) {
            let at = dice.below(bytes.len());
            match dice.below(3) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, (dice.next() >> 40) as u8),
                _ => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = (dice.next() >> 40) as u8;
                    }
                }
            }
        }
    }
    bytes
}

/// What must hold of every pod that was let in with something in it, seen with other eyes than the injector's.
fn check_injected(before: &Value, after: &Value) {
    let volumes = after["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    let shares = volumes.iter().any(|volume| volume["name"] == "ration-region" && volume.get("hostPath").is_some());
    let lists = ["containers", "initContainers"];
    let all = |pod: &Value| -> Vec<Value> {
        lists.iter().flat_map(|list| pod["spec"][list].as_array().cloned().unwrap_or_default()).collect()
    };
    for one in all(after) {
        let limits = &one["resources"]["limits"];
        let has_gpu = limits.get("nvidia.com/gpu").is_some_and(|amount| amount != "0");
        let mounts = one["volumeMounts"].as_array().cloned().unwrap_or_default();
        let at = |path: &str| mounts.iter().filter(|mount| mount["mountPath"] == path).collect::<Vec<_>>();
        if has_gpu {
            for path in ["/usr/local/ration", "/etc/ration"] {
                let [mount] = at(path)[..] else { panic!("not one mount at {path} in {one}") };
                assert_eq!(mount["readOnly"], true, "{one}");
            }
            let [region] = at("/run/ration")[..] else { panic!("not one mount at /run/ration in {one}") };
            let own = at("/run/ration-own").iter().filter(|mount| mount["name"] == "ration-region").count();
            assert_eq!((region["readOnly"] == true, own), (shares, usize::from(shares)), "{one}");
            assert!(!shares || at("/run/ration-own").len() == 1, "{one}");
            let by_env = one["env"].as_array().into_iter().flatten().rfind(|one| one["name"] == "LD_PRELOAD");
            let by_env = by_env
                .and_then(|one| one["value"].as_str())
                .is_some_and(|value| value.starts_with("/usr/local/ration/"));
            assert!(by_env || at("/etc/ld.so.preload").len() == 1, "nothing is preloaded in {one}");
        }
        // All pods' directories are written to by nobody, and this pod's is surely its own.
        for mount in mounts.iter().filter(|mount| shares && mount["name"] == "ration-region") {
            let env = one["env"].as_array().into_iter().flatten();
            let names: Vec<&Value> = env.filter(|one| one["name"] == "RATION_POD_UID").collect();
            let is_own = mount["subPathExpr"] == "$(RATION_POD_UID)"
                && mount.get("subPath").is_none()
                && names.len() == 1
                && names[0].get("value").is_none()
                && names[0]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid";
            assert!(mount["readOnly"] == true || is_own, "{one}");
        }
    }
    for one in all(before) {
        let same = all(after).into_iter().find(|other| other["name"] == one["name"]);
        assert!(same.is_some(), "container {} is gone", one["name"]);
        let future = |value: &Value| value.get("futureField").cloned();
        if one["name"] != "ration-library" {
            assert_eq!(same.as_ref().and_then(future), future(&one), "an unknown field is lost");
        }
    }
    for (key, value) in after["metadata"]["annotations"].as_object().into_iter().flatten() {
        if key.starts_with("ration.dev/quota.") {
            as_library(value.as_str().expect("a text"), &|_| None);
        }
    }
}

#[test]
fn always_an_answer() {
    let number =
        |name: &str, otherwise: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (count, first) = (number("RATION_FUZZ_REVIEWS", 25_000), number("RATION_FUZZ_SEED", 1));
    let configs: Vec<Config> = CONFIGS.iter().map(|text| config(text)).collect();
    let labels: Labels = [("ration.dev/inject", "enabled"), ("pod-security.kubernetes.io/enforce", "baseline")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let (known, unknown) = (BTreeMap::from([(NAMESPACE.to_owned(), labels)]), BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(1, |many| many.get().min(4)) as u64;
    let run = |thread: u64| {
        let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
        for seed in (first..first + count).skip(thread as usize).step_by(threads as usize) {
            let told = Told(seed);
            let outcome = ask(seed, &configs, &known, &unknown);
            *outcomes.entry(format!("{outcome:?}")).or_default() += 1;
            drop(told);
        }
        outcomes
    };
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    std::thread::scope(|scope| {
        let run = &run;
        let runs: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        for one in runs {
            for (outcome, seen) in one.join().expect("no review ends it") {
                *outcomes.entry(outcome).or_default() += seen;
            }
        }
    });
    println!("{count} reviews: {outcomes:?}");
    if count >= 25_000 {
        let enough = |outcome: &str, least: u64| {
            assert!(outcomes.get(outcome).is_some_and(|seen| *seen >= least), "{outcome}: {outcomes:?}");
        };
        enough("Injected", count / 20);
        enough("Untouched", count / 50);
        enough("Unreadable", count / 50);
        for reason in [
            "annotation",
            "label",
            "foreign-request",
            "over-maximum",
            "without-quota",
            "privileged",
            "conflict",
            "preload-hidden",
            "pod-security",
            "opt-out",
            "ephemeral-target",
            "unreadable-pod",
        ] {
            enough(&format!("Denied({reason:?})"), count / 20_000);
        }
    }
}

/// The review of a seed, asked and answered.
fn ask(seed: u64, configs: &[Config], known: &BTreeMap<String, Labels>, unknown: &BTreeMap<String, Labels>) -> Outcome {
    let mut dice = Dice::new(seed);
    let config = &configs[dice.below(configs.len())];
    let namespaces = if dice.one_in(10) { known } else { unknown };
    let (question, lent) = question(&mut dice, config);
    let context = Context { config, namespaces, pod: lent.as_ref() };
    let body = bytes(&mut dice, &question);
    missing_pod(&body);
    let answer = answer_in(&context, &body);
    if answer.outcome == Outcome::Unreadable {
        assert_eq!(answer.status, 400);
        assert!(!answer.body.is_empty() && !answer.summary.is_empty());
        return answer.outcome;
    }
    let question: Value = serde_json::from_slice(&body).expect("it was read");
    let reply = taken(&answer, &question);
    let request = &question["request"];
    if reply.outcome == Outcome::Injected && request["operation"] == "CREATE" {
        check_injected(&request["object"], &reply.pod);
        let mut again = question.clone();
        again["request"]["object"] = reply.pod.clone();
        let second = taken(&answer_in(&context, again.to_string().as_bytes()), &again);
        assert!(second.allowed, "the second round refuses: {}", second.message);
        assert_eq!(second.pod, reply.pod, "the second round changes something");
    }
    answer.outcome
}

/// Says which review it was, if the test ends while it is there.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("that was RATION_FUZZ_SEED={} RATION_FUZZ_REVIEWS=1", self.0);
        }
    }
}
