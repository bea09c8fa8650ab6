//! A kernel side for tests: cumulative counters, records that report them, and a wire that
//! loses, delays and repeats records. It counts for itself what the books must come to.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use memtrace_common::bytemuck::Zeroable;
use memtrace_common::{
    Account, AccountKey, Amount, Context, Domain, FreeReason, FreeRecord, KMALLOC,
    KernelSampleRecord, MAX_KERNEL_FRAMES, MAX_USER_FRAMES, ProcessEntry, ProcessKey, RecordHeader,
    Totals, TotalsKey,
};

use rustc_hash::FxHashMap;

use super::{Core, CoreConfig, Setting};
use crate::catalog;
use crate::ledger::{Effects, LedgerConfig, of_account, of_totals};
use crate::record::{Anchor, Call, Observation, RawStack, Record, StackLabel, Stage};
use crate::snapshot::{Frame, HostInfo, Snapshot, Taken, Terms};

pub(super) const SECOND: u64 = 1_000_000_000;

/// What happens to a record on its way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    Arrives,
    IsLost,
    ComesTwice,
    IsLate(u8),
}

/// The kernel side, the wire, and the core at its end.
pub(super) struct World {
    pub(super) core: Core,
    /// Everything that the core was told, for a replay.
    pub(super) told: Vec<Record>,
    pub(super) now_ns: u64,
    pub(super) processes: Vec<ProcessEntry>,
    accounts: BTreeMap<u32, Account>,
    retired: Vec<Account>,
    totals: FxHashMap<TotalsKey, Totals>,
    /// id → (key, bytes) of library allocations in the live map.
    pub(super) calls: BTreeMap<u64, (TotalsKey, u64)>,
    /// (slot, bytes) of kernel allocations in the live map.
    pub(super) objects: Vec<(u32, u64)>,
    late: VecDeque<(u8, Record)>,
    next_id: u64,
    next_space: u32,
}

/// Bounds that make letting go happen within seconds.
pub(super) fn hasty() -> LedgerConfig {
    LedgerConfig {
        linger_ns: Some(5 * SECOND),
        max_ended: 2,
        reap_after_ns: SECOND,
        max_samples: 3,
        max_stacks: 64,
        window_ns: 10 * SECOND,
    }
}

pub(super) fn config(ledger: LedgerConfig) -> CoreConfig {
    let domains = vec![Domain::Kernel, Domain::Cuda, Domain::Managed, Domain::Pinned];
    CoreConfig { domains, ledger, ..CoreConfig::default() }
}

pub(super) fn setting() -> Setting {
    Setting {
        anchor: Anchor {
            wall: "2026-11-01T00:00:00Z".parse().unwrap(),
            monotonic_ns: 0,
            boot_ns: 0,
        },
        attached_at: "2026-11-01T00:00:00Z".parse().unwrap(),
        host: HostInfo { name: "h".into(), kernel: "6.18".into(), arch: "x86_64".into() },
    }
}

/// Allocating functions of the catalog that are on by default.
pub(super) fn allocators() -> Vec<u16> {
    catalog::library_functions().iter().filter(|f| f.allocates()).map(|f| f.id).collect()
}

impl World {
    pub(super) fn new(ledger: LedgerConfig) -> Self {
        Self {
            core: Core::new(config(ledger)),
            told: Vec::new(),
            now_ns: SECOND,
            processes: Vec::new(),
            accounts: BTreeMap::new(),
            retired: Vec::new(),
            totals: FxHashMap::default(),
            calls: BTreeMap::new(),
            objects: Vec::new(),
            late: VecDeque::new(),
            next_id: 1,
            next_space: 1,
        }
    }

    /// Sends a record through the wire.
    pub(super) fn send(&mut self, record: Record, fate: Fate) {
        self.now_ns += 1_000_000;
        for (left, _) in &mut self.late {
            *left = left.saturating_sub(1);
        }
        let due: Vec<_> = self.late.iter().filter(|(left, _)| *left == 0).cloned().collect();
        self.late.retain(|(left, _)| *left > 0);
        for (_, record) in due {
            self.tell(record);
        }
        match fate {
            Fate::Arrives => self.tell(record),
            Fate::IsLost => {}
            Fate::ComesTwice => {
                self.tell(record.clone());
                // A failed call has no id: nothing could tell a second record from a second call.
                if !matches!(record, Record::Failure(_)) {
                    self.tell(record);
                }
            }
            Fate::IsLate(steps) => self.late.push_back((steps.max(1), record)),
        }
    }

    /// Hands a record to the core and does what it asks for.
    pub(super) fn tell(&mut self, record: Record) {
        self.told.push(record.clone());
        let effects = self.core.apply(&record);
        self.obey(effects);
    }

    fn obey(&mut self, effects: Effects) {
        for stack in effects.stacks {
            self.tell(Record::Stack(label(&stack)));
        }
        for (slot, key) in effects.delete_accounts {
            let Some(account) = self.accounts.get(&slot).copied().filter(|a| a.key == key) else {
                continue;
            };
            if account.live().is_zero() {
                self.accounts.remove(&slot);
                self.retired.push(account);
            }
            self.tell(Record::Account { time_ns: self.now_ns, account });
        }
        if !effects.settle_spaces.is_empty() {
            self.live_ids();
        }
        for space in effects.settle_spaces {
            let rows: Vec<_> = self.totals.iter().filter(|(key, _)| key.space == space).collect();
            let rows: Vec<_> = rows.into_iter().map(|(key, totals)| (*key, *totals)).collect();
            for (key, totals) in rows {
                self.tell(Record::Totals { time_ns: self.now_ns, key, totals });
            }
        }
        for space in effects.sweep_spaces {
            self.calls.retain(|_, (key, _)| key.space != space);
        }
    }

    /// Seconds pass, each with a flush of the processes. (Accounts and totals are not flushed
    /// here: the books must come right without, by what is read when things are let go.)
    pub(super) fn tick(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now_ns += SECOND;
            for entry in self.processes.clone() {
                self.tell(Record::Process { time_ns: self.now_ns, entry });
            }
            self.tell(Record::Tick { now_ns: self.now_ns });
        }
    }

    /// Sends everything once more, as the flush does, and the ids after a loss. What was late
    /// arrives before.
    pub(super) fn flush(&mut self) {
        for (_, record) in std::mem::take(&mut self.late) {
            self.tell(record);
        }
        self.now_ns += 1_000_000;
        for entry in self.processes.clone() {
            self.tell(Record::Process { time_ns: self.now_ns, entry });
        }
        for account in self.accounts.values().copied().collect::<Vec<_>>() {
            self.tell(Record::Account { time_ns: self.now_ns, account });
        }
        for (key, totals) in self.totals.clone() {
            self.tell(Record::Totals { time_ns: self.now_ns, key, totals });
        }
        self.live_ids();
    }

    fn live_ids(&mut self) {
        let observation = Observation::LiveIds {
            next_id: self.next_id,
            ids: self.calls.keys().copied().collect(),
        };
        self.tell(Record::Observation { now_ns: self.now_ns, observation });
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.core.snapshot(self.now_ns, &setting())
    }

    /// Starts a process: with memory of its own, or (vfork) in its parent's.
    pub(super) fn start(&mut self, parent: Option<usize>, shared: bool, fate: Fate) -> usize {
        let serial = u32::try_from(self.processes.len() + 1).unwrap();
        let mut entry = ProcessEntry {
            key: ProcessKey { start_ns: self.now_ns, tgid: 1_000 + serial, reserved: 0 },
            serial,
            space: self.next_space,
            space_owner: serial,
            comm: *b"app\0\0\0\0\0\0\0\0\0\0\0\0\0",
            version: 1,
            ..ProcessEntry::default()
        };
        match parent.map(|parent| self.processes[parent]) {
            Some(parent) if shared => {
                entry.space = parent.space;
                entry.space_owner = parent.space_owner;
            }
            _ => self.next_space += 1,
        }
        entry.parent_tgid = parent.map_or(0, |parent| self.processes[parent].key.tgid);
        self.processes.push(entry);
        self.send(Record::Process { time_ns: self.now_ns, entry }, fate);
        self.processes.len() - 1
    }

    pub(super) fn running(&self, process: usize) -> bool {
        self.processes.get(process).is_some_and(|entry| !entry.ended())
    }

    pub(super) fn exec(&mut self, process: usize, fate: Fate) {
        let space = self.next_space;
        self.next_space += 1;
        let entry = &mut self.processes[process];
        entry.space = space;
        entry.space_owner = entry.serial;
        self.changed(process, fate);
    }

    pub(super) fn end(&mut self, process: usize, fate: Fate) {
        self.processes[process].ended_ns = self.now_ns;
        self.changed(process, fate);
    }

    fn changed(&mut self, process: usize, fate: Fate) {
        let entry = &mut self.processes[process];
        entry.version += 1;
        let entry = *entry;
        self.send(Record::Process { time_ns: self.now_ns, entry }, fate);
    }

    fn slot(&mut self, key: AccountKey) -> u32 {
        if let Some((slot, _)) = self.accounts.iter().find(|(_, account)| account.key == key) {
            return *slot;
        }
        let slot = (1..).find(|slot| !self.accounts.contains_key(slot)).unwrap();
        let first_ns = self.now_ns;
        self.accounts.insert(slot, Account { key, slot, first_ns, ..Account::default() });
        slot
    }

    /// Takes kernel memory; `serial` 0 is an interrupt.
    pub(super) fn kmalloc(&mut self, serial: u32, call_site: u64, bytes: u64, fate: Fate) {
        let context = if serial == 0 { Context::Interrupt } else { Context::Process };
        let key = AccountKey {
            call_site,
            detail: 0,
            serial,
            context_and_function: AccountKey::pack(context, KMALLOC),
        };
        let slot = self.slot(key);
        let now_ns = self.now_ns;
        let account = self.accounts.get_mut(&slot).unwrap();
        add(&mut account.seen, bytes);
        add(&mut account.allocated, bytes);
        account.last_ns = now_ns;
        let account = *account;
        self.objects.push((slot, bytes));
        let mut sample = KernelSampleRecord::zeroed();
        sample.header = header(now_ns);
        sample.account = account;
        sample.weight = bytes;
        sample.tgid = 1_000 + serial;
        sample.kernel_frames = 4;
        sample.kernel = frames::<MAX_KERNEL_FRAMES>(&[7, 8, call_site, call_site + bytes % 3]);
        sample.user_frames = 1;
        sample.user = frames::<MAX_USER_FRAMES>(&[0x40]);
        self.send(Record::KernelSample(Box::new(sample)), fate);
    }

    pub(super) fn kfree(&mut self, pick: usize, fate: Fate) {
        let (slot, bytes) = self.objects.swap_remove(pick);
        let account = self.accounts.get_mut(&slot).unwrap();
        add(&mut account.freed, bytes);
        let account = *account;
        self.send(Record::Account { time_ns: self.now_ns, account }, fate);
    }

    /// A library call that succeeds; with `followed` false the live map was full.
    pub(super) fn call(
        &mut self,
        process: usize,
        function: u16,
        caller: u64,
        bytes: u64,
        followed: bool,
        fate: Fate,
    ) {
        let entry = self.processes[process];
        let key = TotalsKey { space: entry.space, function: u32::from(function) };
        let totals = self.totals.entry(key).or_default();
        add(&mut totals.seen, bytes);
        if !followed {
            add(&mut totals.dropped, bytes);
            return;
        }
        add(&mut totals.allocated, bytes);
        let id = self.next_id;
        self.next_id += 1;
        self.calls.insert(id, (key, bytes));
        let call = self.call_record(&entry, key, id, caller, bytes);
        if caller % 2 == 1 {
            // Its stack is unwound first, and comes when it comes.
            let pending = Call { stage: Stage::Pending, stack: [].into(), ..call.clone() };
            self.send(Record::Allocation(Box::new(pending)), Fate::Arrives);
        }
        let stage = if caller % 2 == 1 { Stage::Unwound } else { Stage::Whole };
        self.send(Record::Allocation(Box::new(Call { stage, ..call })), fate);
    }

    pub(super) fn fail(&mut self, process: usize, function: u16, caller: u64, fate: Fate) {
        let entry = self.processes[process];
        let key = TotalsKey { space: entry.space, function: u32::from(function) };
        self.totals.entry(key).or_default().failures += 1;
        let call = self.call_record(&entry, key, 0, caller, 1 << 40);
        self.send(Record::Failure(Box::new(call)), fate);
    }

    fn call_record(
        &self,
        entry: &ProcessEntry,
        key: TotalsKey,
        id: u64,
        caller: u64,
        bytes: u64,
    ) -> Call {
        Call {
            time_ns: self.now_ns,
            id,
            pointer: id << 12,
            bytes,
            space: key.space,
            function: key.function,
            tgid: entry.key.tgid,
            tid: entry.key.tgid,
            serial: entry.serial,
            stage: Stage::Whole,
            stack: [0x1000 + caller, 0x2000].into(),
            taken: Taken::default(),
        }
    }

    pub(super) fn free(&mut self, id: u64, reason: FreeReason, fate: Fate) {
        let (key, bytes) = self.calls.remove(&id).unwrap();
        let totals = self.totals.get_mut(&key).unwrap();
        match reason {
            FreeReason::Freed => add(&mut totals.freed, bytes),
            FreeReason::FreedUnseen => add(&mut totals.freed_unseen, bytes),
            FreeReason::Closed => add(&mut totals.closed, bytes),
        }
        let free = FreeRecord {
            header: header(self.now_ns),
            id,
            bytes,
            space: key.space,
            function: key.function,
            reason: reason as u32,
            tid: 0,
        };
        self.send(Record::Free(free), fate);
    }

    /// A device is reset: what one process holds of some functions is closed, one by one.
    pub(super) fn reset(&mut self, space: u32, fate: Fate) {
        let bound = |key: &TotalsKey| key.space == space && key.function % 2 == 1;
        let calls = self.calls.iter().filter(|(_, (key, _))| bound(key));
        for id in calls.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.free(id, FreeReason::Closed, fate);
        }
    }

    pub(super) fn totals(&mut self, fate: Fate) {
        for (key, totals) in self.totals.clone() {
            self.send(Record::Totals { time_ns: self.now_ns, key, totals }, fate);
        }
    }

    /// Whether nobody runs in an address space any more.
    pub(super) fn space_closed(&self, space: u32) -> bool {
        !self.processes.iter().any(|entry| entry.space == space && !entry.ended())
    }

    /// What the host's terms must be, counted here and not by the books.
    pub(super) fn expected(&self) -> BTreeMap<&'static str, Terms> {
        let mut expected: BTreeMap<&'static str, Terms> = BTreeMap::new();
        for account in self.accounts.values().chain(&self.retired) {
            expected.entry("kernel").or_default().add(&of_account(account));
        }
        for (key, totals) in &self.totals {
            let (_, domain) = catalog::name_and_domain(key.function as u16).unwrap();
            let terms = of_totals(totals, self.space_closed(key.space));
            expected.entry(domain.name()).or_default().add(&terms);
        }
        expected.retain(|_, terms| *terms != Terms::default());
        expected
    }
}

/// Names a stack so that some different addresses are the same site.
pub(super) fn label(stack: &RawStack) -> StackLabel {
    let names: Vec<String> =
        stack.addresses.iter().map(|address| format!("f{}", address & !1)).collect();
    let frame = |name: &String| Frame { symbol: Some(name.as_str().into()), ..Frame::default() };
    StackLabel {
        key: stack.key,
        frames: names.iter().map(frame).collect(),
        identity: Arc::from(names),
    }
}

fn add(amount: &mut Amount, bytes: u64) {
    *amount = amount.saturating_add(Amount { count: 1, bytes });
}

pub(super) fn header(time_ns: u64) -> RecordHeader {
    RecordHeader { kind: 0, length: 0, time_ns }
}

fn frames<const N: usize>(used: &[u64]) -> [u64; N] {
    let mut frames = [0; N];
    frames[..used.len()].copy_from_slice(used);
    frames
}
