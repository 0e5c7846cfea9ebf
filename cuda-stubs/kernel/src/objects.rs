//! The objects that clients have allocated: a tree per client. Pure, and the process's own.

use std::collections::BTreeMap;

use sim_world::rm;

/// What tells one open file from another: of files in memory each has its own.
pub(crate) type FileId = (u64, u64);

/// A context's place in the world, as it was when its group was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub chan: usize,
    pub slot: u64,
    pub generation: u64,
}

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Device(usize),
    Subdevice(usize),
    /// The place is that of a compute group's context; a copy group has none.
    Group(Option<Place>),
    Channel {
        off: bool,
    },
    Other,
}

#[derive(Debug)]
struct Object {
    parent: u32,
    kind: Kind,
}

#[derive(Debug)]
struct Client {
    file: FileId,
    objects: BTreeMap<u32, Object>,
}

/// All clients of a process.
#[derive(Debug)]
pub(crate) struct Objects(BTreeMap<u32, Client>);

/// What a list of channels means, once it was read.
#[derive(Debug, PartialEq, Eq, Default)]
pub(crate) struct Effect {
    /// Contexts that change, and whether each is off then.
    pub places: Vec<(Place, bool)>,
    /// Whether a channel is in a group that was not made here.
    pub is_foreign: bool,
}

type Outcome<T = ()> = Result<T, u32>;

impl Objects {
    pub(crate) const fn new() -> Objects {
        Objects(BTreeMap::new())
    }

    /// A client answers only on the file that it was allocated on.
    fn client(&mut self, file: FileId, client: u32) -> Outcome<&mut Client> {
        match self.0.get_mut(&client) {
            Some(client) if client.file == file => Ok(client),
            _ => Err(rm::INVALID),
        }
    }

    /// A new client; `number` tells it from all others of the machine.
    pub(crate) fn add_client(&mut self, file: FileId, number: u32) -> u32 {
        let handle = 0xc1d0_0000 | number;
        self.0.insert(handle, Client { file, objects: BTreeMap::new() });
        handle
    }

    pub(crate) fn clients(&self) -> usize {
        self.0.len()
    }

    /// A new object. `is_foreign` allows a parent that is not there.
    pub(crate) fn add(
        &mut self,
        file: FileId,
        client: u32,
        (parent, object): (u32, u32),
        kind: Kind,
        is_foreign: bool,
    ) -> Outcome {
        let objects = &mut self.client(file, client)?.objects;
        if parent != client && !objects.contains_key(&parent) && !is_foreign {
            return Err(rm::NOT_FOUND);
        }
        if object == 0 || object == client || objects.contains_key(&object) {
            return Err(rm::INVALID);
        }
        objects.insert(object, Object { parent, kind });
        Ok(())
    }

    /// What an object is.
    pub(crate) fn kind(&mut self, file: FileId, client: u32, object: u32) -> Outcome<Kind> {
        self.client(file, client)?.objects.get(&object).map(|object| object.kind).ok_or(rm::NOT_FOUND)
    }

    /// Frees an object and all under it.
    pub(crate) fn free(&mut self, file: FileId, client: u32, object: u32) -> Outcome {
        let objects = &mut self.client(file, client)?.objects;
        if object == client {
            self.0.remove(&client);
            return Ok(());
        }
        objects.remove(&object).ok_or(rm::NOT_FOUND)?;
        let mut gone = vec![object];
        while let Some(parent) = gone.pop() {
            objects.retain(|handle, object| {
                let stays = object.parent != parent;
                if !stays {
                    gone.push(*handle);
                }
                stays
            });
        }
        Ok(())
    }

    /// Takes channels off or puts them on; nothing is changed if one of them is not there. A group is off when all of its
    /// channels are: one that was left out runs on.
    pub(crate) fn switch(&mut self, channels: impl Iterator<Item = (u32, u32)> + Clone, off: bool) -> Outcome<Effect> {
        for (client, channel) in channels.clone() {
            let object = self.0.get(&client).and_then(|client| client.objects.get(&channel));
            if !matches!(object, Some(Object { kind: Kind::Channel { .. }, .. })) {
                return Err(rm::NOT_FOUND);
            }
        }
        let mut effect = Effect::default();
        let mut groups = Vec::new();
        for (client, channel) in channels {
            let Some(object) = self.0.get_mut(&client).and_then(|client| client.objects.get_mut(&channel)) else {
                continue;
            };
            object.kind = Kind::Channel { off };
            if !groups.contains(&(client, object.parent)) {
                groups.push((client, object.parent));
            }
        }
        for (client, group) in groups {
            let objects = &self.0[&client].objects;
            match objects.get(&group).map(|group| group.kind) {
                Some(Kind::Group(Some(place))) => {
                    let mut own = objects.values().filter(|object| object.parent == group);
                    effect.places.push((place, own.all(|channel| channel.kind == Kind::Channel { off: true })));
                }
                Some(_) => {}
                None => effect.is_foreign = true,
            }
        }
        Ok(effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = (1, 1);
    const PLACE: Place = Place { chan: 3, slot: 1, generation: 1 };

    fn with_group() -> (Objects, u32) {
        let mut objects = Objects::new();
        let client = objects.add_client(FILE, 7);
        let mut add = |parent, object, kind| objects.add(FILE, client, (parent, object), kind, false).expect("free");
        add(client, 1, Kind::Device(0));
        add(1, 2, Kind::Group(Some(PLACE)));
        add(2, 3, Kind::Channel { off: false });
        add(2, 4, Kind::Channel { off: false });
        (objects, client)
    }

    #[test]
    fn client_answers_only_on_its_own_file() {
        let (mut objects, client) = with_group();
        assert_eq!(objects.kind(FILE, client, 1), Ok(Kind::Device(0)));
        assert_eq!(objects.kind((1, 2), client, 1), Err(rm::INVALID));
    }

    #[test]
    fn freeing_frees_what_is_under_it() {
        let (mut objects, client) = with_group();
        assert_eq!(objects.free(FILE, client, 1), Ok(()));
        assert_eq!(objects.kind(FILE, client, 4), Err(rm::NOT_FOUND));
        assert_eq!(objects.free(FILE, client, client), Ok(()));
        assert_eq!(objects.clients(), 0);
    }

    #[test]
    fn group_is_off_when_all_of_its_channels_are() {
        let (mut objects, client) = with_group();
        let mut switch = |channels: &[u32], off| {
            objects.switch(channels.iter().map(|channel| (client, *channel)), off).map(|effect| effect.places)
        };
        assert_eq!(switch(&[3], true), Ok(vec![(PLACE, false)]));
        assert_eq!(switch(&[4], true), Ok(vec![(PLACE, true)]));
        assert_eq!(switch(&[3, 9], false), Err(rm::NOT_FOUND));
        assert_eq!(switch(&[4], true), Ok(vec![(PLACE, true)]), "nothing of the failed one was done");
        assert_eq!(switch(&[3, 4], false), Ok(vec![(PLACE, false)]));
    }

    #[test]
    fn handles_are_unique_per_client() {
        let (mut objects, client) = with_group();
        assert_eq!(objects.add(FILE, client, (client, 3), Kind::Other, false), Err(rm::INVALID));
        assert_eq!(objects.add(FILE, client, (99, 5), Kind::Other, false), Err(rm::NOT_FOUND));
        assert_eq!(objects.add(FILE, client, (99, 5), Kind::Channel { off: false }, true), Ok(()));
        let effect = objects.switch([(client, 5)].into_iter(), true).expect("it is there");
        assert!(effect.is_foreign && effect.places.is_empty());
    }
}
