//! A host that is not there: 1,000 processes of 50 programs, each with 10 sites, half of them
//! kernel accounts and half calls, all named.

use std::sync::Arc;

use memtrace_common::bytemuck::{Zeroable, bytes_of, cast_slice};
use memtrace_common::{
    Account, AccountKey, AccountRecord, AllocationRecord, Amount, Context, Domain, FreeReason,
    FreeRecord, KMALLOC, KernelSampleRecord, ProcessEntry, ProcessKey, RecordHeader, RecordKind,
    StackForm, Totals, TotalsKey,
};
use memtrace_daemon::catalog;
use memtrace_daemon::engine::{Core, CoreConfig, Setting};
use memtrace_daemon::intake::{Item, decode};
use memtrace_daemon::record::{Anchor, RawStack, Record, StackLabel, StackOrigin};
use memtrace_daemon::snapshot::{Frame, FrameKind, HostInfo};

/// Processes.
pub const PROCESSES: u32 = 1_000;
/// Sites of all processes.
pub const SITES: u32 = PROCESSES * (ACCOUNTS + CALL_SITES);

const PROGRAMS: u32 = 50;
const ACCOUNTS: u32 = 5;
const CALL_SITES: u32 = 5;
/// Live allocations of each call site.
const LIVE: u64 = 4;
/// Frames of each site, where nothing else is asked for.
const FRAMES: usize = 16;
const SECOND: u64 = 1_000_000_000;
/// Bytes of an object, and of one where every site is to be large enough for a history.
const SMALL: u64 = 1 << 10;
const LARGE: u64 = 1 << 20;
/// Ticks after which the widest tier of a history has had as many windows as it holds: 40 times
/// 64. Each ends one, however long it was.
const OLD_TICKS: u64 = 2_600;
/// Between these ticks. So far apart that cohorts of single windows lie in as many spans as
/// there can be.
const OLD_STEP: u64 = 300 * SECOND;
/// Ticks from one call at each call site to the next.
const CALL_EVERY: u64 = 3;

/// A call and its return addresses.
pub struct CallBytes {
    call: AllocationRecord,
    stack: Vec<u64>,
}

impl CallBytes {
    /// As the ring buffer has them.
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(bytes_of(&self.call));
        bytes.extend_from_slice(cast_slice(&self.stack));
    }
}

/// What is sent again and again.
pub enum Draft {
    /// A call that allocates and the one that frees.
    Call(Box<(CallBytes, FreeRecord)>),
    /// An account.
    Account(Box<AccountRecord>),
    /// An account with a stack.
    Sample(Box<KernelSampleRecord>),
}

/// The core, and what was told to it.
pub struct World {
    /// The core.
    pub core: Core,
    /// Time, monotonic ns.
    pub now_ns: u64,
    next_id: u64,
    function: u16,
    frames: usize,
    /// Of an object.
    bytes: u64,
}

impl World {
    /// Books of all processes and sites.
    pub fn new() -> Self {
        Self::with(FRAMES, SMALL)
    }

    /// The same with stacks of this many frames.
    pub fn with_frames(frames: usize) -> Self {
        Self::with(frames, SMALL)
    }

    /// The same with sites that are all large enough to be judged.
    pub fn of_large_sites() -> Self {
        Self::with(FRAMES, LARGE)
    }

    fn with(frames: usize, bytes: u64) -> Self {
        let domains = vec![Domain::Kernel, Domain::Cuda, Domain::Managed, Domain::Pinned];
        let config = CoreConfig { domains, ..CoreConfig::default() };
        let functions = catalog::library_functions();
        let function = functions.iter().find(|function| function.symbol == "cudaMalloc");
        let function = function.map_or(0, |function| function.id);
        let mut world =
            Self { core: Core::new(config), now_ns: SECOND, next_id: 1, function, frames, bytes };
        for serial in 1..=PROCESSES {
            world.begin(serial);
        }
        world
    }

    fn begin(&mut self, serial: u32) {
        let mut comm = [0; 16];
        let name = format!("program-{}", serial % PROGRAMS);
        comm.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        let key = ProcessKey { start_ns: u64::from(serial), tgid: 1_000 + serial, reserved: 0 };
        let entry = ProcessEntry {
            key,
            serial,
            space: serial,
            space_owner: serial,
            comm,
            version: 1,
            ..ProcessEntry::default()
        };
        self.tell(&Record::Process { time_ns: self.now_ns, entry });
        for site in 0..ACCOUNTS {
            let mut sample = KernelSampleRecord { weight: 1, ..KernelSampleRecord::zeroed() };
            self.fill_sample(&mut sample, serial, site, LIVE);
            self.tell(&Record::KernelSample(Box::new(sample)));
        }
        for site in 0..CALL_SITES {
            for _ in 0..LIVE {
                self.tell_call(serial, site);
            }
        }
        let count = u64::from(CALL_SITES) * LIVE;
        let amount = self.amount(count);
        let totals = Totals { seen: amount, allocated: amount, ..Totals::default() };
        let key = TotalsKey { space: serial, function: u32::from(self.function) };
        self.tell(&Record::Totals { time_ns: self.now_ns, key, totals });
    }

    /// Lets days pass in which every site is used, and holds what it held, until all tiers of
    /// all histories and all cohorts are as large as they get. How many days.
    pub fn grow_old(&mut self) -> f64 {
        let begin_ns = self.now_ns;
        let mut calls: Vec<u64> = Vec::new();
        for tick in 1..=OLD_TICKS {
            self.now_ns += OLD_STEP;
            let now_ns = self.now_ns;
            for (serial, site) in each_site(ACCOUNTS) {
                let mut account = self.account(serial, site, LIVE + tick);
                account.freed = self.amount(tick);
                account.ages = [tick, 0, 0, 0, 0, 0, 0, 0];
                self.tell(&Record::Account { time_ns: now_ns, account });
            }
            if tick.is_multiple_of(CALL_EVERY) {
                let before = std::mem::take(&mut calls);
                for (serial, site) in each_site(CALL_SITES) {
                    calls.push(self.tell_call(serial, site));
                }
                for (id, (space, _)) in before.into_iter().zip(each_site(CALL_SITES)) {
                    self.tell(&Record::Free(self.free(id, space)));
                }
            }
            self.tell(&Record::Tick { now_ns });
        }
        (self.now_ns - begin_ns) as f64 / 86_400e9
    }

    /// Lets the first process hold so many more allocations, at all of its call sites.
    pub fn hold(&mut self, calls: u32) {
        for call in 0..calls {
            self.tell_call(1, call % CALL_SITES);
        }
    }

    /// Tells of an allocation at a call site; its id.
    fn tell_call(&mut self, serial: u32, site: u32) -> u64 {
        let call = self.call(serial, site);
        let mut bytes = Vec::new();
        call.write(&mut bytes);
        let Ok((_, Item::Record(record))) = decode(&bytes) else {
            unreachable!("a record of our own, and a walk is no copy")
        };
        self.tell(&record);
        call.call.id
    }

    fn free(&self, id: u64, space: u32) -> FreeRecord {
        FreeRecord {
            header: header::<FreeRecord>(RecordKind::Free, self.now_ns),
            id,
            bytes: self.bytes,
            space,
            function: u32::from(self.function),
            reason: FreeReason::Freed as u32,
            tid: 1_000 + space,
        }
    }

    fn amount(&self, count: u64) -> Amount {
        Amount { count, bytes: count * self.bytes }
    }

    fn account(&self, serial: u32, site: u32, count: u64) -> Account {
        let mut account = account(serial, site);
        grow(&mut account, self.amount(count));
        account
    }

    /// Applies a record, and names at once the stacks that it asks for.
    fn tell(&mut self, record: &Record) {
        for stack in self.core.apply(record).stacks {
            let label = label(&stack);
            self.core.apply(&Record::Stack(label));
        }
    }

    /// One allocation and its free at each call site.
    pub fn calls(&mut self) -> Vec<Draft> {
        each_site(CALL_SITES)
            .map(|(serial, site)| {
                let bytes = self.call(serial, site);
                let free = self.free(bytes.call.id, serial);
                Draft::Call(Box::new((bytes, free)))
            })
            .collect()
    }

    /// Every kernel account once.
    pub fn accounts(&mut self) -> Vec<Draft> {
        each_site(ACCOUNTS)
            .map(|(serial, site)| {
                let header = header::<AccountRecord>(RecordKind::Account, self.now_ns);
                Draft::Account(Box::new(AccountRecord {
                    header,
                    account: self.account(serial, site, LIVE),
                }))
            })
            .collect()
    }

    /// Every kernel account once, each with a stack.
    pub fn samples(&mut self) -> Vec<Draft> {
        each_site(ACCOUNTS)
            .map(|(serial, site)| {
                let mut sample = KernelSampleRecord { weight: 1, ..KernelSampleRecord::zeroed() };
                self.fill_sample(&mut sample, serial, site, LIVE);
                Draft::Sample(Box::new(sample))
            })
            .collect()
    }

    /// The records as the ring buffer would have them some time later: with new ids and larger
    /// counters, since the books pass over what they have seen. Gives their number as well.
    pub fn encoded(&mut self, drafts: &mut [Draft]) -> (u32, Vec<u8>) {
        self.now_ns += 1_000_000;
        let amount = self.amount(self.now_ns / 1_000_000);
        let (mut records, mut bytes) = (0, Vec::new());
        for draft in drafts {
            match draft {
                Draft::Call(both) => {
                    let (call, free) = both.as_mut();
                    self.next_id += 1;
                    (call.call.id, free.id) = (self.next_id, self.next_id);
                    call.write(&mut bytes);
                    bytes.extend_from_slice(bytes_of(free));
                    records += 1;
                }
                Draft::Account(record) => {
                    grow(&mut record.account, amount);
                    bytes.extend_from_slice(bytes_of(record.as_ref()));
                }
                Draft::Sample(record) => {
                    grow(&mut record.account, amount);
                    bytes.extend_from_slice(bytes_of(record.as_ref()));
                }
            }
            records += 1;
        }
        (records, bytes)
    }

    fn call(&mut self, serial: u32, site: u32) -> CallBytes {
        self.next_id += 1;
        let mut header = header::<AllocationRecord>(RecordKind::Allocation, self.now_ns);
        header.length = (size_of::<AllocationRecord>() + self.frames * size_of::<u64>()) as u32;
        let call = AllocationRecord {
            header,
            id: self.next_id,
            pointer: self.next_id << 12,
            bytes: self.bytes,
            space: serial,
            function: u32::from(self.function),
            tgid: 1_000 + serial,
            tid: 1_000 + serial,
            serial,
            form: StackForm::Walk as u32,
            inner: 0,
        };
        let mut stack = vec![0; self.frames];
        fill(stack.iter_mut(), 0x7f00_0000_0000, serial % PROGRAMS, site);
        CallBytes { call, stack }
    }

    fn fill_sample(&self, sample: &mut KernelSampleRecord, serial: u32, site: u32, count: u64) {
        sample.header = header::<KernelSampleRecord>(RecordKind::KernelSample, self.now_ns);
        sample.account = self.account(serial, site, count);
        sample.tgid = 1_000 + serial;
        sample.kernel_frames = self.frames as u32;
        fill(sample.kernel.iter_mut().take(self.frames), 0xffff_ffff_8100_0000, 0, site);
    }
}

fn each_site(sites: u32) -> impl Iterator<Item = (u32, u32)> {
    // Neighbours in the ring are seldom neighbours in the books.
    (0..sites).flat_map(|site| (1..=PROCESSES).map(move |serial| (serial, site)))
}

fn header<T>(kind: RecordKind, time_ns: u64) -> RecordHeader {
    RecordHeader { kind: kind as u32, length: size_of::<T>() as u32, time_ns }
}

fn account(serial: u32, site: u32) -> Account {
    let mut frames = [0];
    fill(frames.iter_mut(), 0xffff_ffff_8100_0000, 0, site);
    let [call_site] = frames;
    let context_and_function = AccountKey::pack(Context::Process, KMALLOC);
    let key = AccountKey { call_site, detail: 0, serial, context_and_function };
    let slot = serial * ACCOUNTS + site;
    Account { key, slot, sampled: 1, first_ns: SECOND, ..Account::default() }
}

fn grow(account: &mut Account, amount: Amount) {
    account.seen = amount;
    account.allocated = amount;
}

/// Return addresses that differ near the allocator and meet farther out, as those of one
/// program do.
fn fill<'a>(frames: impl Iterator<Item = &'a mut u64>, base: u64, program: u32, site: u32) {
    let program = base + (u64::from(program) << 24);
    for (depth, frame) in (0_u64..).zip(frames) {
        let branch = u64::from(site) >> depth.min(31);
        *frame = program + (depth << 12) + (branch << 6) + 1;
    }
}

/// What the symbolizer would say.
fn label(stack: &RawStack) -> StackLabel {
    let kernel = stack.origin == StackOrigin::Kernel;
    let build_id = format!("{:040x}", 0x0123_4567_89ab_cdef_u64);
    let module: Option<Arc<str>> =
        (!kernel).then(|| "/usr/lib/x86_64-linux-gnu/libprogram.so.1".into());
    let frame = |address: &u64| Frame {
        kind: if kernel { FrameKind::Kernel } else { FrameKind::Native },
        symbol: Some(format!("program::module::function_of_some_length_{address:x}").into()),
        module: module.clone(),
        build_id: module.is_some().then(|| build_id.as_str().into()),
        offset: Some(address & 0xff_ffff),
        file: (!kernel)
            .then(|| format!("/usr/src/program/module/file_{}.rs", address >> 16).into()),
        line: Some((address & 0xfff) as u32),
        ..Frame::default()
    };
    StackLabel {
        key: stack.key,
        frames: stack.addresses.iter().map(frame).collect(),
        identity: stack.addresses.iter().map(|address| format!("{build_id}+{address:x}")).collect(),
    }
}

/// What a snapshot says beside the books.
pub fn setting() -> Setting {
    let wall = memtrace_daemon::host::clock::anchor().wall;
    Setting {
        anchor: Anchor { monotonic_ns: 0, boot_ns: 0, wall },
        attached_at: wall,
        host: HostInfo { name: "host".into(), kernel: "6.18".into(), arch: "x86_64".into() },
    }
}
