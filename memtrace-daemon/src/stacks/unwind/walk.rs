//! One unwinding: from frame to frame, until the outermost one or until something is not
//! certain. Every address that is taken lies in code.

use std::sync::Arc;

use memtrace_common::Step;

use super::expression;
use super::files::{Files, name};
use super::look_up::Context;
use super::memory::{Memory, Outside};
use super::registers::{COUNT, Cpu, KEPT, OF_SIGNAL, RBP, RIP, RSP};
use super::rule::{Cfa, Full, Plain, Rule, Value};
use super::{AddressSpace, Code, MAX_ADDRESSES, MAX_DEPTH, Unwound, code, fold};
use crate::record::{EXACT, StackCopy};
use crate::stacks::files::OpenFile;

/// Where the registers are in a signal's `ucontext`, bytes.
const UCONTEXT_REGISTERS: u64 = 40;

/// Why an unwinding ends before the outermost frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The stack goes on beyond what was copied.
    Beyond,
    /// A page of the stack was not to be had.
    Missing,
    /// A frame lies elsewhere.
    Elsewhere,
    /// An address lies in no code.
    NotCode,
    /// A rule needs a register that is not known.
    UnknownRegister,
    /// The next frame does not lie behind this one.
    Backwards,
    /// A signal interrupted a stack that was not copied.
    Interrupted,
    /// More frames than are followed.
    Deep,
    /// The file has ….
    Damaged(&'static str),
    /// Anything else.
    Because(String),
}

impl From<Outside> for Stop {
    fn from(outside: Outside) -> Self {
        match outside {
            Outside::Beyond => Self::Beyond,
            Outside::Missing => Self::Missing,
            Outside::Elsewhere => Self::Elsewhere,
        }
    }
}

/// Whether there is another frame.
enum Next {
    Frame,
    None,
}

/// Code with rules of its own.
#[derive(Clone)]
struct InImage(Option<Arc<OpenFile>>);

impl InImage {
    fn file(&self) -> Option<&OpenFile> {
        self.0.as_deref()
    }
}

/// An unwinding.
pub struct Walk<'a> {
    files: &'a mut Files,
    context: &'a mut Context,
    space: &'a mut dyn AddressSpace,
    memory: Memory<'a>,
    cpu: Cpu,
    /// The address is where the frame was interrupted, not where a call returns to.
    exact: bool,
    addresses: Vec<u64>,
    steps: Vec<(u64, Step)>,
    /// What was followed without certainty.
    doubt: Option<String>,
}

impl<'a> Walk<'a> {
    /// Of a copy.
    pub fn new(
        files: &'a mut Files,
        context: &'a mut Context,
        copy: &'a StackCopy,
        space: &'a mut dyn AddressSpace,
    ) -> Self {
        files.tick();
        Self {
            files,
            context,
            space,
            memory: Memory::new(copy),
            cpu: Cpu::at_return(&copy.registers),
            exact: false,
            addresses: Vec::with_capacity(64),
            steps: Vec::with_capacity(64),
            doubt: None,
        }
    }

    /// Unwinds.
    pub fn run(mut self) -> Unwound {
        let stop = self.follow().err();
        let Self { mut addresses, mut steps, doubt, memory, .. } = self;
        let open = match stop {
            Some(Stop::Beyond) => memory.cut(),
            Some(Stop::Deep) => true,
            _ => false,
        };
        let mut folded = None;
        if open || addresses.len() > MAX_ADDRESSES {
            let left_out = fold::fold(&mut addresses, open);
            folded = (left_out > 0).then(|| format!("recursion folded: {left_out} frames"));
        }
        let mut incomplete = doubt.or_else(|| stop.map(|stop| sentence(stop, memory.cut())));
        if addresses.len() > MAX_ADDRESSES {
            addresses.truncate(MAX_ADDRESSES);
            incomplete.get_or_insert_with(|| format!("deeper than {MAX_ADDRESSES} frames"));
        }
        steps.sort_unstable_by_key(|(address, _)| *address);
        steps.dedup_by_key(|(address, _)| *address);
        Unwound { addresses, incomplete, folded, steps }
    }

    fn follow(&mut self) -> Result<(), Stop> {
        loop {
            let address = self.cpu.get(RIP).ok_or(Stop::UnknownRegister)?;
            // The call is before the return address, and may be the last of its function.
            let at = address.wrapping_sub(u64::from(!self.exact));
            let code = self.space.find(at);
            if matches!(code, Code::Nowhere) && !self.addresses.is_empty() {
                return Err(Stop::NotCode);
            }
            if self.addresses.len() >= MAX_DEPTH {
                return Err(Stop::Deep);
            }
            self.addresses.push(if self.exact { address | EXACT } else { address });
            match self.frame(address, code)? {
                Next::Frame => {}
                Next::None => return Ok(()),
            }
        }
    }

    fn frame(&mut self, address: u64, code: Code) -> Result<Next, Stop> {
        let (image, offset) = match code {
            Code::File { file, offset } => (InImage(Some(file)), offset),
            Code::Vdso { offset } => (InImage(None), offset),
            Code::Anonymous => return self.made_at_run_time(address),
            Code::Nowhere => return Err(Stop::NotCode),
            Code::Unreadable { module: _, why } => return Err(Stop::Because(why)),
        };
        let rule = self.files.rule(self.context, self.space, image.file(), offset, self.exact);
        let learn = (!self.exact).then_some(address);
        match rule.map_err(Stop::Because)? {
            Rule::Plain(plain) => {
                if let (Some(address), Some(step)) = (learn, plain.step()) {
                    self.steps.push((address, step));
                }
                self.plain(&plain)
            }
            Rule::Full(full) => self.full(&full).map_err(|stop| match stop {
                Stop::Damaged(why) => Stop::Because(format!("{} {why}", name(image.file()))),
                stop => stop,
            }),
            Rule::End => {
                self.steps.extend(learn.map(|address| (address, Step::END)));
                Ok(Next::None)
            }
            Rule::Signal => self.signal(),
            Rule::Nothing if self.begins(&image, offset) => {
                self.mark_exact();
                Ok(Next::None)
            }
            Rule::Nothing => {
                self.frame_pointer(format!("no unwind info for {}", name(image.file())))
            }
            Rule::Damaged(why) => Err(Stop::Because(format!("{} {why}", name(image.file())))),
        }
    }

    /// Whether a function that nobody returns from begins right behind `offset`: what starts a
    /// coroutine or a thread is put on its stack as if it had called.
    fn begins(&mut self, image: &InImage, offset: u64) -> bool {
        let behind = offset.saturating_add(1);
        !self.exact
            && matches!(
                self.files.rule(self.context, self.space, image.file(), behind, true),
                Ok(Rule::End)
            )
    }

    /// The last address is where it says, not behind a call.
    fn mark_exact(&mut self) {
        if let Some(last) = self.addresses.last_mut() {
            *last |= EXACT;
        }
    }

    fn made_at_run_time(&mut self, address: u64) -> Result<Next, Stop> {
        let mut bytes = [0; 48];
        let length = self.space.bytes(address, &mut bytes).min(bytes.len());
        match code::rule(bytes.get(..length).unwrap_or_default()) {
            Rule::Plain(plain) => self.plain(&plain),
            Rule::End => Ok(Next::None),
            Rule::Signal => self.signal(),
            _ => self.frame_pointer(
                "frame pointers were followed through code made at run time, which has no \
                 unwind information"
                    .into(),
            ),
        }
    }

    fn plain(&mut self, plain: &Plain) -> Result<Next, Stop> {
        let base = if plain.by_frame_pointer { RBP } else { RSP };
        let base = self.cpu.get(base).ok_or(Stop::UnknownRegister)?;
        let cfa = base.checked_add_signed(i64::from(plain.offset)).ok_or(Stop::Elsewhere)?;
        self.grows(cfa)?;
        let address = self.memory.return_address(cfa.wrapping_sub(8))?;
        for (register, words) in KEPT.iter().zip(plain.saved) {
            if words != 0 {
                let saved = self.memory.word(cfa.wrapping_sub(u64::from(words) * 8))?;
                self.cpu.set(*register, saved);
            }
        }
        self.returned(cfa, address)
    }

    /// The caller's frame.
    fn returned(&mut self, stack_pointer: u64, address: u64) -> Result<Next, Stop> {
        self.cpu.set(RSP, stack_pointer);
        self.cpu.set(RIP, address);
        self.exact = false;
        // Nobody called it.
        Ok(if address == 0 && self.doubt.is_none() { Next::None } else { Next::Frame })
    }

    fn grows(&self, stack_pointer: u64) -> Result<(), Stop> {
        let before = self.cpu.get(RSP).ok_or(Stop::UnknownRegister)?;
        if stack_pointer > before && stack_pointer.is_multiple_of(8) {
            Ok(())
        } else {
            Err(Stop::Backwards)
        }
    }

    fn full(&mut self, full: &Full) -> Result<Next, Stop> {
        let cfa = match &full.cfa {
            Cfa::Register(register, offset) => {
                let base = self.cpu.get(*register).ok_or(Stop::UnknownRegister)?;
                base.checked_add_signed(*offset).ok_or(Stop::Elsewhere)?
            }
            Cfa::Expression(operations) => self.evaluate(operations, None)?,
        };
        let mut caller = self.cpu;
        caller.set(RSP, cfa);
        for (register, value) in &full.registers {
            match self.value(*register, value, cfa, full.signal) {
                Ok(Some(value)) => caller.set(*register, value),
                Ok(None) => caller.forget(*register),
                // It may never be needed.
                Err(Stop::UnknownRegister) if !matches!(*register, RIP | RSP) => {
                    caller.forget(*register);
                }
                Err(stop) => return Err(stop),
            }
        }
        let address = caller.get(RIP).ok_or(Stop::UnknownRegister)?;
        let stack_pointer = caller.get(RSP).ok_or(Stop::UnknownRegister)?;
        if full.signal {
            return self.interrupted(caller);
        }
        self.grows(stack_pointer)?;
        self.cpu = caller;
        self.returned(stack_pointer, address)
    }

    fn value(
        &self,
        register: u16,
        value: &Value,
        cfa: u64,
        signal: bool,
    ) -> Result<Option<u64>, Stop> {
        let from_cfa = |offset: &i64| cfa.checked_add_signed(*offset).ok_or(Stop::Elsewhere);
        Ok(match value {
            Value::Undefined => None,
            Value::Same => self.cpu.get(register),
            Value::At(offset) if register == RIP && !signal => {
                Some(self.memory.return_address(from_cfa(offset)?)?)
            }
            Value::At(offset) => Some(self.memory.word(from_cfa(offset)?)?),
            Value::Is(offset) => Some(from_cfa(offset)?),
            Value::Register(other) => Some(self.cpu.get(*other).ok_or(Stop::UnknownRegister)?),
            Value::AtExpression(operations) => {
                Some(self.memory.word(self.evaluate(operations, Some(cfa))?)?)
            }
            Value::IsExpression(operations) => Some(self.evaluate(operations, Some(cfa))?),
        })
    }

    fn evaluate(&self, operations: &[u8], initial: Option<u64>) -> Result<u64, Stop> {
        expression::value(operations, initial, &self.cpu, &self.memory)
    }

    /// A signal's frame: all registers as they were when it came.
    fn signal(&mut self) -> Result<Next, Stop> {
        let start = self.cpu.get(RSP).ok_or(Stop::UnknownRegister)?;
        let mut interrupted = Cpu::unknown();
        let offsets = (UCONTEXT_REGISTERS..).step_by(8);
        for (register, offset) in OF_SIGNAL.iter().zip(offsets).take(COUNT) {
            let at = start.checked_add(offset).ok_or(Stop::Elsewhere)?;
            interrupted.set(*register, self.memory.word(at)?);
        }
        self.interrupted(interrupted)
    }

    fn interrupted(&mut self, interrupted: Cpu) -> Result<Next, Stop> {
        // The handler returns to the first instruction of its restorer.
        self.mark_exact();
        let before = self.cpu.get(RSP).ok_or(Stop::UnknownRegister)?;
        let stack_pointer = interrupted.get(RSP).ok_or(Stop::UnknownRegister)?;
        self.cpu = interrupted;
        self.exact = true;
        // Beyond the end of a copy that is cut, the next frame says so.
        if stack_pointer > before && stack_pointer < self.memory.reach() {
            return Ok(Next::Frame);
        }
        // Where it was interrupted is known nevertheless.
        let address = self.cpu.get(RIP).ok_or(Stop::UnknownRegister)?;
        let code = self.space.find(address);
        if !matches!(code, Code::Nowhere) && self.addresses.len() < MAX_DEPTH {
            self.addresses.push(address | EXACT);
        }
        Err(Stop::Interrupted)
    }

    /// Without unwind information: by the frame pointer, as far as it is plausible. Never
    /// certain.
    fn frame_pointer(&mut self, why: String) -> Result<Next, Stop> {
        let why = self.doubt.get_or_insert(why).clone();
        let stop = || Stop::Because(why.clone());
        let frame = self.cpu.get(RBP).ok_or_else(stop)?;
        let stack_pointer = self.cpu.get(RSP).ok_or(Stop::UnknownRegister)?;
        if frame < stack_pointer || !frame.is_multiple_of(8) {
            return Err(stop());
        }
        let outer = self.memory.word(frame)?;
        let address = self.memory.return_address(frame.wrapping_add(8))?;
        if !self.is_return_address(address) {
            return Err(stop());
        }
        for register in KEPT {
            self.cpu.forget(register);
        }
        self.cpu.set(RBP, outer);
        self.returned(frame.wrapping_add(16), address)
    }

    /// Whether an address lies in code, behind a call.
    fn is_return_address(&mut self, address: u64) -> bool {
        let mut before = [0; code::CALL];
        let length = before.len() as u64;
        match self.space.find(address.wrapping_sub(1)) {
            Code::File { file, offset } => {
                let end = offset.wrapping_add(1);
                let code = self.files.before(self.space, &file, end);
                code.is_some_and(|code| code::is_call(&code))
            }
            Code::Anonymous => {
                let read = self.space.bytes(address.wrapping_sub(length), &mut before);
                read == before.len() && code::is_call(&before)
            }
            Code::Vdso { .. } | Code::Nowhere | Code::Unreadable { .. } => false,
        }
    }
}

fn sentence(stop: Stop, cut: bool) -> String {
    match stop {
        Stop::Beyond if cut => "truncated copy".into(),
        Stop::Missing => "a page of the stack could not be read (swapped out?)".into(),
        Stop::Beyond => "the stack goes on where its copy ends".into(),
        Stop::Elsewhere => "a frame lies outside the stack".into(),
        Stop::NotCode => "a return address lies in no code (a damaged stack, or the \
                          trampoline of a return probe that is not ours)"
            .into(),
        Stop::UnknownRegister => "a frame needs a register that is not known".into(),
        Stop::Backwards => "a frame does not lie behind the one that it called".into(),
        Stop::Interrupted => "the interrupted stack is not in the copy".into(),
        Stop::Deep => format!("deeper than {MAX_DEPTH} frames"),
        Stop::Damaged(why) => format!("a file {why}"),
        Stop::Because(why) => why,
    }
}
