//! Names raw stacks: kernel addresses by the kernel's symbols, user addresses by the files
//! they are in. It never blocks who asks, never decides what a stack means, and never lets a
//! file or a process that hangs take the daemon with it.
//!
//! Three threads, each replaceable: one unwinds copied stacks; one turns user addresses into
//! places in files, at once, because the process may be gone soon; one names places, which can
//! take long.

mod allocator;
mod audit;
mod demangle;
mod doing;
mod elf;
mod files;
mod jit;
mod kernel;
mod learned;
mod mapped;
mod maps;
mod meter;
mod names;
mod native;
mod perfmap;
mod place;
mod scan;
mod separate;
mod sigbus;
mod spaces;
mod symbols;
#[cfg(test)]
mod tests;
mod told;
pub mod unwind;
mod unwinding;

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memtrace_common::ProcessEntry;

use crate::expendable::{Expendable, GivenUp, Limits, Watch, lock};
use crate::host::clock;
use crate::record::{CopiedCall, RawStack, Record, StackKey, StackLabel};
use crate::snapshot::Frame;

use allocator::Allocators;
use doing::Doing;
use learned::Learned;
pub use learned::StepSink;
use mapped::Mapped;
use native::Namer;
use place::{Asked, Placed, PlacedStack, Placer};
pub use spaces::Mapping;
use spaces::Spaces;
use told::Told;
use unwinding::{Job, UnderWay, Unwinding};

/// Most bytes of copied stacks that wait to be unwound.
const MAX_COPIED: usize = 8 << 20;
const TOO_MANY: &str = "stack_budget: too many copied stacks waited to be unwound";

/// What can be chosen.
#[derive(Clone, Debug)]
pub struct StacksOptions {
    /// Patterns of symbols that are marked as an allocator's, beside the built-in list; `*`
    /// stands for anything.
    pub allocators: Vec<String>,
    /// Stacks that may be under way at a time.
    pub under_way: usize,
    /// How long one stack may take before its thread is given up.
    pub deadline: Duration,
}

impl Default for StacksOptions {
    fn default() -> Self {
        // 10 s: the debug information of the largest executables takes seconds to index.
        let deadline = Duration::from_secs(10);
        Self { allocators: Vec::new(), under_way: 4_096, deadline }
    }
}

/// Figures for metrics and `status`, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StacksStatus {
    /// Stacks asked for and taken.
    pub taken: u64,
    /// Stacks not taken, because too many were under way.
    pub refused: u64,
    /// Copied stacks not unwound, because too many were under way.
    pub not_unwound: u64,
    /// Labels delivered.
    pub delivered: u64,
    /// Labels that the receiver had no room for.
    pub undelivered: u64,
    /// Under way now.
    pub under_way: usize,
    /// Threads that hang now.
    pub stuck: usize,
    /// Stacks given up because their thread hung or panicked.
    pub given_up: u64,
    /// Address spaces whose mappings are remembered.
    pub spaces: usize,
}

/// Names raw stacks. Clones share one set of threads; the last one ends them.
#[derive(Clone)]
pub struct Stacks {
    inner: Arc<Inner>,
}

struct Inner {
    spaces: Arc<Mutex<Spaces>>,
    told: Arc<Told>,
    counts: Arc<Counts>,
    learned: Arc<Mutex<Learned>>,
    copied_bytes: Arc<AtomicUsize>,
    first: Expendable<Asked>,
    second: Expendable<PlacedStack>,
    unwinding: Expendable<Job>,
    under_way: usize,
    _watch: Watch,
}

#[derive(Default)]
struct Counts {
    taken: AtomicU64,
    refused: AtomicU64,
    not_unwound: AtomicU64,
    delivered: AtomicU64,
    undelivered: AtomicU64,
    under_way: AtomicUsize,
}

impl Stacks {
    /// Starts the threads. `deliver` gets every label, on one of them; it must not block, and
    /// returns false where it has no room: that is counted, and the stack can be asked for
    /// again. `unwound` gets every call whose stack was to be unwound; it must not block, and
    /// must have room for as many as [`Stacks::unwind`] takes. `steps` is where learned steps
    /// are told.
    ///
    /// # Errors
    /// The system's, when there can be no more threads.
    pub fn start(
        options: StacksOptions,
        deliver: impl Fn(StackLabel) -> bool + Send + Sync + 'static,
        unwound: impl Fn(Record) + Send + Sync + 'static,
        steps: Box<dyn StepSink>,
    ) -> io::Result<Self> {
        let watch = Watch::start("mt-stack-watch")?;
        let spaces = Arc::new(Mutex::new(Spaces::default()));
        let told = Arc::new(Told::default());
        let counts = Arc::new(Counts::default());
        let learned = Arc::new(Mutex::new(Learned::new(steps)));
        let copied_bytes = Arc::new(AtomicUsize::new(0));
        let allocators = Arc::new(Allocators::with(options.allocators));
        let limits = Limits {
            // Both queues are bounded by the number of stacks under way.
            waiting: usize::MAX,
            deadline: options.deadline,
            idle: Duration::from_secs(15),
            stuck: 8,
        };
        let deliver = {
            let counts = Arc::clone(&counts);
            Arc::new(move |label| {
                let count = if deliver(label) { &counts.delivered } else { &counts.undelivered };
                count.fetch_add(1, Relaxed);
                counts.under_way.fetch_sub(1, Relaxed);
            })
        };
        let second = {
            let doing = Arc::new(Doing::default());
            let make = {
                let (doing, allocators) = (Arc::clone(&doing), Arc::clone(&allocators));
                move || Namer::new(doing.thread(), Arc::clone(&allocators))
            };
            let (named, nameless) = (Arc::clone(&deliver), Arc::clone(&deliver));
            Expendable::start(
                &watch,
                "mt-names",
                limits,
                make,
                move |l| named(l),
                move |job, why| {
                    if why != GivenUp::NoThreads && doing.shun() {
                        return Some(job);
                    }
                    nameless(native::unnamed(&job, reason(why)));
                    None
                },
            )?
        };
        let mapped = |doing: &Arc<Doing>| {
            let (spaces, told) = (Arc::clone(&spaces), Arc::clone(&told));
            let doing = Arc::clone(doing);
            move || Mapped::new(Arc::clone(&spaces), Arc::clone(&told), doing.thread())
        };
        let first = {
            let doing = Arc::new(Doing::default());
            let mapped = mapped(&doing);
            let make = move || Placer::new(mapped(), Arc::clone(&allocators));
            let (named, nameless, second) = (Arc::clone(&deliver), deliver, second.clone());
            let pass = move |placed| match placed {
                Placed::Named(label) => named(label),
                Placed::Places(stack) => {
                    if let Err(stack) = second.push(stack) {
                        named(native::unnamed(&stack, reason(GivenUp::NoThreads)));
                    }
                }
            };
            Expendable::start(&watch, "mt-places", limits, make, pass, move |job: Asked, why| {
                if why != GivenUp::NoThreads && doing.shun() {
                    return Some(job);
                }
                nameless(placeless(job.stack.key, job.stack.addresses.len(), reason(why)));
                None
            })?
        };
        let unwinding = {
            let doing = Arc::new(Doing::default());
            let (mapped, learned) = (mapped(&doing), Arc::clone(&learned));
            let make = move || Unwinding::new(mapped(), Arc::clone(&learned));
            let unwound = Arc::new(unwound);
            let gave_up = Arc::clone(&unwound);
            let pass = move |record| unwound(record);
            Expendable::start(&watch, "mt-unwind", limits, make, pass, move |job: Job, why| {
                if why != GivenUp::NoThreads && doing.shun() {
                    return Some(job);
                }
                gave_up(job.under_way.copied.by_frame_pointers(reason(why)));
                None
            })?
        };
        let under_way = options.under_way;
        let inner = Inner {
            spaces,
            told,
            counts,
            learned,
            copied_bytes,
            first,
            second,
            unwinding,
            under_way,
            _watch: watch,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Asks for the names of a stack; never blocks. Every stack that is taken is delivered,
    /// with a reason in each frame that has no name.
    ///
    /// # Errors
    /// Gives the stack back where too many are under way: ask again later.
    pub fn request(&self, stack: RawStack) -> Result<(), RawStack> {
        let counts = &self.inner.counts;
        if counts.under_way.fetch_add(1, Relaxed) < self.inner.under_way {
            match self.inner.first.push(Asked { stack, at: Instant::now() }) {
                Ok(()) => {
                    counts.taken.fetch_add(1, Relaxed);
                    return Ok(());
                }
                Err(asked) => return Err(self.refuse(asked.stack)),
            }
        }
        Err(self.refuse(stack))
    }

    /// Asks for a call's stack to be unwound; never blocks. Every call that is taken is
    /// delivered. Where too many are under way, gives it back with what its frame pointers say.
    #[must_use]
    pub fn unwind(&self, copied: Box<CopiedCall>) -> Option<Record> {
        let refuse = |copied: &CopiedCall| {
            self.inner.counts.not_unwound.fetch_add(1, Relaxed);
            Some(copied.by_frame_pointers(TOO_MANY))
        };
        let under_way = match UnderWay::within(MAX_COPIED, copied, &self.inner.copied_bytes) {
            Ok(under_way) => Arc::new(under_way),
            Err(copied) => return refuse(&copied),
        };
        match self
            .inner
            .unwinding
            .push(Job { under_way: Arc::clone(&under_way), at: Instant::now() })
        {
            Ok(()) => None,
            Err(_) => refuse(&under_way.copied),
        }
    }

    /// A process as a record has it now. Tells a stack's process from a later one with the
    /// same id, and a fork's parent. To be called before stacks of the process are asked for.
    pub fn process(&self, entry: &ProcessEntry) {
        lock(&self.inner.spaces).process(entry);
    }

    /// A new executable mapping, as the kernel's event has it: names processes that end before
    /// /proc can be read.
    pub fn mapping(&self, mapping: &Mapping) {
        let end = mapping.start.saturating_add(mapping.length);
        lock(&self.inner.learned).mapped(mapping.tgid, mapping.start, end);
        lock(&self.inner.spaces).mapping(mapping, clock::boot_ns());
    }

    /// Mapping events were lost.
    pub fn mappings_lost(&self) {
        lock(&self.inner.learned).lost();
    }

    /// All mapping events from before `at` have been handed over: stacks of a process that has
    /// ended by then wait for this.
    pub fn told_until(&self, at: Instant) {
        self.inner.told.until(at);
    }

    /// No stack of this address space will be asked for again.
    pub fn forget(&self, space: u32) {
        lock(&self.inner.learned).forget(space);
        lock(&self.inner.spaces).forget(space);
    }

    /// Figures since the start.
    #[must_use]
    pub fn status(&self) -> StacksStatus {
        let Counts { taken, refused, not_unwound, delivered, undelivered, under_way } =
            &*self.inner.counts;
        let Inner { first, second, unwinding, .. } = &*self.inner;
        let (first, second, third) = (first.stuck(), second.stuck(), unwinding.stuck());
        StacksStatus {
            taken: taken.load(Relaxed),
            refused: refused.load(Relaxed),
            not_unwound: not_unwound.load(Relaxed),
            delivered: delivered.load(Relaxed),
            undelivered: undelivered.load(Relaxed),
            under_way: under_way.load(Relaxed),
            stuck: first.0 + second.0 + third.0,
            given_up: first.1 + second.1 + third.1,
            spaces: lock(&self.inner.spaces).sizes().0,
        }
    }

    fn refuse(&self, stack: RawStack) -> RawStack {
        self.inner.counts.under_way.fetch_sub(1, Relaxed);
        self.inner.counts.refused.fetch_add(1, Relaxed);
        stack
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.first.close();
        self.second.close();
        self.unwinding.close();
    }
}

fn reason(why: GivenUp) -> &'static str {
    match why {
        GivenUp::Late => "not named: it took too long (a file on a dead mount, a stuck process?)",
        GivenUp::Panicked => "not named: its file cannot be read (damaged?)",
        GivenUp::NoThreads => "not named: too many threads hang in files or processes that block",
    }
}

/// A label for a stack of which nothing could be found out.
fn placeless(key: StackKey, frames: usize, why: &str) -> StackLabel {
    let frame = Frame { reason: Some(why.into()), ..Frame::default() };
    let (frames, identity) = (vec![frame; frames], vec!["unmapped".to_owned(); frames]);
    StackLabel { key, frames: frames.into(), identity: identity.into() }
}
