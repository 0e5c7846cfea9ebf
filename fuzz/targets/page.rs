//! What a neighbour tells, of any bytes and any length: who hears it decides something, and goes on.

#![no_main]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use ration_policy::Share;
use ration_policy::steer::{Batch, Due, Peer, Slice, lease};
use ration_region::{Facts, Gpu, Heard, Home, Member, Region};

const GPU: Gpu = Gpu { uuid: *b"a hostile region", total: 80 << 30 };
const NAME: &str = "gpu-6120686f-7374-696c-6520-726567696f6e.public";
const SIZE: u64 = 36_864;
/// Of a header: what says which GPU and which version it is stays.
const KEPT: u64 = 64;
const MS: u64 = 1_000_000;
const LONGEST: Duration = Duration::from_secs(10);

struct Stage {
    member: Member,
    other: File,
    whole: Vec<u8>,
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        let among = PathBuf::from(format!("/dev/shm/ration-fuzz-{}", std::process::id()));
        let open = |name: &str| Region::open_at(&Home::among(&among, name), &GPU).expect("a region");
        let member = open("own").join("own", None).expect("room");
        let other = open("other").join("other", None).expect("room");
        other.compute().says(&Heard::new(), &Facts::default(), 1);
        drop(other);
        let dir = Home::among(&among, "other").find().expect("it was made just now");
        let other = OpenOptions::new().read(true).write(true).open(dir.join(NAME)).expect("its page");
        let mut whole = vec![0; SIZE as usize];
        other.read_exact_at(&mut whole, 0).expect("all of it");
        Stage { member, other, whole }
    })
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(format!("/dev/shm/ration-fuzz-{}", std::process::id()));
    }
}

fuzz_target!(|bytes: &[u8]| {
    let stage = stage();
    let Some((&how, rest)) = bytes.split_first() else { return };
    stage.other.set_len(SIZE).expect("it is there");
    stage.other.write_all_at(&stage.whole, 0).expect("it is there");
    // The first words are who is there, then leases; then a page for each. `how`: which of the first pages is filled, and whether it is cut.
    let (head, page) = rest.split_at(rest.len().min(16));
    stage.other.write_all_at(head, 128).expect("it is there");
    stage.other.write_all_at(&page[..page.len().min(8)], 640).expect("it is there");
    stage.other.write_all_at(page, 4096 + 512 * u64::from(how & 1)).expect("it is there");
    let begun = Instant::now();
    let (compute, heard) = (stage.member.compute(), Heard::new());
    let says = Facts { wants: true, fills: how & 2 != 0, is_on: true, usage: 100_000, ..Facts::default() };
    for look in 0..3u64 {
        let now = 1_000 * MS + look * 60 * MS;
        compute.says(&heard, &says, now);
        if look == 1 {
            // What is said anew counts, whatever clock it is by.
            let again = [head, &[1]].concat();
            stage.other.write_all_at(&again[..again.len().min(16)], 128 + u64::from(how >> 6)).expect("it is there");
        }
        if look == 2 && how & 4 != 0 {
            stage.other.set_len(KEPT + u64::from(how) * 300).expect("it can be cut");
        }
        let among = compute.neighbourhood(&heard, now);
        let peers: Vec<Peer> = among.iter().map(|it| it.peer).collect();
        let own = among.iter().position(|it| it.index == among.own).expect("it has spoken");
        let newest = compute.lease(&among, now);
        let length = lease(compute.weight(), among.weights());
        assert!(length <= 30 * MS);
        let (mut slice, mut batch, mut due) = (Slice::NEW, Batch::NEW, Due::NEW);
        let _ = (slice.next(own, &peers, now), batch.next(own, &peers, now));
        assert!(due.next(own, &peers, now) <= Share::WHOLE);
        compute.takes_turns(&among, true);
        compute.wait_for_lease(&newest, now, now);
        if newest.holder.is_none() && among.next(usize::MAX) == Some(among.own) {
            compute.pass_lease(among.own, newest.number);
        }
    }
    assert!(begun.elapsed() < LONGEST, "it took {:?}", begun.elapsed());
});
