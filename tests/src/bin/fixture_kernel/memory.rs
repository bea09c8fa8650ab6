//! Memory that is measured, not traced: pages of a process' own, and files in memory that stay.

use std::io::Write;

use anyhow::Context;
use serde_json::json;

use super::Arguments;

/// `resident MIB`: writes to so many new pages, and says so.
pub fn resident(arguments: &Arguments) -> anyhow::Result<()> {
    arguments.checkpoint(json!({ "mib": 0 }))?;
    let mib = arguments.size(0)?;
    let bytes = vec![1_u8; mib << 20];
    let sum: u64 = bytes.iter().step_by(4_096).map(|byte| u64::from(*byte)).sum();
    arguments.checkpoint(json!({ "mib": mib, "pages": sum }))
}

/// `shared MIB`: leaves a file of so many MiB in /dev/shm; the line says which.
pub fn shared(arguments: &Arguments) -> anyhow::Result<()> {
    let path = format!("/dev/shm/mt-fixture-{}", std::process::id());
    let mut file = std::fs::File::create_new(&path).with_context(|| format!("creating {path}"))?;
    for _ in 0..arguments.size(0)? {
        file.write_all(&[1; 1 << 20]).with_context(|| format!("writing to {path}"))?;
    }
    arguments.checkpoint(json!({ "path": path }))
}
