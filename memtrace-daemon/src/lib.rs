//! memtrace's user side, as a library: `main.rs` only parses, wires and exits.
//!
//! Data flows one way: `intake` turns ring buffer bytes into records, `engine` feeds them to
//! the pure `ledger` and `verdict` and publishes snapshots, `report` and `serve` read these.

pub mod attach;
pub mod catalog;
pub mod cli;
pub mod config;
pub mod engine;
pub mod expendable;
pub mod heap;
pub mod host;
pub mod human;
pub mod intake;
pub mod ledger;
pub mod record;
pub mod report;
pub mod serve;
pub mod snapshot;
pub mod stacks;
pub mod verdict;
