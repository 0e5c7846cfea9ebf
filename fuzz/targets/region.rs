//! A region in which somebody writes, and a process that goes on using it: it never crashes, nothing takes long, and what it has been
//! told afterwards is no more than its cap, where it knows that.
//!
//! The input is a script: three bytes that say what to do, and what with.

#![no_main]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use ration_policy::{Bucket, Share};
use ration_region::{Facts, Gpu, Heard, Member, Region};

const GPU: Gpu = Gpu { uuid: *b"a hostile region", total: 80 << 30 };
const CAP: u64 = 1 << 30;
/// The lock: who waits for it waits a second, and nothing else would be tried.
const LOCK: u64 = 128;
/// Nothing takes longer, on a machine that does other things, too.
const LONGEST: Duration = Duration::from_secs(10);

struct Stage {
    region: Region,
    file: File,
    whole: Vec<u8>,
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        let dir = PathBuf::from(format!("/dev/shm/ration-fuzz-{}", std::process::id()));
        let region = Region::open(&dir, &GPU).expect("a region");
        let name = "gpu-6120686f-7374-696c-6520-726567696f6e.region";
        let file = OpenOptions::new().read(true).write(true).open(dir.join(name)).expect("its file");
        let mut whole = vec![0; 69_632 + 8 * 256];
        file.read_exact_at(&mut whole, 0).expect("all of it");
        // It is mapped, and that is enough.
        std::fs::remove_dir_all(&dir).expect("it was made just now");
        Stage { region, file, whole }
    })
}

fuzz_target!(|script: &[u8]| {
    let stage = stage();
    stage.file.write_all_at(&stage.whole, 0).expect("it is there");
    let begun = Instant::now();
    let mut members: Vec<Member> = Vec::new();
    let heard = Heard::new();
    for step in script.chunks(3).take(60) {
        let [what, one, two] = [step[0], *step.get(1).unwrap_or(&0), *step.get(2).unwrap_or(&0)];
        let bytes = u64::from(one) << (two % 57);
        let member = members.get(usize::from(one) % members.len().max(1));
        match (what % 16, member) {
            (0, _) if members.len() < 4 => {
                members.extend(stage.region.join(["a", "b"][usize::from(one & 1)], Some(CAP)).ok());
            }
            // Words of the first containers and processes, and of the header.
            (1..5, _) => {
                let at = match what % 3 {
                    0 => 8 * u64::from(one),
                    1 => 4096 + 1024 * u64::from(one & 1) + 8 * u64::from(two & 127),
                    _ => 69_632 + 256 * u64::from(one & 3) + 8 * u64::from(two & 31),
                };
                let word = [0, 1, u64::MAX, 1 << 30, u64::from(two), 1 << (two & 63)][usize::from(what / 16) % 6];
                if at != LOCK {
                    stage.file.write_all_at(&word.to_le_bytes(), at).expect("it is there");
                }
            }
            (5, Some(member)) => _ = member.reserve(bytes),
            (6, Some(member)) => member.refund(bytes),
            (7, Some(member)) => member.charge(bytes),
            (8, Some(member)) => _ = member.reap(&mut |_| two & 1 == 0),
            (9, Some(member)) => _ = (member.used(), member.cap(), member.is_lost(), format!("{member:?}")),
            (10, Some(member)) => {
                let facts =
                    Facts { usage: u32::from(two), wants: true, fills: one & 1 == 0, is_on: true, ..Facts::default() };
                member.compute().says(&heard, &facts, 1_000_000 * (1 + u64::from(two)));
            }
            (11, Some(member)) => {
                let (compute, now) = (member.compute(), 1_000_000 * (1 + u64::from(two)));
                let among = compute.neighbourhood(&heard, now);
                let lease = compute.lease(&among, now);
                compute.takes_turns(&among, true);
                compute.pass_lease(among.next(among.own).unwrap_or(usize::from(one)), lease.number);
            }
            (12, Some(member)) => {
                let compute = member.compute();
                compute.charge(Bucket::new(compute.limit()), bytes / 2, bytes, bytes);
                compute.set_limit(Share::from_ppm(u32::from(two) * 4000), bytes);
            }
            (13, Some(member)) => member.is_entitled_to(CAP),
            (14, Some(member)) => member.lend(bytes, u64::from(two)),
            (15, Some(_)) => drop(members.swap_remove(usize::from(one) % members.len())),
            _ => {}
        }
    }
    let containers: usize = stage.region.containers().map(|it| it.members().count()).sum();
    assert!(containers <= 64 * 1024);
    drop(members);
    assert!(begun.elapsed() < LONGEST, "it took {:?}", begun.elapsed());
});
