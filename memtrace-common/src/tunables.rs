//! Sizes and thresholds, with the reason beside each. Whatever is not computed for the
//! machine is a default that the configuration can change.

/// What the names of all programs and maps of memtrace begin with, so that leftovers can be
/// found. Short, because the kernel keeps 15 characters of a name.
pub const NAME_PREFIX: &str = "mt_";

/// Live kernel allocations followed. 524,288 × 88 bytes = 46 MB: a busy host holds 100,000 to 400,000.
pub const KERNEL_LIVE_ENTRIES: u32 = 524_288;
/// Live library allocations followed. Device allocations are rare; 131,072 × 112 bytes = 15 MB.
pub const CALL_LIVE_ENTRIES: u32 = 131_072;
/// Kernel accounts: (process, context, call site, detail). 32,768 × 312 bytes = 10 MB.
pub const ACCOUNTS: u32 = 32_768;
/// Remembered slots of accounts; beyond it, an account is looked up in the index. 128 KB.
pub const ACCOUNT_HINTS: u32 = 16_384;
/// Accounts whose live bytes are told by age: those that hold most of what the verdict looks at.
/// 4,096 × 88 bytes = 360 KB; with 256 KiB each they hold 1 GiB.
pub const AGE_ROWS: u32 = 4_096;
/// Processes known at a time, running or remembered.
pub const PROCESSES: u32 = 16_384;
/// Threads remembered; beyond it, a thread is looked up at each of its events. 5 MB.
pub const THREADS: u32 = 65_536;
/// Rows of call-path totals: (address space, function).
pub const TOTALS: u32 = 16_384;
/// Functions in the catalog.
pub const FUNCTIONS: u32 = 1_024;
/// Places of static probes that are attached at a time. 1,024 × 104 bytes = 106 KB; PyTorch has
/// three in a file.
pub const USDT_POINTS: u32 = 1_024;
/// Call sites that are followed exactly although `--exact` is off.
pub const PROMOTED: u32 = 1_024;
/// Entries of each policy map.
pub const POLICY_ENTRIES: u32 = 4_096;
/// Bytes of the ring buffer. It counts twice in the daemon's resident memory.
pub const RING_BYTES: u32 = 8 << 20;

/// Share of a live map, in percent, beyond which nothing is inserted: a nearly full hash map
/// makes every insert slow.
pub const LIVE_FILL_PERCENT: u64 = 90;
/// A stack is taken when the live bytes of an account have grown by this much.
pub const SAMPLE_QUANTUM_BYTES: u64 = 32 << 10;
/// Age class 0 ends at 2^33 ns, about a window of the verdict (10 s), so the classes reach from
/// one window to 64, some 9 minutes.
pub const AGE_SHIFT: u64 = 33;
/// Nesting of probed calls on one thread: runtime over driver over heap, and one to spare.
pub const INFLIGHT_DEPTH: usize = 4;
/// Inner allocations of one outer call that wait for its return; more are booked at once.
pub const PENDING_INNER: usize = 2;
/// Sizes from here on cannot be true: user address space ends at 2^47.
pub const IMPLAUSIBLE_BYTES: u64 = 1 << 47;

/// Slots in which stacks are copied before they are sent, a power of two. A CPU has one for
/// itself where there are so many; 1.2 MB.
pub const COPY_SLOTS: u32 = 32;
/// Learned steps of unwinding: (return address, address space). 32,768 × 88 bytes = 2.9 MB; a
/// process has some hundred return addresses on its way to an allocator.
pub const STEPS: u32 = 32_768;
/// Bytes of copied stacks a second: some 10,000 calls of a deep program, far more than any
/// inference service makes, and what a quarter of a core unwinds.
pub const COPY_BYTES_PER_SECOND: u64 = 64 << 20;
