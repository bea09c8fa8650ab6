//! How a row of the catalog is written, and the description for the kernel side made of it.

use memtrace_common::{
    Domain, Family, FunctionId, FunctionKind, FunctionSpec, PointerClass, PointerRule, SizeRule,
    Success,
};

use super::{Function, Library};

/// A row before it has an id. Arguments count from 0.
pub(super) struct Row {
    pub library: Library,
    pub symbol: &'static str,
    pub domain: Domain,
    pub class: PointerClass,
    pub family: Family,
    pub form: Form,
}

/// The forms of allocator functions that the generic programs can read.
pub(super) enum Form {
    /// `status f(T **out = argument 0, …)`, size in an argument.
    OutPointer { size: u8 },
    /// `status f(T **out = argument 0, size_t *pitch, …)`, size is `*pitch` at return × an argument.
    OutPitched { pitch: u8, height: u8 },
    /// `status f(T *pointer = argument 0)`.
    Free,
}

impl Row {
    pub(super) fn function(self, id: FunctionId) -> Function {
        let mut spec = FunctionSpec {
            domain: self.domain as u8,
            class: self.class as u8,
            success: Success::ZeroStatus as u8,
            family: self.family as u8,
            folds: folds(self.family),
            ..FunctionSpec::default()
        };
        match self.form {
            Form::OutPointer { size } => {
                spec.kind = FunctionKind::Allocate as u8;
                spec.size_rule = SizeRule::Argument as u8;
                spec.size_a = size;
                spec.pointer_rule = PointerRule::OutParameter as u8;
            }
            Form::OutPitched { pitch, height } => {
                spec.kind = FunctionKind::Allocate as u8;
                spec.size_rule = SizeRule::ProductAtReturn as u8;
                spec.size_a = pitch;
                spec.size_b = height;
                spec.pointer_rule = PointerRule::OutParameter as u8;
            }
            Form::Free => {
                spec.kind = FunctionKind::Free as u8;
                spec.pointer_rule = PointerRule::Argument as u8;
            }
        }
        Function { id, library: self.library, symbol: self.symbol, domain: self.domain, spec }
    }
}

/// Which nested families are the same memory under an inner name.
const fn folds(family: Family) -> u8 {
    match family {
        Family::CudaRuntime => {
            Family::CudaRuntime as u8 | Family::CudaDriver as u8 | Family::Mmap as u8
        }
        Family::CudaDriver => Family::CudaDriver as u8 | Family::Mmap as u8,
        Family::Heap => Family::Heap as u8 | Family::Mmap as u8,
        Family::Mmap => 0,
    }
}
