//! What programs do with memory, in small parts: each takes and gives memory at its sites, a
//! second at a time.

mod burst;
mod cache;
mod generations;
mod grower;
mod pool;
mod queue;
mod traffic;
mod unbooked;

use std::fmt::Debug;

pub use burst::Burst;
pub use cache::{Cache, Keys};
pub use generations::Generations;
pub use grower::Grower;
pub use pool::Pool;
pub use queue::{Concurrency, Queue};
pub use traffic::{Life, Sizes, Traffic};
pub use unbooked::{Grows, Noise, Swell};

use crate::world::World;

/// Something that a program does.
pub trait Workload: Debug + Send {
    /// Does what it does in the present second.
    fn second(&mut self, world: &mut World);
}
