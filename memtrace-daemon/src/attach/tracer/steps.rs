//! The kernel's map of learned steps of unwinding, written by who learns them.

use aya::maps::{HashMap, MapData, MapError};
use memtrace_common::{Step, StepKey};

use crate::attach::plain::Plain;

/// The map.
#[derive(Debug)]
pub struct StepMap(HashMap<MapData, Plain<StepKey>, Plain<Step>>);

impl StepMap {
    pub(super) const fn new(map: HashMap<MapData, Plain<StepKey>, Plain<Step>>) -> Self {
        Self(map)
    }

    /// Writes a step; false where there is no room for it.
    pub fn put(&mut self, key: StepKey, step: Step) -> bool {
        self.0.insert(Plain(key), Plain(step), 0).is_ok()
    }

    /// Takes a step out; that it is gone already is fine.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn remove(&mut self, key: StepKey) -> Result<(), MapError> {
        match self.0.remove(&Plain(key)) {
            Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
