//! The rules on one process' measurements, one a function: whether it holds, and in what words.

use std::fmt::Write;

use super::super::VerdictConfig;
use super::process::{About, Measured, Moment, resident, unused};
use super::{Booked, ParentBooks};
use crate::human::bytes;

/// Address space that grows is not worth a word below this where threads do not explain it, bytes.
const UNUSED_BYTES: u64 = 1 << 30;
/// Address space of files that are mapped and read grows past memory by what the kernel evicts; one
/// that had this share of the growth in memory may have had all of it there.
const FILES_SHARE: u64 = 16;
/// So many more threads may be load.
const FEW_THREADS: u32 = 16;
/// Sizes that stacks of threads have, bytes.
const STACK_BYTES: std::ops::RangeInclusive<u64> = (64 << 10)..=(64 << 20);
/// Who starts programs and leaves them alone on purpose.
const LAUNCHERS: &[&str] = &[
    "sh",
    "bash",
    "dash",
    "zsh",
    "fish",
    "ksh",
    "tcsh",
    "csh",
    "sshd",
    "sshd-session",
    "screen",
    "tmux",
    "tmux: server",
    "nohup",
    "setsid",
    "sudo",
    "su",
    "login",
    "cron",
    "crond",
    "atd",
    "systemd",
    "init",
    "(sd-pam)",
    "containerd-shim",
    "docker-init",
    "tini",
    "dumb-init",
    "env",
    "timeout",
    "make",
    "memtrace",
];

/// A rule that holds, and its words.
type Holds = Option<(About, Vec<String>)>;

impl Measured {
    /// Anonymous memory grows and no books explain it.
    pub(super) fn unexplained_growth(&self, config: &VerdictConfig) -> Holds {
        let (grown, gap) = (self.grown(), self.gap());
        if !self.unexplained.grows() || gap < self.worth(config) || gap < grown / 2 {
            return None;
        }
        let Booked { heap_bytes, mmap_bytes, before_attach, .. } = &self.now.booked;
        let swapped = self.now.memory.swap_bytes.saturating_sub(self.first.memory.swap_bytes);
        let mut what = format!("anonymous memory and swap grew by {}", bytes(grown));
        // Writing to a String cannot fail.
        if swapped > 0 {
            let _ = write!(what, ", {} of it swapped out", bytes(swapped));
        }
        let untraced: Vec<&str> = [("heap", heap_bytes), ("mmap", mmap_bytes)]
            .into_iter()
            .filter(|(_, live)| live.is_none())
            .map(|(name, _)| name)
            .collect();
        let why = match untraced.as_slice() {
            [] if *before_attach => format!(
                "live allocations explain {} of it; the rest may be memory from before attach \
                 that is used only now",
                bytes(self.explained())
            ),
            [] => format!("live allocations explain {} of it", bytes(self.explained())),
            [one] => format!("{one} is not traced: --domains {one} tells which code keeps it"),
            _ => "heap and mmap are not traced: --domains heap,mmap tells which code keeps it"
                .to_owned(),
        };
        let mut words = vec![what, why];
        words.extend(self.huge_words(gap));
        Some((About::Unexplained, words))
    }

    fn huge_words(&self, gap: u64) -> Option<String> {
        let huge = grown(self.first.memory.huge_bytes, self.now.memory.huge_bytes);
        (huge >= gap / 2 && huge > 0)
            .then(|| format!("{} of it are transparent huge pages (AnonHugePages)", bytes(huge)))
    }

    /// The process holds memory that its live allocations do not explain, and has for a while.
    pub(super) fn fragmentation(&mut self, config: &VerdictConfig) -> Holds {
        let (grown, gap) = (self.grown(), self.gap());
        // What it once needed and still holds is an allocator that waits for more of the same.
        let beyond_peak = grown.saturating_sub(self.peak_explained);
        let holds = self.certain(gap)
            && gap >= self.worth(config)
            && gap >= grown / 2
            && beyond_peak >= grown / 4;
        if !holds {
            self.fragmented_ns = None;
            return None;
        }
        let since_ns = *self.fragmented_ns.get_or_insert(self.now.ns);
        let patience_ns = config.window_ns().saturating_mul(u64::from(config.plateau_windows));
        if self.now.ns.saturating_sub(since_ns) < patience_ns {
            return None;
        }
        let mut words = vec![format!(
            "anonymous memory and swap grew by {}, live allocations by {}",
            bytes(grown),
            bytes(self.explained())
        )];
        words.extend(self.huge_words(gap));
        let brk = self.brk_growth();
        if brk >= gap / 2 && brk > 0 {
            words.push(format!("malloc's own segment grew by {}", bytes(brk)));
        }
        Some((About::Fragmentation, words))
    }

    fn brk_growth(&self) -> u64 {
        grown(self.first.memory.brk_bytes, self.now.memory.brk_bytes)
    }

    /// Whether what the books do not explain can be nothing but fragmentation: they have its
    /// whole life, or the memory is in mappings that were made while they were kept.
    fn certain(&self, gap: u64) -> bool {
        let Booked { heap_bytes, heap_calls, mmap_bytes, before_attach, .. } = &self.now.booked;
        // Another allocator than the one that is traced may be at work.
        if heap_bytes.is_none() || *heap_calls == 0 {
            return false;
        }
        let mapped = self.now.memory.virtual_bytes.saturating_sub(self.first.memory.virtual_bytes);
        let in_new_mappings = mmap_bytes.is_some() && mapped >= gap / 2;
        (mmap_bytes.is_some() && !before_attach) || in_new_mappings || self.brk_growth() >= gap / 2
    }

    /// Address space grows and memory does not: stacks of threads, or what is only reserved.
    pub(super) fn address_growth(&self, config: &VerdictConfig) -> Holds {
        let Self { first, now, .. } = self;
        if !self.address.grows() {
            return None;
        }
        let grown = self.unused().saturating_sub(unused(&first.memory));
        let resident = resident(&now.memory).saturating_sub(resident(&first.memory));
        if resident > grown / 4 {
            return None;
        }
        let figures = format!(
            "address space grew by {}, memory in use by {}",
            bytes(grown.saturating_add(resident)),
            bytes(resident)
        );
        let threads = now.memory.threads.saturating_sub(first.memory.threads);
        let each = grown.checked_div(u64::from(threads)).unwrap_or(0);
        let why = if threads >= FEW_THREADS && STACK_BYTES.contains(&each) {
            format!(
                "thread stacks: {threads} more threads than at first, {} each; they are never \
                 joined, or never end",
                bytes(each)
            )
        } else if self.most_files.saturating_sub(first.memory.file_bytes) >= grown / FILES_SHARE {
            // Files are mapped and read: what of them was evicted meanwhile is not told.
            return None;
        } else if grown >= UNUSED_BYTES.max(config.min_bytes) {
            "thread stacks of threads that ended and were never joined, or reserved memory that \
             is not used: --domains mmap tells which"
                .to_owned()
        } else {
            return None;
        };
        Some((About::Address, vec![figures, why]))
    }

    /// It holds device memory, its parent has ended, and it does nothing any more.
    pub(super) fn orphan(&self, config: &VerdictConfig) -> Holds {
        let Moment { ns, booked, .. } = &self.now;
        let held = booked.held_on_device();
        if held < config.min_bytes {
            return None;
        }
        let since_ns = booked.device_since_ns.unwrap_or(self.first.ns);
        let (comm, tgid, ended_ns) = self.ended_parent(since_ns)?;
        let rests_ns = ns.saturating_sub(self.called_ns.max(ended_ns));
        if LAUNCHERS.contains(&comm) || rests_ns < config.min_age_ns() {
            return None;
        }
        let seconds = ns.saturating_sub(ended_ns) / 1_000_000_000;
        let mut words = vec![
            format!("its parent {comm} (pid {tgid}) ended {seconds} s ago"),
            format!("it holds {} of device memory and makes no calls", bytes(held)),
        ];
        if let Some(nvml_bytes) = booked.nvml_bytes {
            let booked = bytes(booked.device_bytes);
            words.push(format!("NVML counts {}, the books have {booked}", bytes(nvml_bytes)));
        }
        Some((About::Orphan, words))
    }

    /// The parent that has ended, and when, if the child held its device memory already: a
    /// parent that ends before puts a service into the background.
    fn ended_parent(&self, device_since_ns: u64) -> Option<(&str, u32, u64)> {
        if let Some(ParentBooks { tgid, comm, ended_ns: Some(ended_ns) }) = &self.now.booked.parent
        {
            return (device_since_ns < *ended_ns).then_some((comm.as_str(), *tgid, *ended_ns));
        }
        let (before_ns, left_ns) = self.left_ns?;
        let parent = self.parent.as_ref().filter(|parent| parent.tgid > 1)?;
        let named = !parent.comm.is_empty() && device_since_ns < before_ns;
        named.then_some((parent.comm.as_str(), parent.tgid, left_ns))
    }
}

/// Growth of what was looked at both times.
fn grown(first: Option<u64>, now: Option<u64>) -> u64 {
    first.zip(now).map_or(0, |(first, now)| now.saturating_sub(first))
}
