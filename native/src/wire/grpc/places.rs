//! The places of a server: which connection is closed when another one arrives and all of them are taken. The same rule
//! as `runtime/connection_room.py` has, whose top explains it.

use super::inbox::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// In the order in which connections are closed; a busy one never is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// No HTTP/2 was received yet.
    Silent,
    /// No call is open.
    Idle,
    Busy,
}

pub struct Places {
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By standing, and in each the one first that has had it longest.
    taken: BTreeMap<(Standing, u64), Arc<Notify>>,
    next: u64,
    busy: usize,
    evicted: u64,
    refused: u64,
}

impl State {
    fn put(&mut self, standing: Standing, eviction: Arc<Notify>) -> (Standing, u64) {
        self.next += 1;
        self.busy += usize::from(standing == Standing::Busy);
        self.taken.insert((standing, self.next), eviction);
        (standing, self.next)
    }

    fn take(&mut self, key: (Standing, u64)) -> Option<Arc<Notify>> {
        let eviction = self.taken.remove(&key)?;
        self.busy -= usize::from(key.0 == Standing::Busy);
        Some(eviction)
    }
}

impl Places {
    pub fn new(capacity: usize) -> Arc<Places> {
        Arc::new(Places { capacity, state: Mutex::default() })
    }

    /// None where all connections are busy.
    pub fn admit(self: &Arc<Places>) -> Option<Place> {
        let mut state = lock(&self.state);
        if state.taken.len() >= self.capacity {
            let first = state.taken.keys().next().copied().filter(|key| key.0 != Standing::Busy);
            let Some(key) = first else {
                state.refused += 1;
                return None;
            };
            if let Some(eviction) = state.take(key) {
                eviction.notify_one();
            }
            state.evicted += 1;
        }
        let eviction = Arc::new(Notify::new());
        let key = state.put(Standing::Silent, eviction.clone());
        Some(Place { places: self.clone(), key: Mutex::new(key), eviction })
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
    key: Mutex<(Standing, u64)>,
    eviction: Arc<Notify>,
}

impl Place {
    /// Ends when the place was given to another connection.
    pub async fn evicted(&self) {
        self.eviction.notified().await;
    }

    pub fn stand(&self, standing: Standing) {
        let mut key = lock(&self.key);
        if key.0 == standing {
            return;
        }
        let mut state = lock(&self.places.state);
        if let Some(eviction) = state.take(*key) {
            *key = state.put(standing, eviction);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let key = *lock(&self.key);
        lock(&self.places.state).take(key);
    }
}
