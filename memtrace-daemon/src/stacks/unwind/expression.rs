//! DWARF expressions of unwind information. They see a frame's registers and the copied stack,
//! and are stopped when they loop.

use gimli::{Encoding, EvaluationResult, Expression, Format, LittleEndian, Location, Value};

use super::memory::Memory;
use super::registers::Cpu;
use super::walk::Stop;

/// What the sections are read as.
pub type Slice<'a> = gimli::EndianSlice<'a, LittleEndian>;

/// Most operations of an expression: the longest in use, of signal frames, have five.
const MAX_OPERATIONS: u32 = 256;

/// The value of an expression; `initial` is on its stack when it begins.
pub fn value(
    operations: &[u8],
    initial: Option<u64>,
    cpu: &Cpu,
    memory: &Memory<'_>,
) -> Result<u64, Stop> {
    let damaged = |_| Stop::Damaged("has an expression that cannot be evaluated");
    let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 4 };
    let operations = Expression(Slice::new(operations, LittleEndian));
    let mut evaluation = operations.evaluation(encoding);
    evaluation.set_max_iterations(MAX_OPERATIONS);
    if let Some(initial) = initial {
        evaluation.set_initial_value(initial);
    }
    let mut result = evaluation.evaluate().map_err(damaged)?;
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresMemory { address, size, space: None, .. } => {
                let read = memory.read(address, usize::from(size))?;
                evaluation.resume_with_memory(Value::Generic(read)).map_err(damaged)?
            }
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = cpu.get(register.0).ok_or(Stop::UnknownRegister)?;
                evaluation.resume_with_register(Value::Generic(value)).map_err(damaged)?
            }
            _ => return Err(Stop::Damaged("has an expression that belongs elsewhere")),
        };
    }
    let [piece] = evaluation.as_result() else {
        return Err(Stop::Damaged("has an expression without a value"));
    };
    match piece.location {
        Location::Address { address } => Ok(address),
        Location::Value { value } => value.to_u64(u64::MAX).map_err(damaged),
        _ => Err(Stop::Damaged("has an expression without a value")),
    }
}
