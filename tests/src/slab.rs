//! The kernel's own count of slab objects, to hold the books against.

use anyhow::Context;

/// Objects in use in the general caches of this object size, as /proc/slabinfo has it. The
/// kernel counts whole slabs that a CPU holds as in use, so it is right to a few slabs only.
///
/// # Errors
///
/// When /proc/slabinfo cannot be read (it needs root).
pub fn active_objects(size: u64) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/slabinfo").context("reading /proc/slabinfo")?;
    let rows = text.lines().skip(2).filter_map(|line| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?;
        let active: u64 = fields.next()?.parse().ok()?;
        let object_size: u64 = fields.nth(1)?.parse().ok()?;
        let general = name.starts_with("kmalloc-") || name.starts_with("msg_msg");
        (general && object_size == size).then_some(active)
    });
    Ok(rows.sum())
}
