//! Sites: where a process takes memory, and the truth about them.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use memtrace_common::{Account, AccountKey, Context, Domain, FunctionId, KMALLOC, ProcessEntry};
use memtrace_daemon::catalog::{self, AllocatorRow, FreeRow};
use memtrace_daemon::ledger::{RowKey, site};
use memtrace_daemon::record::{StackKey, StackLabel};
use memtrace_daemon::snapshot::{Frame, FrameKind};
use serde::Deserialize;

use super::ProcessId;

/// The catalog has no function of the heap: an allocator as a configuration declares it.
const DECLARED: &str = "
[[allocator]]
library = 'libpool.so'
symbol = 'pool_take'
domain = 'heap'
pointers = 'pool'
size = 0
pointer = 'return'

[[free]]
library = 'libpool.so'
symbol = 'pool_give'
domain = 'heap'
pointers = 'pool'
success = 'always'
";

/// Declares it, once.
static HEAP: LazyLock<Result<(), String>> = LazyLock::new(|| {
    let Declared { allocator, free } =
        toml::from_str(DECLARED).map_err(|error| error.to_string())?;
    catalog::declare(&allocator, &free)
});

#[derive(Deserialize)]
struct Declared {
    allocator: Vec<AllocatorRow>,
    free: Vec<FreeRow>,
}

/// Which site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(pub(super) usize);

/// What gives the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// kmalloc: books once a second, objects in batches.
    Kernel,
    /// A library function, by its name in the catalog: a record a call.
    Library(&'static str),
}

impl Kind {
    /// Device memory.
    pub const DEVICE: Self = Self::Library("cudaMalloc");
    /// Page-locked memory.
    pub const PINNED: Self = Self::Library("cudaHostAlloc");
    /// A process' own memory, page-locked.
    pub const REGISTERED: Self = Self::Library("cudaHostRegister");
    /// Managed memory.
    pub const MANAGED: Self = Self::Library("cudaMallocManaged");
    /// Device memory from the driver.
    pub const DRIVER: Self = Self::Library("cuMemAlloc_v2");
    /// The heap, by an allocator that is declared.
    pub const HEAP: Self = Self::Library("pool_take");

    /// The id of the function; 0 for a name that the catalog does not have.
    #[must_use]
    pub fn function(self) -> FunctionId {
        match self {
            Self::Kernel => KMALLOC,
            Self::Library(name) => {
                let _ = LazyLock::force(&HEAP);
                let found = catalog::library_functions().iter().find(|row| row.symbol == name);
                found.map_or(0, |row| row.id)
            }
        }
    }

    /// The domain that it is booked in.
    #[must_use]
    pub fn domain(self) -> Domain {
        catalog::name_and_domain(self.function()).map_or(Domain::Kernel, |(_, domain)| domain)
    }
}

/// One site of one process.
#[derive(Debug)]
pub struct Site {
    /// Whose.
    pub process: ProcessId,
    /// What gives the memory.
    pub kind: Kind,
    /// The row of the books that it is.
    pub row: RowKey,
    /// Its id in dumps.
    pub id: u64,
    /// Live bytes.
    pub live_bytes: u64,
    /// Objects allocated, and freed.
    pub allocations: u64,
    /// Objects freed.
    pub frees: u64,
    /// Truth: how old the oldest was that was freed, ns.
    pub freed_age_ns: u64,
    /// Truth: whether blocks are freed because they were copied into larger ones.
    pub moves: bool,
    /// Truth: bytes that nobody will give back.
    pub lost_bytes: u64,
    /// Truth: when the first of them was taken.
    pub growth_ns: Option<u64>,
    /// Truth: windows since then in which there was nothing to do all the time.
    pub rested: u64,
    /// Seconds of the present window in which there was nothing to do.
    pub(super) off: u64,
    /// Objects that come at once.
    pub(super) batch: u64,
    /// Which place in the program: the same in all of its processes.
    pub(super) code: u64,
    pub(super) function: FunctionId,
    pub(super) stack: Arc<[u64]>,
    pub(super) account: Account,
    pub(super) changed: bool,
    /// Live bytes by the second in which they were taken, of a kernel site.
    pub(super) live: BTreeMap<u64, u64>,
    /// The name of its stack, until it has been told.
    pub(super) label: Option<StackLabel>,
}

impl Site {
    /// Objects that come at once.
    #[must_use]
    pub const fn batch(&self) -> u64 {
        self.batch
    }

    pub(super) fn new(
        process: ProcessId,
        entry: &ProcessEntry,
        kind: Kind,
        batch: u64,
        slot: u32,
        code: u64,
    ) -> Self {
        let function = kind.function();
        let kernel = kind == Kind::Kernel;
        // The code is the same in every process of a program; sites count from where it begins.
        let address = 0x40_0000 + code * 0x40;
        let call_site = 0xffff_ffff_8100_0000 + code * 0x100;
        let stack: Arc<[u64]> =
            if kernel { [call_site].into() } else { [address, 0x40_0010].into() };
        let key = AccountKey {
            call_site,
            detail: 0,
            serial: entry.serial,
            context_and_function: AccountKey::pack(Context::Process, function),
        };
        let (row, stack_key) = if kernel {
            let row = RowKey::Account {
                serial: key.serial,
                context_and_function: key.context_and_function,
                call_site,
                detail: 0,
            };
            (row, StackKey::kernel(&stack))
        } else {
            let stack = StackKey::user(entry.space, &stack);
            (RowKey::Call { space: entry.space, function, stack: stack.0 }, stack)
        };
        let names: Vec<String> = stack.iter().map(|address| format!("app+{address:#x}")).collect();
        let frame = |name: &String| Frame {
            kind: if kernel { FrameKind::Kernel } else { FrameKind::Native },
            symbol: Some(name.as_str().into()),
            ..Frame::default()
        };
        let label = StackLabel {
            key: stack_key,
            frames: names.iter().map(frame).collect(),
            identity: names.into(),
        };
        let (name, domain) =
            catalog::name_and_domain(function).unwrap_or(("kmalloc", Domain::Kernel));
        Self {
            process,
            kind,
            row,
            id: site::site_id(domain.name(), name, site::digest(&label.identity)),
            live_bytes: 0,
            allocations: 0,
            frees: 0,
            freed_age_ns: 0,
            moves: false,
            lost_bytes: 0,
            growth_ns: None,
            rested: 0,
            off: 0,
            batch: if kernel { batch.max(1) } else { 1 },
            function,
            stack,
            account: Account { key, slot, ..Account::default() },
            code,
            changed: false,
            live: BTreeMap::new(),
            label: Some(label),
        }
    }
}
