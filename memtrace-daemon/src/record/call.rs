//! Calls of library functions, and the copies of stacks that some of them come with.

use std::fmt;
use std::sync::Arc;

use memtrace_common::{FunctionId, MAX_SLOTS, MAX_USER_FRAMES};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use super::Record;
use crate::snapshot::{Taken, TakenBy};

/// Set in an address of a stack that is where its frame was, not where a call returns to: what a
/// signal interrupted, and functions that are put on a stack without being called. User
/// addresses have less than 48 bits.
pub const EXACT: u64 = 1 << 63;

/// Where the code is that an address of a stack, or its offset in a file, stands for: the call is
/// before the return address, and may be the last instruction of its function or its mapping.
#[must_use]
pub const fn code_at(address: u64) -> u64 {
    if address & EXACT == 0 { address.saturating_sub(1) } else { address & !EXACT }
}

/// A call of a library function that gave memory, or failed to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// When.
    pub time_ns: u64,
    /// Unique since start of the tracer, never reused, ascending; 0 for a failure.
    pub id: u64,
    /// The address that was given; 0 for a failure.
    pub pointer: u64,
    /// Bytes.
    pub bytes: u64,
    /// Address space whose books it is in.
    pub space: u32,
    /// Which function and, in the 8 bits behind its 16, on which device: its number and 1, or 0.
    pub function: u32,
    /// Thread group of the caller.
    pub tgid: u32,
    /// Thread of the caller.
    pub tid: u32,
    /// Serial of the calling process (a vfork child's differs from the owner of `space`).
    pub serial: u32,
    /// Whether its stack is here.
    pub stage: Stage,
    /// Return addresses, innermost first; the first is the direct caller. Empty while pending.
    #[serde(with = "super::form::addresses")]
    pub stack: Arc<[u64]>,
    /// How they were taken, and whether they are all.
    pub taken: Taken,
}

impl Call {
    /// Which function.
    #[must_use]
    pub const fn function_id(&self) -> FunctionId {
        // The rest is the device.
        (self.function & 0xffff) as FunctionId
    }

    /// The number of the device that the memory is on, or whose context it is bound to; `None`
    /// where that is not known.
    #[must_use]
    pub fn device(&self) -> Option<u8> {
        let number = (self.function >> 16 & 0xff).checked_sub(1)?;
        u8::try_from(number).ok()
    }
}

/// Whether the stack of a call is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// It came with the call.
    Whole,
    /// It is still to be unwound: the same call comes again with it.
    Pending,
    /// It was unwound; the call was told before as pending.
    Unwound,
}

/// A call whose stack is still to be unwound.
#[derive(Debug)]
pub struct CopiedCall {
    /// Whether it failed.
    pub failed: bool,
    /// The call, pending.
    pub call: Call,
    /// Where an inner call returned to that is booked with the stack of its outer call: it goes
    /// before what the copy tells, and what lies between is not known.
    pub inner: Option<u64>,
    /// The copy.
    pub copy: StackCopy,
}

/// A copy of a user stack. It can hold anything, prompts and keys included: it is overwritten
/// when it is dropped, and is never printed.
pub struct StackCopy {
    /// Registers at the copy's innermost frame.
    pub registers: Registers,
    /// Return slots that hold the trampoline of return probes, and what belongs there: (address
    /// of the slot, return address); (0, 0) is none.
    pub slots: [(u64, u64); MAX_SLOTS],
    /// Pages of executable mappings that the process had.
    pub exec_pages: u64,
    /// Whether the copy reaches to where the stack ends, as far as the kernel side knows.
    pub whole: bool,
    /// Pages that could not be read: bit 0 is the stack pointer's page.
    pub missing: u64,
    /// The stack from `registers.rsp` on.
    pub bytes: Box<[u8]>,
}

/// Registers that a function must keep, and where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the architecture's")]
pub struct Registers {
    pub rip: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
}

impl CopiedCall {
    /// The call, to be told at once.
    #[must_use]
    pub fn pending(&self) -> Record {
        let call = Box::new(self.call.clone());
        if self.failed { Record::Failure(call) } else { Record::Allocation(call) }
    }

    /// The call with its stack.
    #[must_use]
    pub fn with(&self, stack: Arc<[u64]>, taken: Taken) -> Record {
        let call = Box::new(Call { stage: Stage::Unwound, stack, taken, ..self.call.clone() });
        if self.failed { Record::Failure(call) } else { Record::Allocation(call) }
    }

    /// The call with what its frame pointers say, where the copy is not to be unwound.
    #[must_use]
    pub fn by_frame_pointers(&self, why: &str) -> Record {
        let stack = self.inner.into_iter().chain(self.copy.frame_pointers()).collect();
        let incomplete = Some(Arc::from(why));
        self.with(stack, Taken { by: TakenBy::FramePointers, incomplete })
    }
}

/// Bytes of a page.
const PAGE: u64 = 4_096;
/// Deepest stack that is followed by frame pointers, as in the kernel.
const MAX_FRAMES: usize = MAX_USER_FRAMES;

impl StackCopy {
    /// Return addresses by frame pointers, innermost first, as the kernel follows them.
    fn frame_pointers(&self) -> Vec<u64> {
        let mut addresses = vec![self.registers.rip];
        let mut frame = self.registers.rbp;
        while addresses.len() < MAX_FRAMES {
            let slot = frame.wrapping_add(8);
            let (Some(above), Some(address)) = (self.word(frame), self.word(slot)) else { break };
            let mended = self.slots.iter().find(|(at, _)| *at == slot);
            let address = mended.map_or(address, |(_, address)| *address);
            if address == 0 {
                break;
            }
            addresses.push(address);
            if above <= frame {
                break;
            }
            frame = above;
        }
        addresses
    }

    /// Whether an address within the copy lies in a page that could not be read.
    #[must_use]
    pub const fn is_missing(&self, address: u64) -> bool {
        let page = (address / PAGE).wrapping_sub(self.registers.rsp / PAGE);
        page < 64 && self.missing >> page & 1 != 0
    }

    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.registers.rsp)?).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }
}

impl fmt::Debug for StackCopy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registers, slots, exec_pages, whole, missing, bytes } = self;
        formatter
            .debug_struct("StackCopy")
            .field("at", &registers.rip)
            .field("slots", slots)
            .field("exec_pages", exec_pages)
            .field("whole", whole)
            .field("missing", missing)
            .field("bytes", &bytes.len())
            .finish()
    }
}

impl Drop for StackCopy {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_pointers_are_followed_within_the_copy() {
        let words: [u64; 6] = [0, 0x1020, 0x7fff, 7, 0x9000, 0x33];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut copy = StackCopy {
            registers: Registers { rip: 0x11, rsp: 0x1000, rbp: 0x1008, ..Registers::default() },
            slots: [(0x1010, 0x22), (0, 0), (0, 0)],
            exec_pages: 0,
            whole: true,
            missing: 0,
            bytes: bytes.into(),
        };
        // The second frame's slot held the trampoline; the third frame is outside.
        assert_eq!(copy.frame_pointers(), [0x11, 0x22, 0x33]);
        copy.registers.rbp = 0xfff;
        assert_eq!(copy.frame_pointers(), [0x11]);
    }
}
