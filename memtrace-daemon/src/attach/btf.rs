//! The running kernel's layout, read from its BTF: offsets of fields and positions of
//! tracepoint arguments, handed to the kernel side as globals (Rust has no CO-RE).
//!
//! Must never guess: a field that the BTF does not have is an error that names it.

use std::path::Path;

use btf_rs::{Backend, Btf, BtfType, Struct, Type};
use thiserror::Error;

/// Where the kernel shows its own BTF.
pub const VMLINUX_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The position of an argument that this kernel does not have: a program reads 0 there.
pub const ABSENT: u64 = u64::MAX;

/// Anonymous members inside anonymous members, at most.
const MAX_NESTING: u32 = 4;

/// Why the layout could not be read.
#[derive(Debug, Error)]
pub enum LayoutError {
    /// No BTF, or one that cannot be parsed.
    #[error(
        "cannot read the kernel's BTF at {path}: {source}; memtrace needs a kernel built with CONFIG_DEBUG_INFO_BTF"
    )]
    Unreadable {
        /// Where it was looked for.
        path: String,
        /// What came back.
        source: btf_rs::Error,
    },
    /// A structure is not there.
    #[error("the kernel's BTF has no struct {0}; this kernel is too old or too new for memtrace")]
    NoStruct(&'static str),
    /// A field is not there.
    #[error(
        "the kernel's BTF has no field {field} in struct {structure}; this kernel is too old or too new for memtrace"
    )]
    NoField {
        /// The structure.
        structure: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A tracepoint is not there.
    #[error("the kernel's BTF does not describe the tracepoint {0}")]
    NoTracepoint(&'static str),
    /// A tracepoint has no such argument.
    #[error("the kernel's BTF has no argument {argument} of the tracepoint {tracepoint}")]
    NoArgument {
        /// The tracepoint.
        tracepoint: &'static str,
        /// The argument.
        argument: &'static str,
    },
}

/// How the kernel's function behind `kfree_rcu` takes what it is to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RcuFree {
    /// `kvfree_call_rcu(head, ptr)`: the second argument is the object (6.4 and later).
    Pointer,
    /// `kvfree_call_rcu(head, func)`: the object is `head` minus the offset in `func`, and
    /// with no head `func` is the object.
    Offset,
}

/// Positions of the arguments of the named slab caches' tracepoints, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheArguments {
    /// Call site of an allocation.
    pub alloc_site: u64,
    /// What was allocated.
    pub alloc_pointer: u64,
    /// The `struct kmem_cache *`; `None` before kernel 6.1.
    pub alloc_cache: Option<u64>,
    /// The bytes of an object, where the tracepoint says them (before kernel 6.1).
    pub alloc_bytes: Option<u64>,
    /// What is freed.
    pub free_pointer: u64,
}

/// Offsets in bytes and argument positions from 0 of the running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelLayout {
    /// Field offsets by the name of the global that carries them.
    offsets: Vec<(&'static str, u64)>,
    /// `call_site`, `ptr`, `bytes_alloc` of `kmalloc`.
    pub kmalloc: [u64; 3],
    /// `ptr` of `kfree`.
    pub kfree: u64,
    /// Named slab caches; `None` where their tracepoints are not described.
    pub cache: Option<CacheArguments>,
    /// Whether `sched_process_exit` says that the last thread has ended.
    pub has_group_dead: bool,
    /// `kvfree_call_rcu`, where the kernel has it.
    pub rcu_free: Option<RcuFree>,
}

/// (global, structure, field).
const FIELDS: [(&str, &str, &str); 16] = [
    ("OFF_TASK_FLAGS", "task_struct", "flags"),
    ("OFF_TASK_STACK", "task_struct", "stack"),
    ("OFF_TASK_GROUP_LEADER", "task_struct", "group_leader"),
    ("OFF_TASK_TGID", "task_struct", "tgid"),
    ("OFF_TASK_PID", "task_struct", "pid"),
    ("OFF_TASK_START_BOOTTIME", "task_struct", "start_boottime"),
    ("OFF_TASK_MM", "task_struct", "mm"),
    ("OFF_TASK_COMM", "task_struct", "comm"),
    ("OFF_TASK_SIGNAL", "task_struct", "signal"),
    ("OFF_SIGNAL_LIVE", "signal_struct", "live"),
    ("OFF_MM_UPROBES_STATE", "mm_struct", "uprobes_state"),
    ("OFF_MM_START_STACK", "mm_struct", "start_stack"),
    ("OFF_MM_EXEC_VM", "mm_struct", "exec_vm"),
    ("OFF_UPROBES_STATE_XOL_AREA", "uprobes_state", "xol_area"),
    ("OFF_XOL_AREA_VADDR", "xol_area", "vaddr"),
    ("OFF_CACHE_OBJECT_SIZE", "kmem_cache", "object_size"),
];

impl KernelLayout {
    /// Reads the running kernel's layout from [`VMLINUX_BTF`].
    ///
    /// # Errors
    /// What is missing, by name.
    pub fn read() -> Result<Self, LayoutError> {
        Self::read_from(Path::new(VMLINUX_BTF))
    }

    /// Reads a layout from a BTF file.
    ///
    /// # Errors
    /// What is missing, by name.
    pub fn read_from(path: &Path) -> Result<Self, LayoutError> {
        // Kernels before 6.15 refuse to map the file; parsing it whole costs some 40 MB for a
        // moment.
        let btf = Btf::from_file_with_backend(path, Backend::Mmap)
            .or_else(|_| Btf::from_file(path))
            .map_err(|source| LayoutError::Unreadable {
                path: path.display().to_string(),
                source,
            })?;
        let mut offsets = FIELDS
            .iter()
            .map(|&(global, structure, field)| Ok((global, offset(&btf, structure, field)?)))
            .collect::<Result<Vec<_>, LayoutError>>()?;
        let thread = offset(&btf, "task_struct", "thread")?;
        offsets.push(("OFF_TASK_FSBASE", thread + offset(&btf, "thread_struct", "fsbase")?));
        Ok(Self {
            offsets,
            kmalloc: [
                argument(&btf, "kmalloc", "call_site")?,
                argument(&btf, "kmalloc", "ptr")?,
                argument(&btf, "kmalloc", "bytes_alloc")?,
            ],
            kfree: argument(&btf, "kfree", "ptr")?,
            cache: cache_arguments(&btf).ok(),
            has_group_dead: argument(&btf, "sched_process_exit", "group_dead").is_ok(),
            rcu_free: rcu_free(&btf),
        })
    }

    /// The globals of the kernel side, by name. A missing argument is [`ABSENT`].
    #[must_use]
    pub fn globals(&self) -> Vec<(&'static str, u64)> {
        let [site, pointer, bytes] = self.kmalloc;
        let cache = self.cache;
        let cache = |get: fn(CacheArguments) -> Option<u64>| cache.and_then(get).unwrap_or(ABSENT);
        let mut globals = self.offsets.clone();
        globals.extend([
            ("ARG_KMALLOC_SITE", site),
            ("ARG_KMALLOC_PTR", pointer),
            ("ARG_KMALLOC_BYTES", bytes),
            ("ARG_KFREE_PTR", self.kfree),
            ("ARG_CACHE_ALLOC_SITE", cache(|c| Some(c.alloc_site))),
            ("ARG_CACHE_ALLOC_PTR", cache(|c| Some(c.alloc_pointer))),
            ("ARG_CACHE_ALLOC_CACHE", cache(|c| c.alloc_cache)),
            ("ARG_CACHE_ALLOC_BYTES", cache(|c| c.alloc_bytes)),
            ("ARG_CACHE_FREE_PTR", cache(|c| Some(c.free_pointer))),
            ("HAS_GROUP_DEAD", u64::from(self.has_group_dead)),
        ]);
        globals
    }
}

fn cache_arguments(btf: &Btf) -> Result<CacheArguments, LayoutError> {
    Ok(CacheArguments {
        alloc_site: argument(btf, "kmem_cache_alloc", "call_site")?,
        alloc_pointer: argument(btf, "kmem_cache_alloc", "ptr")?,
        alloc_cache: argument(btf, "kmem_cache_alloc", "s").ok(),
        alloc_bytes: argument(btf, "kmem_cache_alloc", "bytes_alloc").ok(),
        free_pointer: argument(btf, "kmem_cache_free", "ptr")?,
    })
}

fn rcu_free(btf: &Btf) -> Option<RcuFree> {
    match parameters(btf, "kvfree_call_rcu")?.get(1).map(String::as_str) {
        Some("ptr") => Some(RcuFree::Pointer),
        Some("func") => Some(RcuFree::Offset),
        _ => None,
    }
}

/// Offset of a field in bytes, through anonymous members.
fn offset(btf: &Btf, name: &'static str, field: &'static str) -> Result<u64, LayoutError> {
    let found =
        btf.resolve_types_by_name(name).unwrap_or_default().into_iter().find_map(
            |found| match found {
                Type::Struct(structure) if !structure.members.is_empty() => Some(structure),
                _ => None,
            },
        );
    let structure = found.ok_or(LayoutError::NoStruct(name))?;
    let bits = member_bits(btf, &structure, field, MAX_NESTING)
        .ok_or(LayoutError::NoField { structure: name, field })?;
    Ok(u64::from(bits / 8))
}

fn member_bits(btf: &Btf, structure: &Struct, field: &str, nesting: u32) -> Option<u32> {
    for member in &structure.members {
        let name = btf.resolve_name(member).unwrap_or_default();
        if name == field {
            // A bit field has no address that a program could read.
            return member
                .bitfield_size()
                .is_none_or(|bits| bits == 0)
                .then(|| member.bit_offset());
        }
        if name.is_empty() && nesting > 0 {
            let inner = match btf.resolve_chained_type(member) {
                Ok(Type::Struct(inner) | Type::Union(inner)) => inner,
                _ => continue,
            };
            if let Some(bits) = member_bits(btf, &inner, field, nesting - 1) {
                return member.bit_offset().checked_add(bits);
            }
        }
    }
    None
}

/// Position of a tracepoint's argument, from 0.
///
/// The names are on the function that calls the BPF programs, whose first parameter is the
/// tracepoint's own data; an event of a class shares its class' function.
fn argument(
    btf: &Btf,
    tracepoint: &'static str,
    argument: &'static str,
) -> Result<u64, LayoutError> {
    let class = match tracepoint {
        "kmalloc" | "kmem_cache_alloc" => "kmem_alloc",
        "kmem_cache_free" => "kmem_free",
        "sched_process_exit" => "sched_process_template",
        other => other,
    };
    let parameters = [tracepoint, class]
        .iter()
        .find_map(|name| parameters(btf, &format!("__bpf_trace_{name}")))
        .ok_or(LayoutError::NoTracepoint(tracepoint))?;
    parameters
        .iter()
        .skip(1)
        .position(|name| name == argument)
        .map(|position| position as u64)
        .ok_or(LayoutError::NoArgument { tracepoint, argument })
}

/// Names of the parameters of a kernel function.
fn parameters(btf: &Btf, function: &str) -> Option<Vec<String>> {
    btf.resolve_types_by_name(function).ok()?.iter().find_map(|found| match found {
        Type::Func(function) => match btf.resolve_chained_type(function as &dyn BtfType).ok()? {
            Type::FuncProto(prototype) => Some(
                prototype
                    .parameters
                    .iter()
                    .map(|parameter| btf.resolve_name(parameter).unwrap_or_default())
                    .collect(),
            ),
            _ => None,
        },
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_has_everything() {
        let layout = KernelLayout::read().unwrap();
        let globals = layout.globals();
        let get = |name: &str| globals.iter().find(|(global, _)| *global == name).unwrap().1;
        assert_eq!(globals.len(), 27);
        // The order of the fields is the same in every kernel since 5.5.
        assert!(get("OFF_TASK_STACK") < get("OFF_TASK_FLAGS"));
        assert_eq!(get("OFF_TASK_TGID"), get("OFF_TASK_PID") + 4);
        assert_eq!(get("ARG_KMALLOC_SITE"), 0);
        assert_eq!(get("ARG_KMALLOC_PTR"), 1);
        assert_eq!(get("ARG_KFREE_PTR"), 1);
        assert!(get("ARG_KMALLOC_BYTES") > 2);
    }

    #[test]
    fn a_missing_field_is_named() {
        let btf = Btf::from_file_with_backend(VMLINUX_BTF, Backend::Mmap)
            .or_else(|_| Btf::from_file(VMLINUX_BTF))
            .unwrap();
        let error = offset(&btf, "task_struct", "no_such_field").unwrap_err();
        assert!(error.to_string().contains("no_such_field in struct task_struct"));
        let error = offset(&btf, "no_such_struct", "flags").unwrap_err();
        assert!(error.to_string().contains("struct no_such_struct"));
        let error = argument(&btf, "kfree", "colour").unwrap_err();
        assert!(error.to_string().contains("argument colour of the tracepoint kfree"));
    }

    #[test]
    fn a_file_that_is_no_btf_is_refused() {
        let error = KernelLayout::read_from(Path::new("/proc/self/cmdline")).unwrap_err();
        assert!(matches!(error, LayoutError::Unreadable { .. }));
    }
}
