//! Containers that others, of another user or in another container, want to harm: by what lies in the directory in which all of them meet.
//! Whatever they do, nobody but themselves loses anything but the order of turns. The judges are the simulated GPU's own record, and what
//! the system answers.

use std::ffi::{CStr, CString};
use std::fs::{self, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ration_policy::Priority;
use ration_region::{Facts, Gpu, Heard, Home, Region, forget_in_child};

#[path = "caps/container.rs"]
mod container;
#[path = "channels/steered.rs"]
mod steered;
mod support;

use container::Session;
use steered::{Steered, milliseconds};
use support::tries::until_good;
use support::{compile, report};

/// An ordinary user, who is nobody's neighbour.
const STRANGER: libc::uid_t = 65534;

/// Two containers that fill the GPU, with three quarters and a quarter of it.
struct Pair {
    steered: Steered,
    sessions: [Session; 2],
    gpu: Gpu,
}

fn open_to_all(steered: &Steered) {
    fs::set_permissions(&steered.regions.0, Permissions::from_mode(0o1777)).expect("it is ours");
}

const NAMES: [&str; 2] = ["tests/one", "tests/two"];

impl Pair {
    fn begin() -> Pair {
        let steered = Steered::new(compile("compute_work"));
        open_to_all(&steered);
        Pair::on(steered)
    }

    fn on(steered: Steered) -> Pair {
        let begin = |which: usize| {
            let request = ["75%", "25%"][which];
            steered.start(NAMES[which], &[("RATION_COMPUTE_REQUEST", request)], &["queue", "500", "120"])
        };
        let sessions = [begin(0), begin(1)];
        let gpu = steered.world.settings().gpu[0];
        Pair { sessions, gpu: Gpu { uuid: gpu.uuid, total: gpu.memory }, steered }
    }

    /// What each has of the GPU.
    fn shares(&self, window: u64) -> [f64; 2] {
        let shares = self.steered.shares(&[&self.sessions[0], &self.sessions[1]], window);
        [shares[0], shares[1]]
    }

    fn dir(&self) -> &Path {
        &self.steered.regions.0
    }

    fn have_their_shares(&self, what: &str, text: &mut String) {
        let are_right = |[one, two]: [f64; 2]| (70.0..=80.0).contains(&one) && (20.0..=30.0).contains(&two);
        let (mut got, mut tries) = ([0.0; 2], 0);
        // What is to come about after something that others did has some seconds for it.
        while tries < 5 && !are_right(got) {
            got = self.shares(1_000);
            tries += 1;
        }
        let said = format!("{what}: {:.1}, {:.1} of 75, 25 after {tries} s\n", got[0], got[1]);
        text.push_str(&said);
        assert!(are_right(got), "{said}");
    }
}

/// Does something as another user, in a process of its own, until it is told to end. `false`: this user can be nobody else.
struct Stranger(libc::pid_t);

impl Stranger {
    fn does(deed: impl FnOnce()) -> Option<Stranger> {
        // SAFETY: takes nothing.
        if unsafe { libc::geteuid() } != 0 {
            println!("not tried: this user cannot become another");
            return None;
        }
        // SAFETY: the child does nothing that glibc does not allow in a child of a process with threads.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "no process");
        if child == 0 {
            forget_in_child();
            // SAFETY: plain numbers; the child ends with its parent, and there and then.
            unsafe {
                libc::setgroups(0, std::ptr::null());
                libc::setgid(STRANGER);
                libc::setuid(STRANGER);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(deed)).is_ok();
                libc::_exit(i32::from(!well));
            }
        }
        Some(Stranger(child))
    }

    /// Waits for its end; whether it ended well.
    fn ended_well(self) -> bool {
        let mut status = 0;
        // SAFETY: a child of this process that nobody has waited for.
        let ended = unsafe { libc::waitpid(self.0, &raw mut status, 0) } == self.0 && status == 0;
        std::mem::forget(self);
        ended
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // SAFETY: a child of this process that nobody has waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// What lies in a directory, two levels deep.
fn all_in(dir: &Path) -> Vec<PathBuf> {
    let inside = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let first: Vec<PathBuf> = inside(dir).collect();
    let second: Vec<PathBuf> = first.iter().flat_map(|dir| inside(dir)).collect();
    first.into_iter().chain(second).collect()
}

fn fifo(path: &Path) {
    let text = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: a path that ends in NUL.
    assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o666) }, 0);
}

#[test]
fn what_is_a_containers_own_another_user_cannot_change() {
    let pair = Pair::begin();
    let dir = pair.dir().to_owned();
    milliseconds(500);
    let Some(stranger) = Stranger::does(|| {
        let all = all_in(&dir);
        assert_eq!(all.len(), 2 + 4, "a directory and two files for each container: {all:?}");
        for path in &all {
            let kind = path.metadata().expect("it can be seen");
            let elsewhere = dir.join("elsewhere");
            let mut tried = vec![
                ("rename", fs::rename(path, &elsewhere)),
                ("chmod", fs::set_permissions(path, Permissions::from_mode(0o777))),
            ];
            if kind.is_dir() {
                tried.push(("remove", fs::remove_dir_all(path)));
                tried.push(("make", fs::write(path.join("new"), "mine")));
                tried.push(("link", symlink("/etc/passwd", path.join("gpu.public"))));
            } else {
                tried.push(("remove", fs::remove_file(path)));
                tried.push(("write", OpenOptions::new().write(true).open(path).map(drop)));
                tried.push(("cut", OpenOptions::new().write(true).truncate(true).open(path).map(drop)));
            }
            for (what, outcome) in tried {
                let error = outcome.map(|()| panic!("{what} {}", path.display())).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{what} {}: {error}", path.display());
            }
            let is_public = path.extension().is_some_and(|it| it == "public");
            let may_be_read = kind.is_dir() || fs::File::open(path).is_ok();
            assert_eq!(may_be_read, kind.is_dir() || is_public, "{}", path.display());
        }
    }) else {
        return;
    };
    assert!(stranger.ended_well(), "another user could do what it should not");
    pair.have_their_shares("after all was tried", &mut String::new());
}

#[test]
fn who_takes_a_containers_name_first_keeps_it_from_nothing() {
    let steered = Steered::new(compile("compute_work"));
    open_to_all(&steered);
    let dir = steered.regions.0.clone();
    // SAFETY: takes nothing.
    let user = unsafe { libc::geteuid() };
    let name = format!("{user}-tests%2fone");
    let taken = name.clone();
    let Some(stranger) = Stranger::does(|| {
        fs::create_dir(dir.join(&taken)).expect("anybody may");
        fs::write(dir.join(format!("{taken}~1")), "a file").expect("anybody may");
        symlink("/etc", dir.join(format!("{taken}~2"))).expect("anybody may");
        fifo(&dir.join(format!("{taken}~3")));
        symlink("nowhere", dir.join(format!("{taken}~4"))).expect("anybody may");
    }) else {
        return;
    };
    assert!(stranger.ended_well());
    let pair = Pair::on(steered);
    let sibling = pair.steered.start(NAMES[0], &[("RATION_COMPUTE_REQUEST", "75%")], &["queue", "500", "60"]);
    milliseconds(300);
    let region = Region::open(&pair.dir().join(format!("{name}~5")), &pair.gpu).expect("the next name is free");
    let members: usize = region.containers().map(|it| it.members().filter(|member| member.alive).count()).sum();
    assert_eq!(members, 2, "both processes of the container are in one place");
    drop(sibling);
    pair.have_their_shares("in a directory of another name", &mut String::new());
}

/// Files of a neighbour that is none: nothing that reads them ends, hangs or is misled.
#[test]
fn what_lies_beside_a_container_harms_nobody() {
    let pair = Pair::begin();
    let dir = pair.dir().to_owned();
    let file = all_in(&dir).into_iter().find(|path| path.extension().is_some_and(|it| it == "public"));
    let (file, mut text) = (file.expect("it tells others"), String::new());
    let name = file.file_name().expect("it has one").to_owned();
    let good = fs::read(&file).expect("everybody may");
    pair.have_their_shares("before", &mut text);
    let Some(stranger) = Stranger::does(|| {
        // SAFETY: a plain number.
        unsafe { libc::umask(0) };
        let at = |which: &str| {
            let inner = dir.join(which);
            fs::create_dir(&inner).expect("anybody may");
            inner.join(&name)
        };
        fs::write(at("empty"), "").expect("room");
        fs::write(at("noise"), vec![0xa5; 40_000]).expect("room");
        fs::write(at("half"), &good[..good.len() / 2]).expect("room");
        let mut other = good.clone();
        other[8] = 9;
        fs::write(at("version"), &other).expect("room");
        fifo(&at("fifo"));
        symlink("/dev/zero", at("zeros")).expect("room");
        symlink(&file, at("link")).expect("room");
        symlink(dir.join("fifo"), dir.join("directory")).expect("room");
        fs::create_dir(at("deep")).expect("room");
        for number in 0..3000 {
            let _ = fs::create_dir(dir.join(format!("many-{number}")));
        }
        // And one that is as it should be, with whatever in it, and cut short and made longer all the time.
        let cut = at("cut");
        fs::write(&cut, &good).expect("room");
        let file = OpenOptions::new().write(true).open(&cut).expect("its own");
        for number in 0u64.. {
            let mut noise: Vec<u8> = (0..good.len() as u64).map(|at| ((at * 31 + number * 7919) >> 3) as u8).collect();
            noise[..64].copy_from_slice(&good[..64]);
            let _ = file.set_len(number % 3 * 18_000);
            let _ = std::os::unix::fs::FileExt::write_all_at(&file, &noise, 0);
            std::thread::sleep(Duration::from_micros(number % 1500));
        }
    }) else {
        return;
    };
    milliseconds(1_000);
    // What the noise says of leases may be anything: a tenth for lies, and some for looking through it. A host under load has another try.
    let mut got = [0.0; 2];
    for _ in 0..3 {
        got = pair.shares(8_000);
        text += &format!("beside noise: {:.1}, {:.1}\n", got[0], got[1]);
        if got[0] + got[1] > 85.0 {
            break;
        }
    }
    assert!(got[0].min(got[1]) > 15.0 && got[0] + got[1] > 85.0, "{text}");
    drop(stranger);
    for entry in fs::read_dir(pair.dir()).expect("it is there").flatten() {
        if entry.metadata().is_ok_and(|about| about.uid() == STRANGER) {
            let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
        }
    }
    milliseconds(13_000);
    pair.have_their_shares("afterwards", &mut text);
    report("neighbours-noise", &text);
}

/// One says over and over that it fills the GPU, and that every lease is its own, with a number that there is none after.
#[test]
fn who_lies_about_leases_takes_a_tenth_at_most() {
    let pair = Pair::begin();
    let (dir, gpu) = (pair.dir().to_owned(), pair.gpu);
    let Some(_stranger) = Stranger::does(|| {
        let region = Region::open_at(&Home::among(&dir, "liar"), &gpu).expect("anybody may");
        let member = region.join("liar", None).expect("there is room");
        let (compute, heard) = (member.compute(), Heard::new());
        compute.begin_with_request(Some(ration_policy::Share::WHOLE), Priority::Normal);
        let says =
            Facts { wants: true, fills: true, is_on: true, pending: true, demand: 1_000_000, ..Facts::default() };
        loop {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: a place to write the time to.
            unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
            let now = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
            compute.says(&heard, &says, now);
            compute.pass_lease(compute.index(), (1 << 33) + 7);
            milliseconds(1);
        }
    }) else {
        return;
    };
    let [one, two] = pair.shares(14_000);
    let text = format!("beside a liar: {one:.1}, {two:.1}; by plain time slicing 50, 50\n");
    report("neighbours-liar", &text);
    assert!(one.min(two) > 35.0 && one + two > 80.0, "{text}");
}

/// A container's own file for everybody is removed, cut short, written over or replaced, by itself. It tells others again soon, and
/// meanwhile nobody stands still.
#[test]
fn who_loses_its_page_is_heard_again() {
    let pair = Pair::begin();
    let mut text = String::new();
    let files = all_in(pair.dir()).into_iter().filter(|path| path.extension().is_some_and(|it| it == "public"));
    let is_of_one = |path: &PathBuf| path.parent().is_some_and(|dir| dir.to_string_lossy().ends_with("one"));
    let page = files.into_iter().find(is_of_one).expect("it has a page");
    for (what, deed) in [
        ("removed", (|path: &Path| fs::remove_file(path)) as fn(&Path) -> std::io::Result<()>),
        ("cut short", |path| OpenOptions::new().write(true).open(path)?.set_len(100)),
        ("emptied", |path| OpenOptions::new().write(true).open(path)?.set_len(0)),
        ("written over", |path| fs::write(path, vec![0xff; 36_864])),
        ("replaced", |path| {
            fs::remove_file(path)?;
            symlink("/dev/zero", path)
        }),
    ] {
        deed(&page).expect("its own");
        milliseconds(1_200);
        pair.have_their_shares(what, &mut text);
    }
    report("neighbours-page", &text);
}

/// Pods on a node: each has a directory of its own mounted writable, and that of all of them read-only.
struct Pods {
    steered: Steered,
    /// Where the pods' own directories are mounted.
    own: container::Regions,
}

impl Pods {
    fn new(program: &str) -> Pods {
        let steered = Steered::new(compile(program));
        open_to_all(&steered);
        Pods { steered, own: container::Regions::new() }
    }

    /// A command in a pod, as a user. `None`: this machine lets nobody mount anything.
    fn command(&self, pod: &str, user: libc::uid_t, mut command: Command) -> Option<Command> {
        let (common, made, own) = (&self.steered.regions.0, self.steered.regions.0.join(pod), self.own.0.join(pod));
        for dir in [&made, &own] {
            fs::create_dir_all(dir).expect("it is ours");
            // As the kubelet makes it.
            fs::set_permissions(dir, Permissions::from_mode(0o1777)).expect("it is ours");
        }
        command.env("RATION_OWN_DIR", &own);
        let text = |path: &Path| CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        let (common, made, own) = (text(common), text(&made), text(&own));
        let enter = move || {
            let mount = |from: &CStr, to: &CStr, flags: libc::c_ulong| {
                // SAFETY: paths that end in NUL, or nothing.
                unsafe { libc::mount(from.as_ptr(), to.as_ptr(), std::ptr::null(), flags, std::ptr::null()) == 0 }
            };
            // SAFETY: in a child that was forked just now and has one thread, which allocates nothing; plain numbers.
            let done = unsafe {
                libc::unshare(libc::CLONE_NEWNS) == 0
                    && mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE)
                    && mount(&made, &own, libc::MS_BIND)
                    && mount(&common, &common, libc::MS_BIND)
                    && mount(c"none", &common, libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY)
                    && libc::setgid(user) == 0
                    && libc::setuid(user) == 0
            };
            if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        let mut trial = Command::new("true");
        // SAFETY: see above.
        unsafe {
            trial.pre_exec(enter.clone());
            command.pre_exec(enter);
        }
        let can = trial.status().is_ok_and(|status| status.success());
        if !can {
            println!("not tried: this machine lets nobody mount anything");
        }
        can.then_some(command)
    }
}

#[test]
fn pods_share_a_gpu_and_cannot_write_to_each_others_files() {
    let pods = Pods::new("compute_work");
    let start = |which: usize| {
        let settings = [("RATION_COMPUTE_REQUEST", ["75%", "25%"][which])];
        let command = pods.steered.command(NAMES[which], &settings, &["queue", "500", "60"]);
        pods.command(["pod-a", "pod-b"][which], 0, command).map(|mut command| steered::ready(&mut command))
    };
    let (Some(one), Some(two)) = (start(0), start(1)) else { return };
    // On a machine that has no time for them, for longer than one look.
    let are_fair = |shares: &Vec<f64>| (70.0..=80.0).contains(&shares[0]) && (20.0..=30.0).contains(&shares[1]);
    let share =
        || until_good(|| pods.steered.shares(&[&one, &two], 2_000), are_fair).is_none_or(|shares| are_fair(&shares));
    milliseconds(1_000);
    assert!(share(), "before");

    let common = pods.steered.regions.0.display().to_string();
    let attack = format!(
        "cd {common} || exit 1; ls -d pod-b/gpu-*.public pod-b/gpu-*.region\n\
         for file in pod-b/gpu-*; do : 2>/dev/null >>$file && echo WROTE; rm -f $file 2>/dev/null && echo REMOVED; done\n\
         mkdir pod-c 2>/dev/null && echo MADE; mv pod-b pod-d 2>/dev/null && echo MOVED; rmdir pod-b 2>/dev/null && echo GONE\n\
         mount -o remount,bind,rw {common} 2>/dev/null && echo AS-ROOT-OF-THE-NODE"
    );
    let mut shell = Command::new("setpriv");
    // A container's root has no right to mount.
    shell.args(["--bounding-set=-sys_admin", "--inh-caps=-all", "sh", "-c", &attack]);
    let said = pods.command("pod-a", 0, shell).expect("as before").output().expect("a shell");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_eq!(said.lines().count(), 2, "it sees the other's two files and can do nothing with them: {said}");
    assert!(share(), "afterwards");
}

#[test]
fn users_of_one_pod_have_one_limit() {
    let pods = Pods::new("compute_work");
    let lost = container::program("lost");
    let start = |user: libc::uid_t| {
        let settings = [("RATION_MEMORY", "2GiB".to_owned())];
        let mut command = container::inside(&pods.steered.machine, &pods.steered.regions, NAMES[0], &settings, &lost);
        command.arg("default");
        let mut session = Session::start(&mut pods.command("pod-a", user, command)?, steered::PATIENCE);
        session.until("ready").expect("it starts");
        session.tell("start");
        session.line().expect("an answer");
        Some(session)
    };
    let fill = |session: &mut Session, bytes: u64| {
        session.tell(&format!("fill {} {bytes}", 64 << 20));
        let line = session.line().expect("an answer").unwrap_or_default();
        line.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok()).unwrap_or_else(|| panic!("{line}"))
    };
    let (Some(mut root), Some(mut nobody)) = (start(0), start(STRANGER)) else { return };
    let (first, second) = (fill(&mut root, 512 << 20), fill(&mut nobody, 4 << 30));
    let held: u64 = {
        let record = pods.steered.world.record();
        let alive = record.processes.iter().filter(|it| it.alive && !it.observer);
        alive.flat_map(|it| it.gpus.values()).map(|gpu| gpu.figure_bytes).sum()
    };
    assert!(first == 512 << 20 && second > 0 && held <= 2 << 30, "{first} and {second}; they hold {} MiB", held >> 20);
    assert!(held > (2 << 30) - (160 << 20), "nearly all of it can be had: {} MiB", held >> 20);
}

/// Where others use the region of an older library, in the directory of all, limits hold, and that is said once.
#[test]
fn who_is_beside_another_version_says_so_once() {
    let steered = Steered::new(compile("compute_work"));
    let uuid = steered.world.settings().gpu[0].uuid;
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| digits[part].to_owned()).join("-");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a number").replace('-', "");
    let boot = u128::from_str_radix(boot.trim(), 16).expect("a number");
    let mut old = vec![0u8; 331_776];
    old[..8].copy_from_slice(b"rationRG");
    old[8..12].copy_from_slice(&[1, 0, 1, 0]);
    old[64..72].copy_from_slice(&((boot >> 64) as u64).to_le_bytes());
    old[72..80].copy_from_slice(&(boot as u64).to_le_bytes());
    let file = steered.regions.0.join(format!("gpu-{name}.region"));
    for (is_in_use, expected) in [(false, 0), (true, 1)] {
        old[69_632 + 5 * 256] = u8::from(is_in_use);
        fs::write(&file, &old).expect("room");
        let mut limited = steered.start(NAMES[0], &[("RATION_COMPUTE_LIMIT", "50%")], &["queue", "500", "3"]);
        milliseconds(1_000);
        let share = steered.shares(&[&limited], 1_000)[0];
        assert!((48.0..=52.0).contains(&share), "{share}");
        while let Ok(Some(_)) = limited.line() {}
        let said = limited.said();
        assert_eq!(said.matches("another major version").count(), expected, "in use: {is_in_use}; {said}");
    }
    assert!(fs::read(&file).is_ok_and(|now| now == old), "the other's file was changed");
}
