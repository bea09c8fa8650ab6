//! The cost of the kernel domain: loops of system calls that allocate and free kernel memory.

use super::measure::Bar;
use super::rounds::{self, Bench, Loop, Plan};
use super::tracer::{Programs, Tracer};

/// memtrace over untraced, each loop.
const BAR: f64 = 1.5;

/// A run takes a millisecond, less than a scheduler's share on a busy machine.
const LOOPS: [Loop<'_>; 2] = [
    // struct eventpoll: one kmalloc of more than 128 bytes a call, freed through RCU.
    Loop { name: "epoll", iterations: 1_000, arguments: &[], bytes: 128 },
    // struct pipe_inode_info and its buffers.
    Loop { name: "pipe", iterations: 500, arguments: &[], bytes: 512 },
];

/// Runs it.
///
/// # Errors
///
/// As [`rounds::run`].
pub fn run(programs: &Programs, plan: Plan) -> anyhow::Result<Vec<String>> {
    let bench = Bench {
        title: "Kernel allocations: memtrace daemon beside empty programs and bpftrace",
        tracers: &[Tracer::Untraced, Tracer::Empty, Tracer::Memtrace, Tracer::Bpftrace],
        loops: &LOOPS,
        // As memtrace attaches: two programs on kfree.
        empty: &["tracepoints", "kmalloc", "kfree", "kfree"],
        domain: "kernel",
        bar: Bar { base: Tracer::Untraced, ratio: BAR },
    };
    rounds::run(&bench, programs, plan)
}
