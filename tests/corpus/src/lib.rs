//! Labelled workloads in virtual time, and how well rules tell the leaks among them.
//!
//! A case is a row of the list of public bug reports, or something every operator meets; a seed
//! makes a variant of it: rates, sizes, noise, load, what else the program does. A variant runs
//! in a [`world::World`], which tells records as the kernel side would and knows the truth. The
//! same case and seed are the same records on every machine. Nothing here reads a clock or knows
//! how a rule decides; recordings of real programs ([`recorded`]) are all that is read.

pub mod cases;
pub mod expect;
pub mod judge;
pub mod load;
pub mod random;
pub mod recorded;
pub mod score;
pub mod stage;
pub mod tune;
pub mod workload;
pub mod world;
