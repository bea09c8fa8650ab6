//! Who a thread is: serial of its process and books of its address space, remembered by
//! thread so that the hot path asks once.

use aya_ebpf::helpers::{
    bpf_get_current_pid_tgid, bpf_get_current_uid_gid,
    generated::{bpf_get_current_cgroup_id, bpf_ktime_get_boot_ns},
};
use memtrace_common::{
    LossCause, Policy, ProcessEntry, ProcessFlags, ProcessKey, ProcessRecord, RecordKind,
};

use crate::{
    atomic,
    emit::emit,
    globals,
    loss::lost,
    maps::{IDENTITY, POLICY_COMM, POLICY_PROCESS, POLICY_UID, PROCESSES, TRACED, control},
    task::Task,
};

const BPF_NOEXIST: u64 = 1;

/// What is remembered about a thread. In a preallocated map by thread id rather than in task
/// storage: making storage allocates kernel memory, which would fire our own programs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Identity {
    /// Start of the thread, ns since boot: thread ids are used again.
    pub start_ns: u64,
    /// Serial of its process; 0 while not known.
    pub serial: u32,
    /// Books of its address space.
    pub space: u32,
    /// [`ProcessFlags`].
    pub flags: u32,
    /// `Control::generation` when this was looked up.
    pub generation: u32,
}

impl Identity {
    /// Whether what it allocates is booked.
    #[inline(always)]
    pub fn booked(&self) -> bool {
        self.flags & (ProcessFlags::EXCLUDED | ProcessFlags::SELF) == 0
            && (globals::only_traced() == 0 || self.flags & ProcessFlags::TRACED != 0)
    }
}

/// In whose books a thread's calls are.
#[derive(Clone, Copy)]
pub struct Books {
    pub space: u32,
    pub serial: u32,
    /// [`booked_since`] at the time.
    pub known: u64,
    /// 1 where nothing that the process did has been missed.
    pub whole: u64,
}

/// A number, never 0, that is another one whenever user space has changed what is booked; `None`
/// while nothing is.
#[inline(always)]
pub fn booked_since() -> Option<u64> {
    let control = control()?;
    // SAFETY: a checked map value.
    let (generation, stopped) = unsafe { ((*control).generation, (*control).stopped) };
    (stopped == 0).then_some(generation << 1 | 1)
}

/// The identity of the running thread; `None`, counted, where it cannot be found out.
#[inline(always)]
pub fn current(task: Task) -> Option<Identity> {
    let control = control()?;
    // SAFETY: a checked map value.
    let generation = unsafe { (*control).generation } as u32;
    let tid = bpf_get_current_pid_tgid() as u32;
    if let Some(identity) = IDENTITY.get_ptr(tid) {
        // SAFETY: a checked map value, which only this thread writes.
        let identity = unsafe { *identity };
        if identity.generation == generation
            && identity.serial != 0
            && identity.start_ns == task.start_ns()
        {
            return Some(identity);
        }
    }
    look_up(task, tid, generation)
}

#[inline(never)]
fn look_up(task: Task, tid: u32, generation: u32) -> Option<Identity> {
    let key = task.process_key();
    let entry = find_or_create(task, &key)?;
    refresh_flags(entry);
    // SAFETY: a checked map value.
    let identity = unsafe {
        Identity {
            start_ns: task.start_ns(),
            serial: (*entry).serial,
            space: (*entry).space,
            flags: (*entry).flags,
            generation,
        }
    };
    // If there is no room it is looked up again next time, which is only slower.
    let _ = IDENTITY.insert(tid, &identity, 0);
    Some(identity)
}

/// Makes the running thread look itself up again at its next event.
#[inline(always)]
pub fn forget_identity() {
    let _ = IDENTITY.remove(bpf_get_current_pid_tgid() as u32);
}

/// A thread is gone for good: its id may be given to another.
#[inline(always)]
pub fn forget_thread(task: Task) {
    let _ = IDENTITY.remove(task.pid());
}

/// The entry of a process, made if there is none.
#[inline(never)]
pub fn find_or_create(task: Task, key: &ProcessKey) -> Option<*mut ProcessEntry> {
    if let Some(entry) = PROCESSES.get_ptr_mut(key) {
        return Some(entry);
    }
    create(task, key, &Birth::UNKNOWN)
}

/// What is known of how a process came to be.
pub struct Birth {
    /// [`ProcessFlags`] that it inherits.
    pub flags: u32,
    /// Books of another that it uses while it shares its memory; 0 for its own.
    pub shared_space: u32,
    /// Whose they are.
    pub shared_owner: u32,
    /// Thread group of its parent.
    pub parent_tgid: u32,
}

impl Birth {
    /// Of a process that was there already.
    pub const UNKNOWN: Self = Self { flags: 0, shared_space: 0, shared_owner: 0, parent_tgid: 0 };
}

/// Makes the entry of a process.
#[inline(always)]
pub fn create(task: Task, key: &ProcessKey, birth: &Birth) -> Option<*mut ProcessEntry> {
    let serial = next_serial()?;
    let mut entry = ProcessEntry {
        key: *key,
        serial,
        space: serial,
        space_owner: serial,
        parent_tgid: birth.parent_tgid,
        // SAFETY: no arguments.
        cgroup: unsafe { bpf_get_current_cgroup_id() },
        uid: bpf_get_current_uid_gid() as u32,
        flags: birth.flags,
        ended_ns: 0,
        comm: task.leader_comm(),
        version: 1,
        reported: 0,
    };
    if birth.shared_space != 0 {
        entry.space = birth.shared_space;
        entry.space_owner = birth.shared_owner;
    }
    if task.is_kernel_thread() {
        entry.flags |= ProcessFlags::KERNEL_THREAD;
    }
    let made = PROCESSES.insert(key, &entry, BPF_NOEXIST);
    let Some(found) = PROCESSES.get_ptr_mut(key) else {
        lost(LossCause::UnknownProcess, 0);
        return None;
    };
    if made.is_ok() {
        refresh_flags(found);
        report(found);
    }
    Some(found)
}

/// A number never given before, for a process or an address space.
#[inline(always)]
pub fn next_serial() -> Option<u32> {
    let control = control()?;
    // SAFETY: a checked map value. User space starts the counter at 1.
    Some(unsafe { atomic::fetch_add(&raw mut (*control).next_serial, 1) } as u32)
}

/// Notes whom the running process belongs to now.
#[inline(always)]
pub fn refresh_owner(entry: *mut ProcessEntry) {
    // SAFETY: a checked map value; helpers without arguments.
    unsafe {
        (*entry).uid = bpf_get_current_uid_gid() as u32;
        (*entry).cgroup = bpf_get_current_cgroup_id();
    }
}

/// Decides anew whether a process is traced or left out.
#[inline(always)]
pub fn refresh_flags(entry: *mut ProcessEntry) {
    // SAFETY: a checked map value.
    unsafe {
        let mut flags = (*entry).flags & !ProcessFlags::EXCLUDED;
        let tgid = (*entry).key.tgid;
        if u64::from(tgid) == globals::self_tgid() {
            flags |= ProcessFlags::SELF;
        }
        if globals::only_traced() != 0 && TRACED.get_ptr(tgid).is_some() {
            flags |= ProcessFlags::TRACED;
        }
        if globals::policy_active() != 0 && excluded(entry) {
            flags |= ProcessFlags::EXCLUDED;
        }
        (*entry).flags = flags;
    }
}

#[inline(always)]
fn excluded(entry: *mut ProcessEntry) -> bool {
    // SAFETY: a checked map value.
    let (comm, uid, key) = unsafe { ((*entry).comm, (*entry).uid, (*entry).key) };
    let mut said = 0;
    // SAFETY: values of preallocated maps that only user space changes.
    unsafe {
        said |= POLICY_COMM.get(comm).copied().unwrap_or(0);
        said |= POLICY_UID.get(uid).copied().unwrap_or(0);
        said |= POLICY_PROCESS.get(key).copied().unwrap_or(0);
    }
    if said & Policy::EXCLUDE != 0 {
        return true;
    }
    said & Policy::INCLUDE == 0 && globals::policy_default_exclude() != 0
}

/// What user space has decided about a process holds for its child from the beginning.
#[inline(always)]
pub fn inherit_policy(parent: &ProcessKey, child: &ProcessKey) {
    // SAFETY: a value of a preallocated map that only user space and a fork change.
    if let Some(said) = unsafe { POLICY_PROCESS.get(parent) } {
        let said = *said;
        // If there is no room user space decides when it has seen the child.
        let _ = POLICY_PROCESS.insert(child, &said, 0);
    }
}

/// Sends the entry; what the ring does not accept, the flush sends again. Whether it did. Of a
/// process that `run` and `attach` do not follow nobody wants to hear.
#[inline(always)]
pub fn report(entry: *mut ProcessEntry) -> bool {
    // SAFETY: a checked map value and reserved memory of the record's size.
    unsafe {
        if globals::only_traced() != 0 && (*entry).flags & ProcessFlags::TRACED == 0 {
            return true;
        }
        let version = (*entry).version;
        let accepted = emit(RecordKind::Process, |record: *mut ProcessRecord| {
            core::ptr::copy_nonoverlapping(entry, &raw mut (*record).entry, 1);
        });
        if accepted {
            (*entry).reported = version;
        }
        accepted
    }
}

/// Notes that the last thread of a process has ended.
#[inline(always)]
pub fn end(entry: *mut ProcessEntry) {
    // SAFETY: a checked map value.
    unsafe {
        (*entry).ended_ns = bpf_ktime_get_boot_ns();
        (*entry).version += 1;
    }
    report(entry);
}
