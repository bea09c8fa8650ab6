//! From what is written to what the kernel side is told: refuses what makes no sense, in one line
//! that names the function.

use std::ops::Range;

use memtrace_common::{
    Counted, DeviceRule, Domain, FIRST_DECLARED_FUNCTION, FIRST_LIBRARY_FUNCTION,
    FIRST_STATIC_PROBE, Family, FunctionId, FunctionKind, FunctionSpec, PointerClass, PointerRule,
    SizeRule, Success,
};

use super::document::{
    AllocatorRow, DeviceForm, Document, FreeRow, MapRow, PointerForm, ProbeRow, ResetRow,
    SelectRow, SizeForm, SuccessForm,
};
use super::{Catalog, Function, Library};

/// The last argument that is in a register by the calling convention.
const LAST_ARGUMENT: u8 = 5;

impl Catalog {
    /// The functions of memtrace's own documents.
    ///
    /// # Errors
    /// What is wrong with one of them.
    pub(super) fn read(documents: &[&str]) -> Result<Self, String> {
        let mut catalog = Self::default();
        for text in documents {
            let document = toml::from_str(text).map_err(|error| error.to_string())?;
            catalog.add(&document)?;
        }
        Ok(catalog.seal())
    }

    fn add(&mut self, document: &Document) -> Result<(), String> {
        for row in &document.library {
            let library = library(&row.soname, row.family.family())?;
            self.libraries.push(library);
        }
        for row in &document.allocator {
            let (library, id) = (self.library(&row.library)?, own_id(row.id, &row.symbol, OWN)?);
            let spec = allocator(row, library, class(&row.pointers)?)?;
            self.push(id, library, &row.symbol, spec)?;
        }
        for row in &document.free {
            let (library, id) = (self.library(&row.library)?, own_id(row.id, &row.symbol, OWN)?);
            let spec = free(row, library, class(&row.pointers)?)?;
            self.push(id, library, &row.symbol, spec)?;
        }
        for row in &document.map {
            let library = self.library(&row.library)?;
            let id = own_id(Some(row.id), &row.symbol, OWN)?;
            self.push(id, library, &row.symbol, map(row, library)?)?;
        }
        for row in &document.select {
            let library = self.library(&row.library)?;
            let id = own_id(Some(row.id), &row.symbol, OWN)?;
            self.push(id, library, &row.symbol, select(row, library)?)?;
        }
        for row in &document.reset {
            let library = self.library(&row.library)?;
            let id = own_id(Some(row.id), &row.symbol, OWN)?;
            self.push(id, library, &row.symbol, reset(row, library)?)?;
        }
        for row in &document.probe {
            let library = self.library(&row.library)?;
            let name = format!("{}:{}", row.provider, row.name);
            let id = own_id(Some(row.id), &name, PROBES)?;
            let function = self.function(id, library, &name, probe(row, &name, library)?)?;
            self.probes.push(function);
        }
        Ok(())
    }

    fn library(&self, soname: &str) -> Result<Library, String> {
        let mut libraries = self.libraries.iter();
        let found = libraries.find(|library| library.soname_prefix == soname);
        found.copied().ok_or_else(|| format!("no library `{soname}`"))
    }

    /// Enters a function, unless its place is taken.
    pub(super) fn push(
        &mut self,
        id: FunctionId,
        library: Library,
        symbol: &str,
        spec: FunctionSpec,
    ) -> Result<(), String> {
        let function = self.function(id, library, symbol, spec)?;
        self.functions.push(function);
        Ok(())
    }

    fn function(
        &self,
        id: FunctionId,
        library: Library,
        symbol: &str,
        spec: FunctionSpec,
    ) -> Result<Function, String> {
        let mut known = self.functions.iter().chain(&self.probes);
        if known.any(|other| other.id == id) {
            return Err(format!("{symbol}: id {id} is another function's"));
        }
        let mut known = self.functions.iter().chain(&self.probes);
        if known.any(|one| one.library == library && one.symbol == symbol) {
            return Err(format!("{symbol}: {} has it twice", library.name));
        }
        let domain = spec.domain().ok_or_else(|| format!("{symbol}: no domain"))?;
        // The catalog is made once and kept to the end.
        let symbol = symbol.to_owned().leak();
        Ok(Function { id, library, symbol, domain, spec })
    }
}

/// A library by what its DT_SONAME begins with.
pub(super) fn library(soname: &str, family: Family) -> Result<Library, String> {
    let named = soname.split_once(".so").map(|(name, _)| name).filter(|name| !name.is_empty());
    let name = named.ok_or_else(|| format!("library `{soname}`: no DT_SONAME such as libx.so"))?;
    let (name, soname_prefix) = (name.to_owned().leak(), soname.to_owned().leak());
    Ok(Library { name, soname_prefix, family })
}

/// Ids of memtrace's own functions, and of static probes.
const OWN: Range<FunctionId> = FIRST_LIBRARY_FUNCTION..FIRST_STATIC_PROBE;
const PROBES: Range<FunctionId> = FIRST_STATIC_PROBE..FIRST_DECLARED_FUNCTION;

fn own_id(
    id: Option<FunctionId>,
    symbol: &str,
    range: Range<FunctionId>,
) -> Result<FunctionId, String> {
    id.filter(|id| range.contains(id)).ok_or_else(|| {
        format!("{symbol}: its id is not between {} and {}", range.start, range.end - 1)
    })
}

/// The name space of a word.
pub(super) fn class(pointers: &str) -> Result<u8, String> {
    match pointers {
        "device" => Ok(PointerClass::Device as u8),
        "pinned" => Ok(PointerClass::Pinned as u8),
        "registered" => Ok(PointerClass::Registered as u8),
        "array" => Ok(PointerClass::Array as u8),
        "ipc" => Ok(PointerClass::Ipc as u8),
        "physical" => Ok(PointerClass::Physical as u8),
        "context" => Ok(PointerClass::Context as u8),
        "primary" => Ok(PointerClass::Primary as u8),
        "stream" => Ok(PointerClass::Stream as u8),
        "event" => Ok(PointerClass::Event as u8),
        "graph" => Ok(PointerClass::Graph as u8),
        "graph_exec" => Ok(PointerClass::GraphExec as u8),
        "memory_pool" => Ok(PointerClass::MemoryPool as u8),
        "external" => Ok(PointerClass::External as u8),
        "object" => Ok(PointerClass::Object as u8),
        "tensor" => Ok(PointerClass::Tensor as u8),
        _ => Err(format!("no pointers `{pointers}`")),
    }
}

/// How calls of an allocating function are read.
pub(super) fn allocator(
    row: &AllocatorRow,
    library: Library,
    class: u8,
) -> Result<FunctionSpec, String> {
    let symbol = symbol(&row.symbol)?;
    let argument = |number| argument(symbol, number);
    let (size_rule, size_a, size_b) = match row.size {
        SizeForm::Argument(a) => (SizeRule::Argument, argument(a)?, 0),
        SizeForm::Product([a, b]) => (SizeRule::Product, argument(a)?, argument(b)?),
        SizeForm::Pitched(form) => {
            (SizeRule::ProductAtReturn, argument(form.pitch)?, argument(form.height)?)
        }
        SizeForm::Named(name) => (name.rule(), 0, 0),
    };
    let (pointer_rule, pointer_argument) = match row.pointer {
        PointerForm::Named(_) => (PointerRule::Return, 0),
        PointerForm::Out(form) => (PointerRule::OutParameter, argument(form.out)?),
        PointerForm::Argument(form) => (PointerRule::Argument, argument(form.argument)?),
        PointerForm::Ordinal(form) => (PointerRule::Ordinal, argument(form.ordinal)?),
    };
    let (device_rule, device_argument) = match row.device {
        None => (DeviceRule::Current, 0),
        Some(DeviceForm::Argument(a)) => (DeviceRule::Ordinal, argument(a)?),
        Some(DeviceForm::Properties(form)) => (DeviceRule::Properties, argument(form.properties)?),
    };
    let domain = domain(symbol, &row.domain)?;
    let success = match (pointer_rule, row.success) {
        (PointerRule::Return, None) => Success::NonNull,
        (_, None) => Success::ZeroStatus,
        (PointerRule::Return, Some(SuccessForm::Zero)) => {
            return Err(format!(
                "{symbol}: it returns a pointer, so no status: success = \"zero\""
            ));
        }
        (_, Some(SuccessForm::NotNull)) if pointer_rule != PointerRule::Return => {
            return Err(format!("{symbol}: it returns no pointer: success = \"not_null\""));
        }
        (_, Some(form)) => form.success(),
    };
    Ok(FunctionSpec {
        kind: FunctionKind::Allocate as u8,
        domain: domain as u8,
        class,
        size_rule: size_rule as u8,
        size_a,
        size_b,
        pointer_rule: pointer_rule as u8,
        pointer_argument,
        success: success as u8,
        family: library.family as u8,
        folds: folds(library.family),
        counted: if row.again { Counted::Given as u8 } else { counted(class) },
        device_rule: device_rule as u8,
        device_argument,
        bound: u8::from(bound(domain, class)),
        ..FunctionSpec::default()
    })
}

/// Whether what is given is gone with its context, as the reference of `cuCtxDestroy` lists it.
/// Memory of the virtual-memory API is not: it belongs to the device. Contexts are ended by
/// functions of their own, graphs and what libraries make by nothing but their own functions.
fn bound(domain: Domain, class: u8) -> bool {
    match domain {
        Domain::Cuda | Domain::Managed | Domain::Pinned | Domain::CudaIpc => {
            class != PointerClass::Physical as u8
        }
        Domain::Handles => {
            class == PointerClass::Stream as u8 || class == PointerClass::Event as u8
        }
        _ => false,
    }
}

/// How calls of a freeing function are read.
pub(super) fn free(row: &FreeRow, library: Library, class: u8) -> Result<FunctionSpec, String> {
    let symbol = symbol(&row.symbol)?;
    Ok(FunctionSpec {
        kind: FunctionKind::Free as u8,
        domain: domain(symbol, &row.domain)? as u8,
        class,
        pointer_rule: if class == PointerClass::Primary as u8 {
            PointerRule::Ordinal as u8
        } else {
            PointerRule::Argument as u8
        },
        pointer_argument: argument(symbol, row.argument)?,
        success: row.success.unwrap_or(SuccessForm::Zero).success() as u8,
        family: library.family as u8,
        folds: folds(library.family),
        counted: counted(class),
        ..FunctionSpec::default()
    })
}

/// How calls of a mapping function are read.
fn map(row: &MapRow, library: Library) -> Result<FunctionSpec, String> {
    let symbol = symbol(&row.symbol)?;
    let kind = if row.handle.is_some() { FunctionKind::Map } else { FunctionKind::Unmap };
    Ok(FunctionSpec {
        kind: kind as u8,
        domain: Domain::Cuda as u8,
        class: PointerClass::Physical as u8,
        size_rule: SizeRule::Argument as u8,
        size_a: argument(symbol, row.size)?,
        size_b: argument(symbol, row.handle.unwrap_or_default())?,
        pointer_rule: PointerRule::Argument as u8,
        pointer_argument: argument(symbol, row.address)?,
        success: Success::ZeroStatus as u8,
        family: library.family as u8,
        ..FunctionSpec::default()
    })
}

/// How calls of a function are read that changes the device or the context of its thread.
fn select(row: &SelectRow, library: Library) -> Result<FunctionSpec, String> {
    let symbol = symbol(&row.symbol)?;
    let said = [
        (row.device, DeviceRule::Ordinal),
        (row.context, DeviceRule::Context),
        (row.push, DeviceRule::Push),
        (row.pop.then_some(0), DeviceRule::Pop),
    ];
    let mut said = said.into_iter().filter_map(|(argument, rule)| Some((argument?, rule)));
    let (Some((number, rule)), None) = (said.next(), said.next()) else {
        return Err(format!("{symbol}: one of device, context, push and pop"));
    };
    Ok(FunctionSpec {
        kind: FunctionKind::Select as u8,
        domain: Domain::Cuda as u8,
        success: Success::ZeroStatus as u8,
        family: library.family as u8,
        device_rule: rule as u8,
        device_argument: argument(symbol, number)?,
        ..FunctionSpec::default()
    })
}

/// How calls of a function are read that resets a device.
fn reset(row: &ResetRow, library: Library) -> Result<FunctionSpec, String> {
    let symbol = symbol(&row.symbol)?;
    let rule = if row.device.is_some() { DeviceRule::Ordinal } else { DeviceRule::Current };
    Ok(FunctionSpec {
        kind: FunctionKind::Reset as u8,
        domain: Domain::Cuda as u8,
        success: Success::ZeroStatus as u8,
        family: library.family as u8,
        device_rule: rule as u8,
        device_argument: argument(symbol, row.device.unwrap_or_default())?,
        ..FunctionSpec::default()
    })
}

/// How a static probe is read. It has no return, and nothing nests in it.
fn probe(row: &ProbeRow, name: &str, library: Library) -> Result<FunctionSpec, String> {
    let kind = if row.size.is_some() { FunctionKind::Allocate } else { FunctionKind::Free };
    let size_rule = if row.size.is_some() { SizeRule::Argument } else { SizeRule::None };
    Ok(FunctionSpec {
        kind: kind as u8,
        domain: domain(name, &row.domain)? as u8,
        class: class(&row.pointers)?,
        size_rule: size_rule as u8,
        size_a: row.size.unwrap_or_default(),
        pointer_rule: PointerRule::Argument as u8,
        pointer_argument: row.pointer,
        success: Success::Always as u8,
        family: library.family as u8,
        ..FunctionSpec::default()
    })
}

/// How memory of a name space is counted.
const fn counted(class: u8) -> u8 {
    if class == PointerClass::Ipc as u8 || class == PointerClass::Primary as u8 {
        Counted::Given as u8
    } else if class == PointerClass::Physical as u8 {
        Counted::Mapped as u8
    } else {
        0
    }
}

fn symbol(symbol: &str) -> Result<&str, String> {
    if symbol.starts_with("_Z") || symbol.starts_with("_R") {
        return Err(format!(
            "{symbol}: a function of C++ or Rust may throw, and an exception through a return \
             probe kills the process; only functions of C can be declared"
        ));
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if symbol.is_empty() || symbol.len() > 255 || !symbol.bytes().all(fits) {
        return Err(format!("`{}` is no symbol of C", symbol.escape_debug()));
    }
    Ok(symbol)
}

fn domain(symbol: &str, name: &str) -> Result<Domain, String> {
    let libraries = Domain::ALL.into_iter().filter(|domain| *domain != Domain::Kernel);
    libraries.clone().find(|domain| domain.name() == name).ok_or_else(|| {
        let names: Vec<_> = libraries.map(Domain::name).collect();
        format!("{symbol}: unknown domain `{name}`; choose from {}", names.join(", "))
    })
}

fn argument(symbol: &str, number: u8) -> Result<u8, String> {
    if number <= LAST_ARGUMENT {
        return Ok(number);
    }
    Err(format!(
        "{symbol}: argument {number} is not in a register; arguments count from 0 to {LAST_ARGUMENT}"
    ))
}

/// Which nested families are the same memory under an inner name.
const fn folds(family: Family) -> u8 {
    match family {
        Family::CudaRuntime => {
            Family::CudaRuntime as u8 | Family::CudaDriver as u8 | Family::Mmap as u8
        }
        Family::CudaDriver => Family::CudaDriver as u8 | Family::Mmap as u8,
        Family::Heap => Family::Heap as u8 | Family::Mmap as u8,
        Family::Hip => Family::Hip as u8 | Family::Mmap as u8,
        Family::Declared => {
            Family::CudaRuntime as u8
                | Family::CudaDriver as u8
                | Family::Hip as u8
                | Family::Heap as u8
                | Family::Mmap as u8
                | Family::Declared as u8
        }
        Family::Library => Family::Library as u8,
        Family::Mmap | Family::Alone => 0,
    }
}
