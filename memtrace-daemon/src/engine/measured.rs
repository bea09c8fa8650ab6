//! Measurements into the rules on them, with what the books have of whatever was measured, and
//! the findings that come of it.

use std::cmp::Reverse;

use memtrace_common::{Domain, ProcessFlags};

use super::core::{Core, Setting};
use super::finding;
use crate::catalog;
use crate::ledger::{ProcessBooks, of_totals, text};
use crate::record::{Observation, Record};
use crate::snapshot::{Finding, Measured};
use crate::verdict::{Booked, Ended, HostBooks, ParentBooks, Said};

/// A process that is to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its serial.
    pub serial: u32,
    /// Its thread group id.
    pub tgid: u32,
    /// Its start, ns since boot.
    pub start_ns: u64,
    /// Whether a closer look would tell more.
    pub closer: bool,
}

impl Core {
    /// Takes in what was measured, and who has ended.
    pub(super) fn measure(&mut self, record: &Record) {
        match record {
            Record::Observation { now_ns, observation } => self.measured(*now_ns, observation),
            Record::Process { time_ns, entry } if entry.ended() => {
                self.host.limits.remove(&entry.key.tgid);
                if let Some(shared_bytes) = self.processes.end(entry.serial) {
                    self.host_levels.observe_end(Ended {
                        tgid: entry.key.tgid,
                        comm: text(&entry.comm),
                        ended_ns: *time_ns,
                        shared_bytes,
                    });
                }
            }
            Record::Tick { .. } => {
                let ledger = &self.ledger;
                self.processes.retain(|serial| ledger.process(serial).is_some());
            }
            _ => {}
        }
    }

    fn measured(&mut self, now_ns: u64, observation: &Observation) {
        match observation {
            Observation::ProcessMemory(memory) => {
                let process = self.ledger.process(memory.serial);
                let Some(process) = process.filter(|process| !process.ended()) else { return };
                let (booked, pid) = (self.booked(process), process.pid());
                self.processes.observe(now_ns, memory, booked);
                match &memory.limit {
                    Some(limit) => self.host.limits.insert(pid, limit.clone()),
                    None => self.host.limits.remove(&pid),
                };
            }
            // Looked at in full now and then only.
            Observation::Memory(memory) if memory.page_lists_bytes.is_some() => {
                let books = self.host_books();
                self.host_levels.observe(now_ns, memory, books);
            }
            Observation::Device(device) => {
                let ledger = &self.ledger;
                // Of several processes with this id the last one.
                let comm = |pid| {
                    let all = ledger.processes().filter(|process| process.pid() == pid);
                    let entries = all.filter_map(|process| process.entry);
                    let last = entries.max_by_key(|entry| entry.key.start_ns)?;
                    Some(text(&last.comm))
                };
                self.device_levels.observe(now_ns, device, comm);
            }
            Observation::DeviceLost { index } => self.device_levels.lost(*index),
            Observation::UnusedShared(unused) => self.host_levels.observe_unused(now_ns, unused),
            _ => {}
        }
    }

    fn host_books(&self) -> HostBooks {
        let terms = self.ledger.host_terms();
        let locked = [Domain::Pinned, Domain::Managed];
        let of = |domain| terms.get(domain).copied().unwrap_or_default();
        let traced = self.config.domains.contains(&Domain::Pinned);
        HostBooks {
            locked_bytes: traced.then(|| locked.iter().map(|one| of(one).live.bytes).sum()),
            locked_closed_bytes: locked.iter().map(|one| of(one).closed.bytes).sum(),
            shared_bytes: self.processes.shared_bytes(),
        }
    }

    /// What the books have of a process now.
    fn booked(&self, process: &ProcessBooks) -> Booked {
        let on = |domain: Domain| self.config.domains.contains(&domain).then_some(0);
        let entry = process.entry.unwrap_or_default();
        let mut booked = Booked {
            space: entry.space,
            before_attach: process.facts.before_attach,
            heap_bytes: on(Domain::Heap),
            mmap_bytes: on(Domain::Mmap),
            nvml_bytes: self.host.device_bytes(entry.key.tgid),
            parent: self.parent(process),
            ..Booked::default()
        };
        let spaces = process.spaces.iter().filter_map(|id| self.ledger.space(*id));
        for space in spaces.filter(|space| space.closed_ns.is_none()) {
            for (function, totals) in space.totals() {
                let Some((_, domain)) = catalog::name_and_domain(function) else { continue };
                let terms = of_totals(&totals, false);
                booked.calls = booked.calls.wrapping_add(terms.seen.count);
                booked.calls = booked.calls.wrapping_add(terms.freed.count);
                booked.calls = booked.calls.wrapping_add(totals.failures);
                let live = terms.live.bytes;
                let sum = match domain {
                    Domain::Heap => {
                        booked.heap_calls = booked.heap_calls.saturating_add(terms.seen.count);
                        booked.heap_bytes.get_or_insert(0)
                    }
                    Domain::Mmap => booked.mmap_bytes.get_or_insert(0),
                    Domain::Pinned | Domain::Managed => &mut booked.locked_bytes,
                    Domain::Cuda => &mut booked.device_bytes,
                    Domain::Kernel | Domain::CudaIpc | Domain::Torch | Domain::Handles => continue,
                };
                *sum = sum.saturating_add(live);
                if domain != Domain::Cuda {
                    let dropped = terms.dropped.bytes;
                    booked.dropped_bytes = booked.dropped_bytes.saturating_add(dropped);
                }
            }
            let of_device = |function| {
                catalog::name_and_domain(function).is_some_and(|(_, it)| it == Domain::Cuda)
            };
            let sites = space.sites().iter().filter(|site| of_device(site.function));
            let first_ns = sites.map(|site| site.first_ns).min();
            booked.device_since_ns = [booked.device_since_ns, first_ns].into_iter().flatten().min();
        }
        booked
    }

    /// The parent that a process had at first, as far as it has books; asked for where device
    /// memory may be left over.
    fn parent(&self, process: &ProcessBooks) -> Option<ParentBooks> {
        let entry = process.entry?;
        let device = self.host.device_bytes(entry.key.tgid).is_some() || !process.spaces.is_empty();
        if !device || entry.parent_tgid == 0 {
            return None;
        }
        // The id may have been used before and after.
        let candidates = self.ledger.processes().filter(|other| {
            other.pid() == entry.parent_tgid
                && other.entry.is_some_and(|other| other.key.start_ns <= entry.key.start_ns)
        });
        let parent = candidates.max_by_key(|other| other.entry.map(|other| other.key.start_ns))?;
        Some(ParentBooks {
            tgid: parent.pid(),
            comm: text(&parent.entry?.comm),
            ended_ns: parent.ended_ns,
        })
    }

    /// Running processes to be measured now: those that hold most, and of the others the next
    /// ones behind the serial that was last asked for.
    #[must_use]
    pub fn to_measure(&self, largest: usize, others: usize, last: u32) -> Vec<Wanted> {
        let mut all: Vec<(u64, Wanted)> = self
            .ledger
            .processes()
            .filter(|process| !process.ended())
            .filter_map(|process| Some((self.held(process), self.wanted(process)?)))
            .collect();
        all.sort_unstable_by_key(|(held, wanted)| (Reverse(*held), wanted.serial));
        let rest = all.split_off(largest.min(all.len()));
        let mut rest: Vec<Wanted> = rest.into_iter().map(|(_, wanted)| wanted).collect();
        rest.sort_unstable_by_key(|wanted| (wanted.serial <= last, wanted.serial));
        rest.truncate(others);
        all.into_iter().map(|(_, wanted)| wanted).chain(rest).collect()
    }

    fn wanted(&self, process: &ProcessBooks) -> Option<Wanted> {
        let entry = process.entry?;
        let nobody = ProcessFlags::KERNEL_THREAD | ProcessFlags::EXCLUDED | ProcessFlags::SELF;
        (entry.flags & nobody == 0 && entry.key.tgid != 0).then(|| Wanted {
            serial: process.serial,
            tgid: entry.key.tgid,
            start_ns: entry.key.start_ns,
            closer: self.processes.wants_closer(process.serial),
        })
    }

    /// What a process holds, for who comes first: live bytes of library functions, or what NVML
    /// counts, and what was last measured.
    fn held(&self, process: &ProcessBooks) -> u64 {
        let spaces = process.spaces.iter().filter_map(|id| self.ledger.space(*id));
        let live = spaces
            .filter(|space| space.closed_ns.is_none())
            .flat_map(|space| space.totals())
            // What a view holds is in another domain already.
            .filter(|(function, _)| {
                catalog::name_and_domain(*function).is_none_or(|(_, it)| it != Domain::Torch)
            })
            .map(|(_, totals)| totals.live().bytes)
            .fold(0, u64::saturating_add);
        let measured = self.processes.latest(process.serial);
        let device = self.host.device_bytes(process.pid()).unwrap_or(0);
        live.max(device).saturating_add(measured.map_or(0, |memory| memory.private_bytes()))
    }

    /// Whether somebody should look for shared memory that nobody uses.
    pub fn wants_unused(&mut self, now_ns: u64) -> bool {
        self.host_levels.wants_unused(now_ns)
    }

    /// The last measurement of a process, for the picture.
    pub(super) fn latest(&self, process: &ProcessBooks) -> Measured {
        let device_bytes = self.host.device_bytes(process.pid()).filter(|_| !process.ended());
        let Some(memory) = self.processes.latest(process.serial) else {
            return Measured { device_bytes, ..Measured::default() };
        };
        Measured {
            anonymous_bytes: Some(memory.anonymous_bytes),
            swap_bytes: Some(memory.swap_bytes),
            shared_bytes: Some(memory.shared_bytes),
            file_bytes: Some(memory.file_bytes),
            anonymous_huge_bytes: memory.huge_bytes,
            virtual_bytes: Some(memory.virtual_bytes),
            threads: Some(memory.threads),
            device_bytes,
            cgroup_limit_bytes: memory.limit.as_ref().map(|limit| limit.limit_bytes),
            cgroup_used_bytes: memory.limit.as_ref().map(|limit| limit.used_bytes),
        }
    }

    /// Findings of all measurements.
    pub(super) fn measured_findings(&self, now_ns: u64, setting: &Setting) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut each = |said: Said| {
            let process = said.serial.and_then(|serial| self.ledger.process(serial));
            // Where whoever has ended stays until the report, the report is about them.
            let current =
                |process: &ProcessBooks| !process.ended() || self.config.ledger.linger_ns.is_none();
            if said.serial.is_none() || process.is_some_and(current) {
                findings.push(finding::of_measured(&self.host, setting, process, said));
            }
        };
        self.processes.said(now_ns, &mut each);
        self.host_levels.said(now_ns, &mut each);
        self.device_levels.said(now_ns, &mut each);
        self.pools.said(now_ns, &mut each);
        findings
    }
}
