//! How to get from a frame to its caller's, compiled from a row of unwind information: small
//! where it is as nearly all are.

use std::sync::Arc;

use gimli::{CfaRule, RegisterRule, UnwindExpression, UnwindTableRow};
use memtrace_common::Step;

use super::look_up::Store;
use super::registers::{COUNT, KEPT, RBP, RIP, RSP};

/// What is known of an address.
#[derive(Clone, Debug)]
pub enum Rule {
    /// The usual.
    Plain(Plain),
    /// Anything else.
    Full(Arc<Full>),
    /// The outermost frame.
    End,
    /// Calls `rt_sigreturn`: the registers lie on the stack.
    Signal,
    /// No unwind information covers it, and the code does not tell either.
    Nothing,
    /// There is unwind information, but it cannot be followed.
    Damaged(&'static str),
}

/// The CFA is a register plus a constant, the return address lies in the 8 bytes below it, and
/// registers that a function must keep are unchanged or saved below the CFA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plain {
    /// The frame pointer; else the stack pointer.
    pub by_frame_pointer: bool,
    /// From there to the CFA, bytes.
    pub offset: i32,
    /// How many words below the CFA each of [`KEPT`] is saved; 0 where it is unchanged.
    pub saved: [u16; KEPT.len()],
}

impl Plain {
    /// The same for the kernel's walk, if it fits.
    pub fn step(&self) -> Option<Step> {
        let [_, frame_pointer, ..] = self.saved;
        let saved = (frame_pointer != 0).then_some(u64::from(frame_pointer) * 8);
        Step::new(self.by_frame_pointer, u64::try_from(self.offset).ok()?, saved)
    }
}

/// All that a row can say.
#[derive(Clone, Debug)]
pub struct Full {
    /// The CFA.
    pub cfa: Cfa,
    /// Registers that do not stay as they are.
    pub registers: Box<[(u16, Value)]>,
    /// The frame is a signal's: the next address is where it was interrupted.
    pub signal: bool,
}

/// Longest expression, bytes; those in use are a tenth of that.
const MAX_EXPRESSION: usize = 256;

/// The operations of an expression.
pub type Expression = Box<[u8]>;

/// The canonical frame address.
#[derive(Clone, Debug)]
pub enum Cfa {
    /// A register plus so many bytes.
    Register(u16, i64),
    /// An expression.
    Expression(Expression),
}

/// A register of the caller.
#[derive(Clone, Debug)]
pub enum Value {
    /// Lost.
    Undefined,
    /// As it is: told in so many words, for the stack pointer.
    Same,
    /// In memory, so many bytes from the CFA.
    At(i64),
    /// The CFA plus so many bytes.
    Is(i64),
    /// In another register.
    Register(u16),
    /// In memory, where an expression tells.
    AtExpression(Expression),
    /// What an expression tells.
    IsExpression(Expression),
}

impl Rule {
    /// Compiles a row of a section with these bytes.
    pub fn of(row: &UnwindTableRow<usize, Store>, signal: bool, data: &[u8]) -> Self {
        match row.register(gimli::Register(RIP)) {
            Some(RegisterRule::Undefined) if !signal => return Self::End,
            Some(_) => {}
            None => return Self::Damaged("has no rule for the return address"),
        }
        if !signal && let Some(plain) = plain(row) {
            return Self::Plain(plain);
        }
        match Full::of(row, signal, data) {
            Some(full) => Self::Full(Arc::new(full)),
            None => Self::Damaged("has a rule that is beyond the limits"),
        }
    }

    /// Memory beside the rule itself, bytes.
    pub fn heap(&self) -> usize {
        match self {
            Self::Full(full) => full.heap(),
            _ => 0,
        }
    }
}

impl Full {
    fn of(row: &UnwindTableRow<usize, Store>, signal: bool, data: &[u8]) -> Option<Self> {
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => Cfa::Register(register.0, *offset),
            CfaRule::Expression(expression) => Cfa::Expression(copied(expression, data)?),
        };
        let mut registers = Vec::new();
        for (register, rule) in row.registers().filter(|(register, _)| followed(*register)) {
            let value = match rule {
                RegisterRule::Undefined => Value::Undefined,
                RegisterRule::SameValue if register.0 == RSP => Value::Same,
                RegisterRule::SameValue => continue,
                RegisterRule::Offset(offset) => Value::At(*offset),
                RegisterRule::ValOffset(offset) => Value::Is(*offset),
                RegisterRule::Register(other) => Value::Register(other.0),
                RegisterRule::Expression(expression) => {
                    Value::AtExpression(copied(expression, data)?)
                }
                RegisterRule::ValExpression(expression) => {
                    Value::IsExpression(copied(expression, data)?)
                }
                _ => return None,
            };
            registers.push((register.0, value));
        }
        Some(Self { cfa, registers: registers.into(), signal })
    }

    fn heap(&self) -> usize {
        // What the allocator adds to a block.
        const BLOCK: usize = 16;
        let expression = |bytes: &Expression| bytes.len() + BLOCK;
        let values = self.registers.iter().map(|(_, value)| match value {
            Value::AtExpression(bytes) | Value::IsExpression(bytes) => expression(bytes),
            _ => 0,
        });
        let cfa = match &self.cfa {
            Cfa::Expression(bytes) => expression(bytes),
            Cfa::Register(..) => 0,
        };
        size_of::<Self>() + 3 * BLOCK + cfa + size_of_val(&*self.registers) + values.sum::<usize>()
    }
}

fn copied(expression: &UnwindExpression<usize>, data: &[u8]) -> Option<Expression> {
    let bytes = data.get(expression.offset..)?.get(..expression.length)?;
    (bytes.len() <= MAX_EXPRESSION).then(|| bytes.into())
}

fn followed(register: gimli::Register) -> bool {
    usize::from(register.0) < COUNT
}

fn plain(row: &UnwindTableRow<usize, Store>) -> Option<Plain> {
    let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { return None };
    let by_frame_pointer = match register.0 {
        RBP => true,
        RSP => false,
        _ => return None,
    };
    let mut plain =
        Plain { by_frame_pointer, offset: i32::try_from(*offset).ok()?, saved: [0; KEPT.len()] };
    for (register, rule) in row.registers().filter(|(register, _)| followed(*register)) {
        match (register.0, rule) {
            (RIP, RegisterRule::Offset(-8)) => {}
            (RIP | RSP, _) => return None,
            (_, RegisterRule::SameValue) => {}
            (register, RegisterRule::Offset(offset)) => {
                let kept = KEPT.iter().position(|kept| *kept == register)?;
                let below = offset.checked_neg().filter(|below| below % 8 == 0 && *below >= 16)?;
                *plain.saved.get_mut(kept)? = u16::try_from(below / 8).ok()?;
            }
            _ => return None,
        }
    }
    Some(plain)
}
