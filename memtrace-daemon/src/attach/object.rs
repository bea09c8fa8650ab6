//! The compiled kernel side, as bytes. Nothing else may embed it a second time.

/// The BPF object, aligned as its parser wants it.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("MEMTRACE_BPF_OBJECT"));
