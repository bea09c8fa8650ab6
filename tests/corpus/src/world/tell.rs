//! What happens, as records: a call tells at once, kernel accounts, totals and the host's own
//! figures are told at the end of a second, as the daemon hears of them.

use std::collections::BTreeMap;

use memtrace_common::{
    AGE_CLASSES, AccountAgesRecord, Amount, FreeReason, FreeRecord, LossCounter, RecordHeader,
    Totals, TotalsKey,
};
use memtrace_daemon::record::{Call, Observation, Record, Stage};
use memtrace_daemon::snapshot::{Taken, TakenBy};

use super::site::{Kind, Site};
use super::{Block, Event, SECOND, World};

/// Length of age class 0, ns: a window of the engine.
const AGE_NS: u64 = 10 * SECOND;
/// How often ages are told, seconds: once a window.
const WINDOW: u64 = 10;
/// Sites that hold less are not told of: a quarter of what is judged.
const AGES_FROM_BYTES: u64 = 256 << 10;
/// How often the host's figures are told, and those of processes, seconds.
const OBSERVE: u64 = 10;
const MEASURE: u64 = 5;

/// Counters that are told as they are.
#[derive(Debug, Default)]
pub(super) struct Books {
    id: u64,
    totals: BTreeMap<(u32, u32), (Totals, bool)>,
    lost: Option<Vec<LossCounter>>,
}

impl Books {
    pub(super) fn next_id(&mut self) -> u64 {
        self.id += 1;
        self.id
    }
}

impl World {
    /// Sets the loss counters, in the order of `LossCause::ALL`; told at the end of the second.
    pub fn lost(&mut self, counters: Vec<LossCounter>) {
        self.books.lost = Some(counters);
    }

    pub(super) fn tell(&mut self, event: &Event) {
        let Event { at_ns, order: _, free, block } = *event;
        let Self { sites, processes, books, out, .. } = self;
        let Some(site) = sites.get_mut(block.site.0) else { return };
        let Some(entry) = processes.get(site.process.0) else { return };
        let amount = Amount { count: block.count, bytes: block.bytes };
        let call = site.kind != Kind::Kernel;
        if call && entry.ended() {
            return;
        }
        if free {
            site.live_bytes = site.live_bytes.saturating_sub(block.bytes);
            site.frees += block.count;
            site.freed_age_ns = site.freed_age_ns.max(at_ns.saturating_sub(block.born_ns));
        } else {
            site.live_bytes += block.bytes;
            site.allocations += block.count;
        }
        if !call {
            book(site, amount, free, at_ns, block.born_ns);
            return;
        }
        let key = TotalsKey { space: entry.space, function: u32::from(site.function) };
        let (totals, changed) = books.totals.entry((key.space, key.function)).or_default();
        *changed = true;
        if free {
            totals.freed = totals.freed.saturating_add(amount);
            out.push(Record::Free(freed(key, &block, at_ns)));
            return;
        }
        totals.seen = totals.seen.saturating_add(amount);
        totals.allocated = totals.allocated.saturating_add(amount);
        out.push(Record::Allocation(Box::new(Call {
            time_ns: at_ns,
            id: block.id,
            pointer: block.id << 12,
            bytes: block.bytes,
            space: key.space,
            function: key.function,
            tgid: entry.key.tgid,
            tid: entry.key.tgid,
            serial: entry.serial,
            stage: Stage::Whole,
            stack: site.stack.clone(),
            taken: Taken::whole(TakenBy::Copy),
        })));
        out.extend(site.label.take().map(Record::Stack));
    }

    /// Tells what has changed, and that time has passed.
    pub(super) fn flush(&mut self) {
        let now_ns = self.now_ns;
        let second = self.second();
        let mut observations = Vec::new();
        if second % OBSERVE == 1 {
            observations.push(Observation::Memory(self.host_memory()));
        }
        if second % MEASURE == 1 {
            let processes = self.process_memory().into_iter();
            observations.extend(processes.map(Observation::ProcessMemory));
        }
        let Self { sites, books, out, .. } = self;
        observations.extend(books.lost.take().map(Observation::Loss));
        for site in sites.iter_mut().filter(|site| site.changed) {
            site.changed = false;
            out.push(Record::Account { time_ns: now_ns, account: site.account });
            out.extend(site.label.take().map(Record::Stack));
        }
        for ((space, function), (totals, changed)) in &mut books.totals {
            if std::mem::take(changed) {
                let key = TotalsKey { space: *space, function: *function };
                out.push(Record::Totals { time_ns: now_ns, key, totals: *totals });
            }
        }
        let observe = |observation| Record::Observation { now_ns, observation };
        out.extend(observations.into_iter().map(observe));
        out.push(Record::Tick { now_ns });
        // The first tick begins a window of the engine, which ends ten ticks later.
        if second % WINDOW == 1 && second > 1 {
            let old = sites.iter().filter(|site| site.live_bytes >= AGES_FROM_BYTES);
            let kernel = old.filter(|site| site.kind == Kind::Kernel);
            out.extend(kernel.map(|site| Record::AccountAges(ages(site, now_ns))));
        }
    }
}

/// Books kernel objects.
fn book(site: &mut Site, amount: Amount, free: bool, at_ns: u64, born_ns: u64) {
    let account = &mut site.account;
    site.changed = true;
    if free {
        account.freed = account.freed.saturating_add(amount);
        if let Some(ages) = account.ages.get_mut(class(at_ns.saturating_sub(born_ns))) {
            *ages += amount.count;
        }
        let second = born_ns / SECOND;
        if let Some(live) = site.live.get_mut(&second) {
            *live = live.saturating_sub(amount.bytes);
            if *live == 0 {
                site.live.remove(&second);
            }
        }
        return;
    }
    *site.live.entry(at_ns / SECOND).or_default() += amount.bytes;
    account.seen = account.seen.saturating_add(amount);
    account.allocated = account.allocated.saturating_add(amount);
    account.last_ns = at_ns;
    if account.first_ns == 0 {
        account.first_ns = at_ns;
    }
}

/// The class of an age.
fn class(age_ns: u64) -> usize {
    let class = (age_ns / AGE_NS).checked_ilog2().map_or(0, |class| class as usize + 1);
    class.min(AGE_CLASSES - 1)
}

/// How old what is live at a kernel site is.
fn ages(site: &Site, now_ns: u64) -> AccountAgesRecord {
    let mut ages = AccountAgesRecord {
        header: RecordHeader { kind: 0, length: 0, time_ns: now_ns },
        key: site.account.key,
        slot: site.account.slot,
        first_ns: site.account.first_ns,
        scanned_ns: now_ns,
        ..AccountAgesRecord::default()
    };
    for (second, bytes) in &site.live {
        let age_ns = now_ns.saturating_sub((second + 1) * SECOND);
        if let Some(sum) = ages.bytes.get_mut(class(age_ns)) {
            *sum += bytes;
        }
    }
    ages
}

fn freed(key: TotalsKey, block: &Block, at_ns: u64) -> FreeRecord {
    FreeRecord {
        header: RecordHeader { kind: 0, length: 0, time_ns: at_ns },
        id: block.id,
        bytes: block.bytes,
        space: key.space,
        function: key.function,
        reason: FreeReason::Freed as u32,
        tid: 0,
    }
}
