//! smoke
use ration_region::*;
#[test]
fn smoke() {
    let gpu = Gpu { uuid: *b"0123456789abcdef", total: 1 << 30 };
    let dir = std::env::temp_dir().join(format!("ration-smoke-{}", std::process::id()));
    for region in [Region::open(&dir, &gpu).unwrap(), Region::private(&gpu)] {
        let a = region.join("x", Some(100)).unwrap();
        let b = region.join("x", Some(7)).unwrap();
        assert_eq!(a.cap(), Some(100));
        a.reserve(60).unwrap();
        assert_eq!(b.reserve(41), Err(Full { cap: 100, used: 60 }));
        b.reserve(40).unwrap();
        assert_eq!(a.used(), 100);
        // SAFETY: test
        let child = unsafe { libc::fork() };
        if child == 0 {
            assert!(!a.is_mine());
            forget_in_child();
            let c = region.join("x", None).unwrap();
            c.charge(5);
            // SAFETY: test
            unsafe { libc::_exit(if a.is_mine() || c.used() != 105 { 1 } else { 0 }) };
        }
        let mut status = 0;
        // SAFETY: test
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0);
        println!("{region:?} {:?}", a.container().unwrap().members().collect::<Vec<_>>());
        assert_eq!(a.used(), 105);
        assert_eq!(a.reap(&mut |dead| dead.pid == child as u32), 5);
        assert_eq!(a.used(), 100);
        drop(b);
        assert_eq!(a.used(), 60);
    }
    for entry in std::fs::read_dir(&dir).unwrap() {
        println!("{entry:?}");
    }
    println!(
        "{}",
        std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|l| l.contains("region")).count()
    );
    std::fs::remove_dir_all(dir).unwrap();
}
