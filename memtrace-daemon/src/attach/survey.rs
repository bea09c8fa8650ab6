//! What would be probed on this host: a look without attaching anything, for `doctor`.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use jiff::Timestamp;

use super::libraries::Libraries;
use super::policy::FilePolicy;
use super::probing::Prober;
use super::usdt::Place;
use super::watch::Watcher;
use crate::snapshot::CoverageRow;

/// Attaches to nothing, and was always there.
pub(super) struct Nothing;

impl Prober for Nothing {
    type Link = ();

    fn attach(&self, _: BorrowedFd<'_>, _: &[(u64, u64)], _: bool) -> io::Result<()> {
        Ok(())
    }

    fn attach_static(
        &mut self,
        _: BorrowedFd<'_>,
        _: &[(Place, u64)],
        _: Option<u32>,
    ) -> io::Result<()> {
        Ok(())
    }

    fn forget_static(&mut self, _: &[u64]) {}

    fn by(&self) -> &'static str {
        "uprobe_multi"
    }

    fn since(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }
}

/// The rows of the processes that run a GPU library or have a GPU open: `attached` says whether
/// calls of theirs can be seen under this policy.
///
/// # Errors
/// That /proc cannot be listed.
pub fn survey(files: FilePolicy) -> io::Result<Vec<CoverageRow>> {
    let mut watcher = Watcher::deafened(Libraries::new(Nothing, files));
    watcher.rescan(Instant::now())?;
    let mut rows = watcher.coverage();
    rows.retain(|row| row.kind == "process");
    Ok(rows)
}
