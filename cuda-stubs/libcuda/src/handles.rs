//! Handles: numbers that name objects, checked at every use. A stale or made-up handle is an error, never a crash.

use std::sync::Arc;

use parking_lot::RwLock;

/// What a handle names, in its top byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(dead_code)] // not every build models every kind
pub(crate) enum Tag {
    Context = 0x11,
    Stream,
    Event,
    Module,
    Function,
    Library,
    Kernel,
    Graph,
    GraphNode,
    GraphExec,
    Array,
    Mipmap,
    Pool,
    Allocation,
    Link,
    Texture,
    Surface,
    TextureReference,
    UserObject,
}

/// All objects of one kind in this process.
pub(crate) struct Registry<T> {
    tag: Tag,
    slots: RwLock<Slots<T>>,
}

struct Slots<T> {
    entries: Vec<(u32, Option<Arc<T>>)>,
    free: Vec<u32>,
}

impl<T> Registry<T> {
    pub(crate) const fn new(tag: Tag) -> Registry<T> {
        Registry { tag, slots: RwLock::new(Slots { entries: Vec::new(), free: Vec::new() }) }
    }

    /// Registers an object that needs to know its own handle.
    pub(crate) fn insert_with(&self, make: impl FnOnce(usize) -> T) -> Arc<T> {
        let mut slots = self.slots.write();
        let index = match slots.free.pop() {
            Some(index) => index as usize,
            None => {
                slots.entries.push((0, None));
                slots.entries.len() - 1
            }
        };
        let generation = slots.entries[index].0;
        let object = Arc::new(make(self.handle(index, generation)));
        slots.entries[index].1 = Some(Arc::clone(&object));
        object
    }

    /// Registers an object.
    pub(crate) fn insert(&self, object: T) -> usize {
        let mut handle = 0;
        self.insert_with(|h| {
            handle = h;
            object
        });
        handle
    }

    fn handle(&self, index: usize, generation: u32) -> usize {
        (self.tag as usize) << 56 | (generation as usize & 0xff_ffff) << 32 | (index + 1)
    }

    fn index(&self, handle: usize) -> Option<(usize, u32)> {
        let index = (handle & 0xffff_ffff).checked_sub(1)?;
        (handle >> 56 == self.tag as usize).then_some((index, (handle >> 32) as u32 & 0xff_ffff))
    }

    /// The object, if the handle names a living one.
    #[inline]
    pub(crate) fn get(&self, handle: usize) -> Option<Arc<T>> {
        let (index, generation) = self.index(handle)?;
        let slots = self.slots.read();
        let (now, object) = slots.entries.get(index)?;
        if *now & 0xff_ffff == generation { object.clone() } else { None }
    }

    /// Takes the object out; its handle is dead from here on.
    pub(crate) fn remove(&self, handle: usize) -> Option<Arc<T>> {
        let (index, generation) = self.index(handle)?;
        let mut slots = self.slots.write();
        let entry = slots.entries.get_mut(index)?;
        if entry.0 & 0xff_ffff != generation {
            return None;
        }
        let object = entry.1.take()?;
        entry.0 = entry.0.wrapping_add(1);
        slots.free.push(index as u32);
        Some(object)
    }

    /// Takes out all that `f` says; for a context that is destroyed.
    pub(crate) fn remove_all(&self, mut f: impl FnMut(&T) -> bool) -> Vec<Arc<T>> {
        let mut slots = self.slots.write();
        let mut gone = Vec::new();
        for index in 0..slots.entries.len() {
            if slots.entries[index].1.as_deref().is_some_and(&mut f) {
                let entry = &mut slots.entries[index];
                entry.0 = entry.0.wrapping_add(1);
                gone.extend(entry.1.take());
                slots.free.push(index as u32);
            }
        }
        gone
    }

    /// Every living object.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.slots.read().entries.iter().filter_map(|(_, object)| object.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_dies_with_its_object() {
        let registry = Registry::new(Tag::Event);
        let first = registry.insert(1);
        assert_eq!(registry.get(first).as_deref(), Some(&1));
        assert!(registry.remove(first).is_some());
        let second = registry.insert(2);
        assert_ne!(first, second, "the slot is used again under another name");
        assert!(registry.get(first).is_none() && registry.remove(first).is_none());
        assert!(registry.get(0).is_none() && registry.get(usize::MAX).is_none() && registry.get(0x1234).is_none());
        let other: Registry<i32> = Registry::new(Tag::Stream);
        assert!(other.get(second).is_none(), "a handle of another kind is no handle");
    }
}
