//! The bytes of a call, and of what follows it: return addresses or a copy of its stack.

use std::sync::Arc;

use bytemuck::pod_read_unaligned;
use memtrace_common::{AllocationRecord, RecordKind, StackForm, StackHead};

use super::decode::{DecodeError, Item};
use crate::record::{Call, CopiedCall, Record, Registers, StackCopy, Stage};
use crate::snapshot::{Taken, TakenBy};

const CALL: usize = size_of::<AllocationRecord>();
const HEAD: usize = size_of::<StackHead>();

/// Reads a call that gave memory or failed to.
pub(super) fn decode(kind: RecordKind, bytes: &[u8], failed: bool) -> Result<Item, DecodeError> {
    let short =
        |expected| DecodeError::WrongLength { kind: kind.name(), got: bytes.len(), expected };
    let (call, rest) = bytes.split_at_checked(CALL).ok_or_else(|| short(CALL))?;
    let record: AllocationRecord = pod_read_unaligned(call);
    let form = StackForm::from_u32(record.form).ok_or(DecodeError::UnknownForm(record.form))?;
    let inner = Some(record.inner).filter(|address| *address != 0);
    if form == StackForm::Copy {
        let (head, stack) = rest.split_at_checked(HEAD).ok_or_else(|| short(CALL + HEAD))?;
        let taken = Taken { by: TakenBy::Copy, incomplete: None };
        let call = call_of(&record, Stage::Pending, Arc::from([]), taken);
        let copy = copy(&pod_read_unaligned(head), stack);
        return Ok(Item::Copied(Box::new(CopiedCall { failed, call, inner, copy })));
    }
    if !rest.len().is_multiple_of(8) {
        return Err(short(CALL + rest.len() / 8 * 8));
    }
    let addresses = rest.chunks_exact(8).map(pod_read_unaligned);
    // 0 is no address: what a walk did not fill.
    let walked = addresses.take_while(|address: &u64| *address != 0);
    let stack = inner.into_iter().chain(walked).collect();
    let call = Box::new(call_of(&record, Stage::Whole, stack, taken(form, inner.is_some())));
    Ok(Item::Record(if failed { Record::Failure(call) } else { Record::Allocation(call) }))
}

/// How the stack was taken, and why frames may be missing.
fn taken(form: StackForm, inner: bool) -> Taken {
    let (by, incomplete) = match form {
        StackForm::Walk | StackForm::Copy => (TakenBy::Walk, None),
        StackForm::OverBudget => (
            TakenBy::FramePointers,
            Some(
                "stack_budget: too many stacks were copied; functions without frame pointers are missing",
            ),
        ),
        StackForm::NotCopied => (
            TakenBy::FramePointers,
            Some("the stack could not be copied; functions without frame pointers are missing"),
        ),
        StackForm::Known => {
            (TakenBy::FramePointers, Some("the call was left without a return; more is not known"))
        }
    };
    let incomplete = incomplete.or(inner.then_some(INNER));
    Taken { by, incomplete: incomplete.map(Arc::from) }
}

/// Why frames are missing of an inner call that is booked on its own.
pub(crate) const INNER: &str = "frames of the outer call that it was made in are missing";

fn call_of(record: &AllocationRecord, stage: Stage, stack: Arc<[u64]>, taken: Taken) -> Call {
    let AllocationRecord {
        header,
        id,
        pointer,
        bytes,
        space,
        function,
        tgid,
        tid,
        serial,
        form: _,
        inner: _,
    } = *record;
    let time_ns = header.time_ns;
    Call { time_ns, id, pointer, bytes, space, function, tgid, tid, serial, stage, stack, taken }
}

fn copy(head: &StackHead, bytes: &[u8]) -> StackCopy {
    let [r15, r14, r13, r12, rbp, rbx, .., rip, _cs, _flags, rsp, _ss] = head.registers;
    StackCopy {
        registers: Registers { rip, rsp, rbp, rbx, r12, r13, r14, r15 },
        slots: head.slots.map(|[slot, address]| (slot, address)),
        exec_pages: head.exec_pages,
        whole: head.whole != 0,
        missing: head.missing,
        bytes: bytes.into(),
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::bytes_of;

    use super::*;

    fn record(form: StackForm, inner: u64) -> AllocationRecord {
        AllocationRecord {
            form: form as u32,
            inner,
            id: 7,
            bytes: 9,
            ..AllocationRecord::default()
        }
    }

    fn call(bytes: &[u8]) -> Box<Call> {
        match decode(RecordKind::Allocation, bytes, false).unwrap() {
            Item::Record(Record::Allocation(call)) => call,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn addresses_follow_a_call_and_an_inner_one_goes_before() {
        let mut bytes = bytes_of(&record(StackForm::Walk, 0)).to_vec();
        bytes.extend_from_slice(bytes_of(&[5_u64, 6]));
        let whole = call(&bytes);
        assert_eq!((&*whole.stack, whole.taken.by), (&[5, 6][..], TakenBy::Walk));
        assert_eq!((whole.taken.incomplete, whole.stage), (None, Stage::Whole));
        let mut bytes = bytes_of(&record(StackForm::OverBudget, 4)).to_vec();
        bytes.extend_from_slice(bytes_of(&[5_u64, 0]));
        let cut = call(&bytes);
        assert_eq!(&*cut.stack, [4, 5]);
        assert!(cut.taken.incomplete.unwrap().contains("stack_budget"));
    }

    #[test]
    fn a_copy_follows_its_registers() {
        let mut head = StackHead { whole: 1, exec_pages: 3, ..StackHead::default() };
        head.registers[16] = 0x10;
        head.registers[19] = 0x20;
        head.slots[1] = [8, 9];
        let mut bytes = bytes_of(&record(StackForm::Copy, 0)).to_vec();
        bytes.extend_from_slice(bytes_of(&head));
        bytes.extend_from_slice(b"prompt");
        let Item::Copied(copied) = decode(RecordKind::Failure, &bytes, true).unwrap() else {
            panic!("no copy")
        };
        assert_eq!((copied.copy.registers.rip, copied.copy.registers.rsp), (0x10, 0x20));
        assert_eq!((copied.copy.slots[1], copied.copy.whole), ((8, 9), true));
        assert_eq!(&*copied.copy.bytes, b"prompt");
        assert!(copied.failed && copied.call.stage == Stage::Pending);
        // What is on a stack is never printed.
        assert!(!format!("{copied:?}").contains("112"), "{copied:?}");
        let cut = bytes[..CALL + HEAD - 1].to_vec();
        assert!(decode(RecordKind::Failure, &cut, true).is_err());
    }
}
