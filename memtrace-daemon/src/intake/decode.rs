//! One record's bytes to a [`Record`].

use bytemuck::{AnyBitPattern, pod_read_unaligned};
use bytes::Buf;
use memtrace_common::{
    AccountAgesRecord, AccountRecord, DuplicateRecord, FreeRecord, KernelSampleRecord,
    ProcessRecord, RecordHeader, RecordKind, TotalsRecord,
};
use thiserror::Error;

use super::call;
use crate::record::{CopiedCall, Record};

/// What came out of the ring buffer.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would cost every record an allocation")]
pub enum Item {
    /// A record as the engine takes it.
    Record(Record),
    /// A call whose stack is to be unwound first.
    Copied(Box<CopiedCall>),
}

/// Why bytes are no record. Kernel side and user side are built together, so it is a fault of
/// memtrace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Shorter than a header.
    #[error("a record of {0} bytes has no header")]
    NoHeader(usize),
    /// A kind that nobody knows.
    #[error("a record has the unknown kind {0}")]
    UnknownKind(u32),
    /// Bytes that do not fit the kind.
    #[error("a record of kind {kind} has {got} bytes instead of {expected}")]
    WrongLength {
        /// Its kind.
        kind: &'static str,
        /// Bytes there are.
        got: usize,
        /// Bytes there should be.
        expected: usize,
    },
    /// A form of stack that nobody knows.
    #[error("a call has the unknown form of stack {0}")]
    UnknownForm(u32),
}

/// Reads one record.
///
/// # Errors
/// Why the bytes are no record.
pub fn decode(bytes: &[u8]) -> Result<(RecordKind, Item), DecodeError> {
    if bytes.len() < size_of::<RecordHeader>() {
        return Err(DecodeError::NoHeader(bytes.len()));
    }
    let kind = (&mut &bytes[..]).get_u32_ne();
    let kind = RecordKind::from_u32(kind).ok_or(DecodeError::UnknownKind(kind))?;
    let record = match kind {
        RecordKind::Process => {
            let record: ProcessRecord = body(kind, bytes)?;
            Record::Process { time_ns: record.header.time_ns, entry: record.entry }
        }
        RecordKind::Account => {
            let record: AccountRecord = body(kind, bytes)?;
            Record::Account { time_ns: record.header.time_ns, account: record.account }
        }
        RecordKind::KernelSample => {
            Record::KernelSample(Box::new(body::<KernelSampleRecord>(kind, bytes)?))
        }
        RecordKind::Totals => {
            let record: TotalsRecord = body(kind, bytes)?;
            Record::Totals {
                time_ns: record.header.time_ns,
                key: record.key,
                totals: record.totals,
            }
        }
        RecordKind::Allocation => return Ok((kind, call::decode(kind, bytes, false)?)),
        RecordKind::Failure => return Ok((kind, call::decode(kind, bytes, true)?)),
        RecordKind::Free => Record::Free(body::<FreeRecord>(kind, bytes)?),
        RecordKind::Duplicate => Record::Duplicate(body::<DuplicateRecord>(kind, bytes)?),
        RecordKind::AccountAges => Record::AccountAges(body::<AccountAgesRecord>(kind, bytes)?),
    };
    Ok((kind, Item::Record(record)))
}

fn body<T: AnyBitPattern>(kind: RecordKind, bytes: &[u8]) -> Result<T, DecodeError> {
    if bytes.len() == size_of::<T>() {
        Ok(pod_read_unaligned(bytes))
    } else {
        Err(DecodeError::WrongLength {
            kind: kind.name(),
            got: bytes.len(),
            expected: size_of::<T>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::bytes_of;
    use memtrace_common::ProcessEntry;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was() {
        let entry = ProcessEntry { serial: 7, space: 9, ..ProcessEntry::default() };
        let header = RecordHeader { kind: RecordKind::Process as u32, length: 96, time_ns: 5 };
        let bytes = bytes_of(&ProcessRecord { header, entry }).to_vec();
        let (kind, record) = decode(&bytes).unwrap();
        assert_eq!(kind, RecordKind::Process);
        let Item::Record(Record::Process { time_ns: 5, entry: got }) = record else {
            panic!("{record:?}")
        };
        assert_eq!(got, entry);
    }

    #[test]
    fn a_record_cut_short_is_refused() {
        let header = RecordHeader { kind: RecordKind::Free as u32, length: 48, time_ns: 0 };
        let bytes = bytes_of(&FreeRecord { header, ..FreeRecord::default() }).to_vec();
        assert!(decode(&bytes).is_ok());
        assert_eq!(
            decode(&bytes[..47]).unwrap_err(),
            DecodeError::WrongLength { kind: "free", got: 47, expected: 48 }
        );
        assert_eq!(decode(&bytes[..8]).unwrap_err(), DecodeError::NoHeader(8));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..1200)) {
            let _ = decode(&bytes);
        }
    }
}
