//! The books beside those of a program that calls the real driver. Built and run by
//! `cargo xtask test --gpu` alone, on a machine with an NVIDIA GPU.

use anyhow::Result;
use memtrace_tests::fixture::{self, Variant};
use memtrace_tests::gpu;

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_real_drivers_memory_is_booked_to_the_byte() -> Result<()> {
    gpu::check(&fixture::build(Variant::Plain)?.driver_client())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_real_pytorchs_tensors_are_booked_to_the_byte() -> Result<()> {
    gpu::check_torch(None)
}
