//! Calls that a thread is inside of: a small stack in task storage, because threads sleep
//! inside calls and uprobe programs can be preempted.

use aya_ebpf::helpers::generated::bpf_task_storage_get;
use memtrace_common::{
    CallLive, ProcessFlags,
    tunables::{INFLIGHT_DEPTH, PENDING_INNER},
};

use crate::{
    arch,
    maps::INFLIGHT,
    process::{self, Books},
    task::Task,
};

const BPF_LOCAL_STORAGE_GET_F_CREATE: u64 = 1;

/// One call that has been entered and has not returned.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Frame {
    /// Stack pointer at entry.
    pub stack_pointer: u64,
    /// Where it returns to; the trampoline of return probes for a tail call.
    pub return_address: u64,
    /// The probed address.
    pub address: u64,
    /// Which attachment of which function.
    pub cookie: u64,
    /// The arguments of the size rule and of the pointer rule.
    pub size_a: u64,
    pub size_b: u64,
    pub pointer: u64,
    /// The argument of the device rule.
    pub device: u64,
    /// Where an array is described, and the two arguments behind it.
    pub described: [u64; 3],
    /// Families that fold into this call; 0 for a free.
    pub folds: u32,
    /// [`Frame::FREE`] and those that follow it.
    pub flags: u32,
    /// When it was entered, monotonic ns.
    pub entered_ns: u64,
    /// Of a free: the entry that was set aside.
    pub taken: CallLive,
    /// Of an allocation: whose turn it is in `pending`.
    pub turn: u64,
    /// Of an allocation: the first id of an inner one that was booked on its own for want of
    /// room in `pending`; 0 if none was.
    pub settled_from: u64,
    /// Of an allocation: inner allocations that wait for its pointer.
    pub pending: [Pending; PENDING_INNER],
}

/// An inner allocation that waits for the pointer of its outer call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pending {
    /// What it gave; 0 is none.
    pub pointer: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its id in the live map, where it is marked as pending; 0 if that had no room.
    pub id: u64,
    /// Where the inner call returned to.
    pub caller: u64,
    /// The inner function.
    pub function: u32,
    /// Class of its pointer.
    pub class: u32,
}

impl Frame {
    /// A call that frees.
    pub const FREE: u32 = 1;
    /// A free inside a free of the same memory: the outer one decides.
    pub const INNER: u32 = 2;
    /// `taken` is valid.
    pub const TAKEN: u32 = 4;
    /// Memory that is counted by references.
    pub const COUNTED: u32 = 8;
    /// A reset of a device.
    pub const RESET: u32 = 16;

    /// Has no inner allocation wait. Word by word, as [`copy_call`](crate::live::copy_call).
    #[inline(always)]
    pub unsafe fn clear_pending(this: *mut Self) {
        // SAFETY: the caller passes checked storage.
        unsafe {
            (&raw mut (*this).turn).write_volatile(0);
            (&raw mut (*this).settled_from).write_volatile(0);
            let mut index = 0;
            while index < PENDING_INNER {
                let place = (&raw mut (*this).pending).cast::<Pending>().add(index);
                (&raw mut (*place).pointer).write_volatile(0);
                (&raw mut (*place).id).write_volatile(0);
                index += 1;
            }
        }
    }
}

/// The stack of a thread.
#[repr(C)]
pub struct Inflight {
    /// Frames in use.
    pub depth: u64,
    /// The trampoline of return probes in its address space; 0 while not known.
    pub trampoline: u64,
    /// Books of its address space and serial of its process, as of the last entry: exec, which
    /// alone changes them, drops all frames.
    pub space: u32,
    pub serial: u32,
    /// [`process::booked_since`] when those were found out; 0 where they are to be found out again.
    pub known: u64,
    /// The device and the context that the thread is in, as [`context`](crate::context) has them.
    pub place: u32,
    /// Those that it comes back to.
    pub below: [u32; BELOW],
    /// 1 where nothing that its process did has been missed.
    pub whole: u64,
    /// The static probe that fired last.
    pub fired: Fired,
    /// Outermost first.
    pub frames: [Frame; INFLIGHT_DEPTH],
}

/// Contexts below the one that a thread is in that are remembered.
pub const BELOW: usize = 3;
/// A firing of a static probe.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Fired {
    /// Its place; 0 is none.
    pub address: u64,
    /// Stack pointer.
    pub stack_pointer: u64,
    /// The attachment that told it.
    pub attachment: u64,
}

impl Fired {
    /// None.
    pub const NONE: Self = Self { address: 0, stack_pointer: 0, attachment: 0 };
}

const _: () = assert!(INFLIGHT_DEPTH.is_power_of_two());

impl Inflight {
    /// The stack of a thread; null where there is none, or no memory for one.
    #[inline(always)]
    pub fn of(task: Task, create: bool) -> *mut Self {
        let flags = if create { BPF_LOCAL_STORAGE_GET_F_CREATE } else { 0 };
        // SAFETY: a trusted task.
        unsafe {
            bpf_task_storage_get(
                INFLIGHT.as_ptr(),
                task.as_ptr().cast(),
                core::ptr::null_mut(),
                flags,
            )
            .cast()
        }
    }

    /// In whose books a thread's calls are; `None` where they are in nobody's. It is found out
    /// once, until something changes that may change it.
    #[inline(always)]
    pub fn books(this: *mut Self, task: Task) -> Option<Books> {
        let known = process::booked_since()?;
        // SAFETY: checked task storage.
        unsafe {
            if !this.is_null() && (*this).known == known {
                let (space, serial, whole) = ((*this).space, (*this).serial, (*this).whole);
                return Some(Books { space, serial, known, whole });
            }
        }
        let identity = process::current(task)?;
        let (space, serial) = (identity.space, identity.serial);
        let whole = u64::from(identity.flags & ProcessFlags::WHOLE != 0);
        identity.booked().then_some(Books { space, serial, known, whole })
    }

    /// The frame at a depth, counted from the outermost. Masked rather than checked, so that
    /// the verifier sees the bound; opaque, because the compiler would reach the frame below
    /// by a negative offset from this one.
    #[inline(always)]
    pub unsafe fn frame(this: *mut Self, depth: u64) -> *mut Frame {
        let index = arch::opaque(depth) & (INFLIGHT_DEPTH as u64 - 1);
        // SAFETY: the caller passes checked storage; the index is below the length.
        unsafe { (&raw mut (*this).frames).cast::<Frame>().add(index as usize) }
    }
}
