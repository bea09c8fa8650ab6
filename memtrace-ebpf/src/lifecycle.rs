//! Processes come and go.
//!
//! Prototypes (include/trace/events/sched.h): `sched_process_exec(p, old_pid, bprm)`,
//! `sched_process_fork(parent, child)`, `sched_process_exit(p, group_dead)` (6.18; before,
//! `sched_process_exit(p)`), `sched_process_free(p)`.

use core::ffi::c_void;

use aya_ebpf::{EbpfContext, macros::btf_tracepoint, programs::BtfTracePointContext};
use memtrace_common::{ProcessEntry, ProcessFlags};

use crate::{
    call_books::Caller,
    globals,
    inflight::Inflight,
    maps::{PROCESSES, TRACED},
    nested::drop_all,
    process::{self, Birth, end, forget_identity, forget_thread, refresh_flags, report},
    task::Task,
};

/// Exec gives a process a new address space: the user books of the old one are closed, unless
/// they belong to a parent with whom it was shared. Calls that it was inside of never return.
#[btf_tracepoint(function = "sched_process_exec")]
pub fn mt_exec(ctx: BtfTracePointContext) -> i32 {
    let executed = executed(&ctx);
    #[cfg(feature = "bpf-log")]
    if executed.is_some() {
        aya_log_ebpf::debug!(&ctx, "a process has executed a program");
    }
    let _ = (ctx, executed);
    0
}

#[inline(always)]
fn executed(ctx: &BtfTracePointContext) -> Option<()> {
    let task = Task::current();
    let key = task.process_key();
    let entry = process::find_or_create(task, &key)?;
    clear_inflight(ctx, task, entry);
    let space = process::next_serial()?;
    // SAFETY: a checked map value. At exec the process has one thread, and this is it.
    unsafe {
        (*entry).space = space;
        (*entry).space_owner = (*entry).serial;
        (*entry).comm = task.leader_comm();
        // A service forks, changes its user and its cgroup, and executes.
        process::refresh_owner(entry);
        refresh_flags(entry);
        (*entry).flags |= ProcessFlags::WHOLE;
        (*entry).version += 1;
    }
    forget_identity();
    report(entry);
    Some(())
}

/// A child starts with empty user books, or with its parent's while they share memory. What
/// `run` and `attach` follow in the parent they follow in the child, and it is in its parent's
/// cgroup until user space says otherwise.
#[btf_tracepoint(function = "sched_process_fork")]
pub fn mt_fork(ctx: BtfTracePointContext) -> i32 {
    forked(Task(ctx.arg::<*const u8>(0)), Task(ctx.arg::<*const u8>(1)));
    0
}

#[inline(always)]
fn forked(parent: Task, child: Task) -> Option<()> {
    if parent.tgid() == child.tgid() {
        return None;
    }
    let of_parent = process::current(Task::current())?;
    let key = child.process_key();
    let mut space = 0;
    let mut owner = 0;
    if child.mm() != 0 && child.mm() == parent.mm() {
        let parent_key = parent.process_key();
        let parent_entry = PROCESSES.get_ptr(&parent_key)?;
        space = of_parent.space;
        // SAFETY: a checked map value.
        owner = unsafe { (*parent_entry).space_owner };
    }
    if globals::policy_active() != 0 {
        process::inherit_policy(&parent.process_key(), &key);
    }
    let birth = Birth {
        flags: of_parent.flags & (ProcessFlags::TRACED | ProcessFlags::WHOLE),
        shared_space: space,
        shared_owner: owner,
        parent_tgid: parent.tgid(),
    };
    process::create(child, &key, &birth)?;
    Some(())
}

/// The end of a thread clears what it was inside of; the end of the last one ends the
/// process. Its descriptors are closed after this: kernel books go on.
#[btf_tracepoint(function = "sched_process_exit")]
pub fn mt_exit(ctx: BtfTracePointContext) -> i32 {
    let task = Task::current();
    let key = task.process_key();
    let Some(entry) = PROCESSES.get_ptr_mut(&key) else { return 0 };
    clear_inflight(&ctx, task, entry);
    let last = if globals::has_group_dead() != 0 {
        ctx.arg::<u64>(1) & 0xff != 0
    } else {
        task.group_live() == 0
    };
    if last {
        end(entry);
        if globals::only_traced() != 0 {
            // Its id may be given to a stranger.
            let _ = TRACED.remove(key.tgid);
        }
    }
    0
}

/// The context of a `bpf_iter__task` program (kernel/bpf/task_iter.c).
#[repr(C)]
pub struct TaskIteration {
    meta: *const c_void,
    task: *const u8,
}

/// Run by user space over all tasks, after it has said whom to trace: notes those processes,
/// so that one that does nothing is on the books too.
///
/// # Safety
///
/// The kernel passes a context of this kind.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
pub unsafe extern "C" fn mt_note_traced(context: *const TaskIteration) -> i32 {
    // SAFETY: the verifier checks the access to the context.
    let task = unsafe { core::ptr::read_volatile(&raw const (*context).task) };
    if !task.is_null() {
        note_traced(Task(task));
    }
    0
}

#[inline(always)]
fn note_traced(task: Task) {
    if task.pid() != task.tgid() || TRACED.get_ptr(task.tgid()).is_none() {
        return;
    }
    let key = task.process_key();
    if PROCESSES.get_ptr(&key).is_some() {
        return;
    }
    let Some(entry) = process::create(task, &key, &Birth::UNKNOWN) else { return };
    // SAFETY: a checked map value. What is asked about the running thread is about memtrace.
    unsafe {
        (*entry).cgroup = 0;
        (*entry).uid = task.uid();
        (*entry).version += 1;
    }
    report(entry);
}

#[inline(always)]
fn clear_inflight(ctx: &BtfTracePointContext, task: Task, entry: *mut ProcessEntry) {
    let inflight = Inflight::of(task, false);
    if inflight.is_null() {
        return;
    }
    // SAFETY: a checked map value.
    let (space, serial) = unsafe { ((*entry).space, (*entry).serial) };
    drop_all(&Caller::new(ctx.as_ptr(), space, serial, 0), inflight);
}

/// The last that is heard of a thread: after its exit it still closes descriptors.
#[btf_tracepoint(function = "sched_process_free")]
pub fn mt_task_free(ctx: BtfTracePointContext) -> i32 {
    forget_thread(Task(ctx.arg::<*const u8>(0)));
    0
}
