//! Memory that this process has let go of, and that something still keeps. It stays charged until nothing does.

use super::Slice;
use super::marks::{self, FileId, Mark, Node};
use crate::thread::Guarded;

/// What may keep memory.
#[derive(Clone, Default)]
pub struct Keepers {
    /// Descriptors with these marks.
    pub marks: Vec<Mark>,
    /// dma-bufs: each is a file of its own, which nobody can open.
    pub dma_bufs: Vec<FileId>,
}

impl Keepers {
    pub fn are_none(&self) -> bool {
        self.marks.is_empty() && self.dma_bufs.is_empty()
    }

    /// Whether any of them is there. Where that cannot be known, none is.
    fn keep(&self) -> bool {
        let mut node: Option<(FileId, Option<Node>)> = None;
        self.marks.iter().any(|mark| {
            if node.as_ref().is_none_or(|(id, _)| *id != mark.node()) {
                node = Some((mark.node(), Node::open(mark.node())));
            }
            node.as_ref().and_then(|(_, node)| node.as_ref()).is_some_and(|node| node.has(mark))
        }) || self.dma_bufs.iter().any(|file| is_open_somewhere(*file))
    }

    /// Whether others can see them too, also when this process is gone. Such memory is told of apart, so that others can correct
    /// what is told.
    fn can_be_seen(&self) -> bool {
        self.dma_bufs.is_empty()
    }
}

struct Kept {
    number: u64,
    slice: &'static Slice,
    keepers: Keepers,
    bytes: u64,
}

struct All {
    next: u64,
    kept: Vec<Kept>,
}

static ALL: Guarded<All> = Guarded::new(All { next: 0, kept: Vec::new() });

impl All {
    /// What is told of apart.
    fn lent(&self, slice: &Slice) -> u64 {
        let lent = self.kept.iter().filter(|it| std::ptr::eq(it.slice, slice) && it.keepers.can_be_seen());
        lent.map(|it| it.bytes).sum()
    }
}

/// Memory has left this process's figure. What keepers have of it stays charged; otherwise it is given back. What may have become
/// another process's was looked for before ([`Slice::hand_over`]).
pub fn let_go(slice: &'static Slice, keepers: Keepers, bytes: u64) {
    if keepers.are_none() || bytes == 0 || !keepers.keep() {
        return slice.refund(bytes);
    }
    ALL.with(|all| {
        let can_be_seen = keepers.can_be_seen();
        all.kept.push(Kept { number: all.next, slice, keepers, bytes });
        all.next += 1;
        if can_be_seen {
            slice.lend(bytes, all.lent(slice));
        } else {
            slice.becomes_beside(bytes);
        }
    });
}

/// What is told of apart, of a slice.
pub fn of(slice: &Slice) -> u64 {
    ALL.with(|all| all.lent(slice))
}

/// Looks at what is kept of this process's memory: descriptors may have been closed.
pub fn settle(slice: &Slice) {
    let gone: Vec<u64> = ALL.with(|all| {
        let mine = all.kept.iter().filter(|it| std::ptr::eq(it.slice, slice));
        mine.filter(|it| !it.keepers.keep()).map(|it| it.number).collect()
    });
    if gone.is_empty() {
        return;
    }
    // Before it is given back: somebody may have imported it, and have it now.
    slice.hand_over();
    ALL.with(|all| {
        let (mut lent, mut beside) = (false, 0);
        all.kept.retain(|it| {
            let is_over = gone.contains(&it.number);
            if is_over && it.keepers.can_be_seen() {
                lent = true;
            } else if is_over {
                beside += it.bytes;
            }
            !is_over
        });
        slice.refund_beside(beside);
        if lent {
            slice.set_lent(all.lent(slice));
        }
    });
}

/// Whether a process that can be seen has a file open.
fn is_open_somewhere(file: FileId) -> bool {
    let open_in = |process: &str| {
        let place = format!("/proc/{process}/fd");
        marks::names(&place).iter().any(|name| marks::at(&format!("{place}/{name}")) == Some(file))
    };
    let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    open_in("self") || marks::names("/proc").iter().filter(|name| is_number(name)).any(|name| open_in(name))
}

/// In a forked child: none.
pub fn forget_the_parent() {
    ALL.renew(All { next: 0, kept: Vec::new() });
    marks::forget_the_parent();
}
