//! The keeper: a thread of this process that holds its life words, and ends when the process does.
//!
//! There is one for all regions, started when the process first joins. It sleeps but for the moments when the process joins
//! a container, leaves one or buries a dead one. It does these things itself, because only the thread whose number is in a
//! word can be killed between any two steps of it and the kernel still knows ([`crate::robust`]). All signals are blocked
//! in it, but for `SIGBUS` while it is at work ([`crate::rescue`]).
//!
//! A fork leaves the keeper behind. What the process knows of it lies in a page that the kernel empties in the child, so that
//! the child knows even if nobody tells it ([`forget_in_child`]).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use crate::layout::{LONGEST_NAME, Table};
use crate::life::{Owner, UNKEPT};
use crate::memory::own_shadow;
use crate::robust::List;
use crate::sync::SeqCst;
use crate::sys::{Clock, errno, futex_wait, futex_wake, pid, start_thread, with_no_handler, with_truncation_noticed};
use crate::table::{Newcomer, Place, Trouble};

/// What a process knows of itself. Zero in a child that was forked.
pub struct Keeper {
    /// Not 0, and another number in every process that comes of this one by forks.
    epoch: AtomicU32,
    /// 0: the thread is not there yet; 1: it is; less: why it cannot do its work.
    started: AtomicI32,
    /// The thread's number.
    number: AtomicU32,
    /// What is wanted of the thread: [`IDLE`] and so on.
    mail: AtomicU32,
    list: &'static List,
    request: UnsafeCell<Option<Request>>,
    answer: UnsafeCell<Answer>,
}

// SAFETY: `list` is the thread's alone; `request` and `answer` belong to whoever `mail` says.
unsafe impl Sync for Keeper {}

const IDLE: u32 = 0;
/// A thread writes its request.
const TAKEN: u32 = 1;
/// The request is there.
const POSTED: u32 = 2;
/// The keeper is at it.
const WORKING: u32 = 3;
/// The answer is there.
const DONE: u32 = 4;
/// The keeper is at it, and nobody waits for the answer.
const ABANDONED: u32 = 5;

/// What the keeper is asked to do. It holds no reference into the asking thread, which may tire of waiting.
pub struct Request {
    table: *const Table,
    what: What,
}

#[allow(clippy::large_enum_variant, reason = "there is one, and nothing is to be allocated for it")]
enum What {
    Join { name: [u8; LONGEST_NAME], length: usize, cap: Option<u64>, pid: u32, namespace: u64 },
    Leave(Place),
    Bury { process: usize, generation: u64 },
    Outlive { process: usize, generation: u64, bytes: u64 },
    Disown { process: usize, generation: u64 },
}

/// What came of it.
#[derive(Clone, Copy)]
pub enum Answer {
    /// Joined.
    Joined(Place),
    /// Left, or buried one that had held so many bytes.
    Gone(u64),
    /// Neither.
    Failed(Trouble),
}

impl Request {
    /// To join.
    pub fn join(table: &Table, newcomer: &Newcomer<'_>) -> Request {
        let mut name = [0; LONGEST_NAME];
        let length = newcomer.name.len().min(LONGEST_NAME);
        name[..length].copy_from_slice(&newcomer.name[..length]);
        let (cap, pid, namespace) = (newcomer.cap, newcomer.pid, newcomer.namespace);
        Request { table, what: What::Join { name, length, cap, pid, namespace } }
    }

    /// To leave.
    pub fn leave(table: &Table, place: &Place) -> Request {
        Request { table, what: What::Leave(*place) }
    }

    /// To free a dead one's slot.
    pub fn bury(table: &Table, process: usize, generation: u64) -> Request {
        Request { table, what: What::Bury { process, generation } }
    }

    /// To free a slot that says that it is this process's, and is a copy of one.
    pub fn disown(table: &Table, process: usize, generation: u64) -> Request {
        Request { table, what: What::Disown { process, generation } }
    }

    /// To say what outlives a dead one.
    pub fn outlive(table: &Table, (process, generation): (usize, u64), bytes: u64) -> Request {
        Request { table, what: What::Outlive { process, generation, bytes } }
    }

    fn perform(&self, owner: &dyn Owner) -> Answer {
        // SAFETY: who asked keeps the mapping until the answer is there, and for ever if it never comes.
        let table = unsafe { &*self.table };
        let outcome = match &self.what {
            What::Join { name, length, cap, pid, namespace } => {
                let newcomer = Newcomer { name: &name[..*length], cap: *cap, pid: *pid, namespace: *namespace };
                table.join(owner, &newcomer).map(Answer::Joined)
            }
            What::Leave(place) => table.leave(owner, place).map(|()| Answer::Gone(0)),
            What::Bury { process, generation } => table.bury(owner, *process, *generation).map(Answer::Gone),
            What::Disown { process, generation } => {
                table.disown(owner, *process, *generation).map(|()| Answer::Gone(0))
            }
            What::Outlive { process, generation, bytes } => {
                table.outlive(owner, (*process, *generation), *bytes).map(|()| Answer::Gone(0))
            }
        };
        outcome.unwrap_or_else(Answer::Failed)
    }

    /// Does it in this thread, for a process without a keeper.
    pub fn perform_unkept(&self) -> Answer {
        self.perform(&Unkept)
    }
}

/// The process's keeper, if it has one.
static KEEPER: AtomicPtr<Keeper> = AtomicPtr::new(null_mut());
/// The process in which a thread is making it.
static MAKING: AtomicU32 = AtomicU32::new(0);

/// How long a thread waits for the keeper before it goes on without.
const PATIENCE: Duration = Duration::from_secs(5);

/// The right to make the keeper. `None`: a thread has it.
fn make_it_mine() -> Option<impl Drop> {
    struct Mine;
    impl Drop for Mine {
        fn drop(&mut self) {
            MAKING.store(0, Ordering::Release);
        }
    }
    let (maker, me) = (MAKING.load(Ordering::Relaxed), pid());
    // A process that was forked while its parent was making one has nobody in it who would end that.
    let free = maker != me && MAKING.compare_exchange(maker, me, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    // Lazily: one that is made and not given would undo what the thread that has it has done.
    free.then(|| Mine)
}

/// Fresh pages, never to be unmapped.
fn pages(length: usize, flags: c_int) -> Option<*mut c_void> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: fresh memory, at a place of the kernel's choosing.
    let page = unsafe { libc::mmap(null_mut(), length, protection, flags | libc::MAP_ANONYMOUS, -1, 0) };
    (page != libc::MAP_FAILED).then_some(page)
}

impl Keeper {
    /// This process's. `None`: there is no memory for it, or the thread that is making it does not get on.
    pub fn here() -> Option<&'static Keeper> {
        let valid = || {
            // SAFETY: null, or a page that `make` mapped and that is never unmapped.
            let keeper = unsafe { KEEPER.load(Ordering::Acquire).as_ref() }?;
            (keeper.epoch.load(Ordering::Relaxed) != 0).then_some(keeper)
        };
        let mut clock = Clock::start();
        loop {
            if let Some(keeper) = valid() {
                return Some(keeper);
            }
            if let Some(_mine) = make_it_mine() {
                let keeper = valid().or_else(Keeper::make)?;
                KEEPER.store(std::ptr::from_ref(keeper).cast_mut(), Ordering::Release);
                return Some(keeper);
            }
            if clock.nap() > PATIENCE {
                return None;
            }
        }
    }

    /// A fresh one, whose thread does not run yet.
    fn make() -> Option<&'static Keeper> {
        static EPOCHS: AtomicU32 = AtomicU32::new(1);
        const LENGTH: usize = 4096;
        const { assert!(size_of::<Keeper>() <= LENGTH && size_of::<List>() <= LENGTH) };
        // The list is shared for the reason for which shadows are.
        let (page, list) = (pages(LENGTH, libc::MAP_PRIVATE)?, pages(LENGTH, libc::MAP_SHARED)?);
        // SAFETY: the page is ours. Kernels before 4.14 do not know this; then a child depends on `forget_in_child`.
        unsafe { libc::madvise(page, LENGTH, libc::MADV_WIPEONFORK) };
        let (keeper, list) = (page.cast::<Keeper>(), list.cast::<List>());
        // SAFETY: both are large enough, aligned to a page, and nobody else knows of them yet.
        unsafe {
            List::make(list);
            keeper.write(Keeper {
                epoch: AtomicU32::new(EPOCHS.fetch_add(1, Ordering::Relaxed).max(1)),
                started: AtomicI32::new(0),
                number: AtomicU32::new(0),
                mail: AtomicU32::new(IDLE),
                list: &*list,
                request: UnsafeCell::new(None),
                answer: UnsafeCell::new(Answer::Gone(0)),
            });
            Some(&*keeper)
        }
    }

    /// The number of this life of the process; see [`Keeper::is_of`].
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Whether this process is the one that had this epoch, and not a child of it.
    #[inline]
    pub fn is_of(&self, epoch: u32) -> bool {
        self.epoch.load(Ordering::Relaxed) == epoch
    }

    /// What is in the life words that it holds.
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Starts the thread, unless it runs. `Err` holds the error number.
    pub fn start(&'static self) -> Result<(), c_int> {
        with_no_handler(|| self.start_it())
    }

    fn start_it(&'static self) -> Result<(), c_int> {
        let mut clock = Clock::start();
        loop {
            match self.started.load(Ordering::Acquire) {
                1 => return Ok(()),
                0 => {}
                error => return Err(-error),
            }
            if let Some(_mine) = make_it_mine()
                && self.started.load(Ordering::Acquire) == 0
            {
                self.spawn()?;
            }
            if clock.nap() > PATIENCE {
                return Err(libc::ETIMEDOUT);
            }
        }
    }

    fn spawn(&'static self) -> Result<(), c_int> {
        // SAFETY: it is given a page that is never unmapped.
        let error = unsafe { start_thread(run, std::ptr::from_ref(self).cast_mut().cast()) };
        if error != 0 {
            return Err(error);
        }
        let mut clock = Clock::start();
        while self.started.load(Ordering::Acquire) == 0 && clock.nap() < PATIENCE {}
        Ok(())
    }

    /// Has something done by the keeper. `None`: it does not get to it; `Err`: it may still do it, and what it needs for that
    /// must stay.
    pub fn ask(&self, request: Request) -> Result<Option<Answer>, ()> {
        // A handler that jumped out of this would leave the mail as it is, and nobody would be answered any more.
        with_no_handler(|| self.ask_it(request))
    }

    fn ask_it(&self, request: Request) -> Result<Option<Answer>, ()> {
        let mut clock = Clock::start();
        while self.mail.compare_exchange(IDLE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            if clock.nap() > PATIENCE {
                return Ok(None);
            }
        }
        // SAFETY: `mail` says that the request is this thread's to write, and the keeper does not look at it.
        unsafe { *self.request.get() = Some(request) };
        self.mail.store(POSTED, Ordering::Release);
        futex_wake(&self.mail);
        let mut waited = Duration::ZERO;
        loop {
            let state = self.mail.load(Ordering::Acquire);
            if state == DONE {
                // SAFETY: `mail` says that the answer is there, and the keeper does not touch it before the next request.
                let answer = unsafe { *self.answer.get() };
                self.mail.store(IDLE, Ordering::Release);
                return Ok(Some(answer));
            }
            let end = |from, to| self.mail.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if waited > PATIENCE && end(POSTED, IDLE) {
                return Ok(None);
            }
            if waited > 2 * PATIENCE && end(WORKING, ABANDONED) {
                return Err(());
            }
            const WAIT: Duration = Duration::from_millis(100);
            let clock = Clock::start();
            futex_wait(&self.mail, state, Some(WAIT));
            // A process that was stopped meanwhile has not waited longer for that.
            waited += clock.passed().min(WAIT);
        }
    }

    /// Does what is asked for, in the keeper.
    fn perform(&self, request: &Request) -> Answer {
        // SAFETY: who asked keeps the mapping until the answer is there, and for ever if it never comes; this is the keeper.
        if !unsafe { own_shadow(&*request.table, self.epoch()) } {
            return Answer::Failed(Trouble::Busy);
        }
        request.perform(self)
    }
}

/// To be called in a forked child, as from `pthread_atfork`, before anything else here is used in it: what the parent joined is
/// the parent's, and the child may join for itself. Takes no lock and allocates nothing.
pub fn forget_in_child() {
    // SAFETY: null, or a page that is never unmapped. In the child it is a copy, whether or not the kernel has emptied it.
    if let Some(keeper) = unsafe { KEEPER.swap(null_mut(), Ordering::AcqRel).as_ref() } {
        keeper.epoch.store(0, Ordering::Relaxed);
    }
    MAKING.store(0, Ordering::Release);
}

extern "C" fn run(keeper: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn_with` was given a page that is never unmapped.
    let keeper = unsafe { &*keeper.cast::<Keeper>() };
    // SAFETY: the name ends in NUL; gettid takes nothing; the list is in a page that is never unmapped, and this thread's.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"ration-keeper".as_ptr());
        keeper.number.store(libc::syscall(libc::SYS_gettid) as u32, Ordering::Relaxed);
        if !keeper.list.register() {
            keeper.started.store(-errno(), Ordering::Release);
            return null_mut();
        }
    }
    keeper.started.store(1, Ordering::Release);
    loop {
        let state = keeper.mail.load(Ordering::Acquire);
        if state != POSTED {
            futex_wait(&keeper.mail, state, None);
        } else if keeper.mail.compare_exchange(POSTED, WORKING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            // SAFETY: `mail` says that both are the keeper's now.
            let (request, answer) = unsafe { ((*keeper.request.get()).take(), &mut *keeper.answer.get()) };
            if let Some(request) = &request {
                *answer = with_truncation_noticed(|| keeper.perform(request));
            }
            if keeper.mail.compare_exchange(WORKING, DONE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                futex_wake(&keeper.mail);
            } else {
                // Nobody waits for it any more, so nobody would ever leave what was joined.
                if let (Answer::Joined(place), Some(request)) = (&answer, &request) {
                    with_truncation_noticed(|| {
                        keeper.perform(&Request { table: request.table, what: What::Leave(*place) })
                    });
                }
                keeper.mail.store(IDLE, Ordering::Release);
            }
        }
    }
}

impl Owner for Keeper {
    fn take(&self, word: &crate::sync::AtomicU32, from: u32) -> bool {
        // SAFETY: called by the keeper, in `run`, with words of a region that is mapped: its lock and the processes' life words,
        // which lie at multiples of 64. A member holds the mapping until it has left.
        unsafe { self.list.take(word, from, self.number()) }
    }

    fn give(&self, word: &crate::sync::AtomicU32) {
        // SAFETY: as above.
        unsafe { self.list.give(word, self.number()) };
    }
}

/// A process without a keeper, in a region of its own: nobody will ask whether it is alive.
struct Unkept;

impl Owner for Unkept {
    fn take(&self, word: &crate::sync::AtomicU32, from: u32) -> bool {
        word.compare_exchange(from, UNKEPT, SeqCst, SeqCst).is_ok()
    }

    fn give(&self, word: &crate::sync::AtomicU32) {
        let _ = word.compare_exchange(UNKEPT, 0, SeqCst, SeqCst);
    }
}
