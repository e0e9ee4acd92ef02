//! The places of a server: which connection is closed when another one arrives and all of them are taken. The same rule
//! as `runtime/connection_room.py` has, whose top explains it.

use super::inbox::lock;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// The part of the places that strangers have.
const STRANGERS_SHARE: usize = 4;

/// In the order in which connections are closed; a busy one never is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// No HTTP/2 was received yet.
    Silent,
    /// No call is open.
    Idle,
    Busy,
}

/// Whether a connection has proved a credential. Without accounts all are known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Stranger,
    Known,
}

type Key = (Group, Standing, u64);

pub struct Places {
    capacity: usize,
    strangers_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By group and standing, and in each the one first that has had it longest.
    taken: BTreeMap<Key, Arc<Notify>>,
    by_connection: HashMap<u32, Arc<Mutex<Key>>>,
    is_guarded: bool,
    next: u64,
    strangers: usize,
    busy: usize,
    evicted: u64,
    refused: u64,
}

impl State {
    fn put(&mut self, group: Group, standing: Standing, eviction: Arc<Notify>) -> Key {
        self.next += 1;
        self.busy += usize::from(standing == Standing::Busy);
        self.strangers += usize::from(group == Group::Stranger);
        let key = (group, standing, self.next);
        self.taken.insert(key, eviction);
        key
    }

    fn take(&mut self, key: Key) -> Option<Arc<Notify>> {
        let eviction = self.taken.remove(&key)?;
        self.busy -= usize::from(key.1 == Standing::Busy);
        self.strangers -= usize::from(key.0 == Group::Stranger);
        Some(eviction)
    }

    /// The first of a group to be closed; None if all of them are busy.
    fn least_useful(&self, group: Group) -> Option<Key> {
        let first = *self.taken.range((group, Standing::Silent, 0)..).next()?.0;
        (first.0 == group && first.1 != Standing::Busy).then_some(first)
    }

    fn evict(&mut self, key: Key) {
        if let Some(eviction) = self.take(key) {
            eviction.notify_one();
        }
        self.evicted += 1;
    }
}

impl Places {
    pub fn new(capacity: usize) -> Arc<Places> {
        let strangers_max = (capacity / STRANGERS_SHARE).max(1);
        Arc::new(Places { capacity, strangers_max, state: Mutex::default() })
    }

    /// Clients have accounts from now on: new connections are strangers until they are recognised.
    pub fn guard(&self) {
        lock(&self.state).is_guarded = true;
    }

    /// None where all connections are busy.
    pub fn admit(self: &Arc<Places>, connection: u32) -> Option<Place> {
        let mut state = lock(&self.state);
        let group = if state.is_guarded { Group::Stranger } else { Group::Known };
        let has_place = group == Group::Known || state.strangers < self.strangers_max;
        if !has_place || state.taken.len() >= self.capacity {
            let known = if has_place { state.least_useful(Group::Known) } else { None };
            let Some(key) = state.least_useful(Group::Stranger).or(known) else {
                state.refused += 1;
                return None;
            };
            state.evict(key);
        }
        let eviction = Arc::new(Notify::new());
        let key = Arc::new(Mutex::new(state.put(group, Standing::Silent, eviction.clone())));
        state.by_connection.insert(connection, key.clone());
        Some(Place { places: self.clone(), connection, key, eviction })
    }

    /// A connection has proved a credential. While all that have done so are busy, it stays a stranger.
    pub fn recognise(&self, connection: u32) {
        let Some(key) = lock(&self.state).by_connection.get(&connection).cloned() else { return };
        let mut key = lock(&key);
        let mut state = lock(&self.state);
        if key.0 != Group::Stranger {
            return;
        }
        if state.taken.len() - state.strangers >= self.capacity - self.strangers_max {
            let Some(idle) = state.least_useful(Group::Known) else { return };
            state.evict(idle);
        }
        if let Some(eviction) = state.take(*key) {
            *key = state.put(Group::Known, key.1, eviction);
        }
    }

    /// Connections now, those of them that are busy; and since the start: evicted, refused.
    pub fn counts(&self) -> (usize, usize, u64, u64) {
        let state = lock(&self.state);
        (state.taken.len(), state.busy, state.evicted, state.refused)
    }
}

/// The place of one connection, until it is dropped.
pub struct Place {
    places: Arc<Places>,
    connection: u32,
    key: Arc<Mutex<Key>>,
    eviction: Arc<Notify>,
}

impl Place {
    /// Ends when the place was given to another connection.
    pub async fn evicted(&self) {
        self.eviction.notified().await;
    }

    pub fn stand(&self, standing: Standing) {
        let mut key = lock(&self.key);
        if key.1 == standing {
            return;
        }
        let mut state = lock(&self.places.state);
        if let Some(eviction) = state.take(*key) {
            *key = state.put(key.0, standing, eviction);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let key = *lock(&self.key);
        let mut state = lock(&self.places.state);
        state.take(key);
        state.by_connection.remove(&self.connection);
    }
}
