//! Names of kernel addresses, from /proc/kallsyms and /proc/modules.
//!
//! This is a table of our own because blazesym's reading of kallsyms gives no module, keeps
//! data symbols in memory (a third of them), is not read again when a module or a BPF program
//! is loaded later, and then names a new address after the nearest older symbol. A wrong name
//! is worse than none: an address outside everything known has none, and says so.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::time::{Duration, Instant};

/// How soon the files are read again when an address is in nothing known.
const AGAIN: Duration = Duration::from_secs(30);
/// No BPF program is longer than this, bytes; kallsyms gives only where it begins.
const MAX_BPF: u64 = 64 << 10;
/// Most symbols kept.
const MAX_SYMBOLS: usize = 2_000_000;

/// A kernel address with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// Function.
    pub symbol: &'a str,
    /// Module; `None` for the kernel itself.
    pub module: Option<&'a str>,
    /// Bytes from the function's beginning to the return address.
    pub offset: u64,
}

/// The kernel's symbols, read at the first address and again when needed.
#[derive(Debug, Default)]
pub struct KernelSymbols {
    table: Option<Table>,
}

impl KernelSymbols {
    /// Names a return address: the call is before it, so the byte before it is looked up.
    ///
    /// # Errors
    /// A sentence that says why there is no name.
    pub fn name(&mut self, address: u64) -> Result<Named<'_>, String> {
        let known = self.table.as_ref().is_some_and(|table| table.find(address).is_some());
        let old = self.table.as_ref().is_none_or(|table| table.read_at.elapsed() > AGAIN);
        if !known && old {
            self.table = Some(Table::read());
        }
        let Some(table) = &self.table else { return Err("no kernel symbols were read".into()) };
        match (table.find(address), &table.blank) {
            (Some(named), _) => Ok(named),
            (None, Some(why)) => Err(why.clone()),
            (None, None) => {
                Err("in no function that /proc/kallsyms has (code made at run time?)".into())
            }
        }
    }
}

#[derive(Debug)]
struct Table {
    /// By address; of several at one address the first that kallsyms lists.
    symbols: Vec<Symbol>,
    /// All names, one after the other.
    names: String,
    modules: Vec<Module>,
    read_at: Instant,
    /// Why there are no symbols.
    blank: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    address: u64,
    name: u32,
    length: u16,
    /// Index in `modules`; `CORE` for the kernel itself.
    module: u16,
}

const CORE: u16 = u16::MAX;

#[derive(Debug)]
struct Module {
    name: String,
    /// Where its code and data are, where /proc/modules says so.
    range: Option<(u64, u64)>,
}

impl Table {
    fn read() -> Self {
        let modules = match File::open("/proc/modules") {
            Ok(file) => modules(file),
            // A kernel without modules has no such file.
            Err(_) => Vec::new(),
        };
        match File::open("/proc/kallsyms") {
            Ok(file) => Self::parse(file, modules),
            Err(error) => Self::empty(format!("/proc/kallsyms cannot be opened: {error}")),
        }
    }

    fn empty(why: String) -> Self {
        let (symbols, names, modules) = (Vec::new(), String::new(), Vec::new());
        Self { symbols, names, modules, read_at: Instant::now(), blank: Some(why) }
    }

    fn parse(kallsyms: impl Read, modules: Vec<Module>) -> Self {
        let mut table = Self {
            symbols: Vec::new(),
            names: String::new(),
            modules,
            read_at: Instant::now(),
            blank: None,
        };
        let (mut lines, mut blank) = (0_u64, 0_u64);
        let result = each_line(kallsyms, |line| {
            lines += 1;
            blank += u64::from(table.line(line) == Some(0));
        });
        if let Err(error) = result {
            return Self::empty(format!("/proc/kallsyms cannot be read: {error}"));
        }
        if table.symbols.is_empty() {
            return Self::empty(if blank > 0 {
                "the kernel hides its addresses from us (all of /proc/kallsyms is 0): \
                 kernel.kptr_restrict is set and CAP_SYSLOG is missing"
                    .into()
            } else {
                format!("/proc/kallsyms has no functions ({lines} lines)")
            });
        }
        table.symbols.sort_by_key(|symbol| symbol.address);
        table.symbols.dedup_by_key(|symbol| symbol.address);
        table.symbols.shrink_to_fit();
        table.names.shrink_to_fit();
        table
    }

    /// `address type name [module]`; gives the address of a function.
    fn line(&mut self, line: &str) -> Option<u64> {
        let mut fields = line.split_ascii_whitespace();
        let address = u64::from_str_radix(fields.next()?, 16).ok()?;
        if !matches!(fields.next()?, "t" | "T" | "w" | "W") {
            return None;
        }
        let name = fields.next()?;
        let module = fields.next().map(|field| field.trim_matches(['[', ']']));
        if address != 0 && self.symbols.len() < MAX_SYMBOLS {
            let symbol = Symbol {
                address,
                name: u32::try_from(self.names.len()).ok()?,
                length: u16::try_from(name.len()).ok()?,
                module: module.map_or(Some(CORE), |module| self.module(module))?,
            };
            self.names.push_str(name);
            self.symbols.push(symbol);
        }
        Some(address)
    }

    fn module(&mut self, name: &str) -> Option<u16> {
        // Symbols of one module follow one another.
        if let Some(last) = self.symbols.last()
            && self.modules.get(usize::from(last.module)).is_some_and(|m| m.name == name)
        {
            return Some(last.module);
        }
        let found = self.modules.iter().position(|module| module.name == name);
        let index = found.unwrap_or_else(|| {
            self.modules.push(Module { name: name.into(), range: None });
            self.modules.len() - 1
        });
        u16::try_from(index).ok().filter(|index| *index != CORE)
    }

    fn find(&self, address: u64) -> Option<Named<'_>> {
        let inside = address.checked_sub(1)?;
        let behind = self.symbols.partition_point(|symbol| symbol.address <= inside);
        let symbol = self.symbols.get(behind.checked_sub(1)?)?;
        let start = usize::try_from(symbol.name).ok()?;
        let name = self.names.get(start..start + usize::from(symbol.length))?;
        let module = self.modules.get(usize::from(symbol.module));
        let offset = address - symbol.address;
        let covered = match module {
            // Marks where the kernel's code ends; what follows is none of it.
            None => !matches!(name, "_etext" | "_einittext" | "__end_rodata"),
            Some(Module { range: Some((start, end)), .. }) => *start <= inside && inside < *end,
            Some(Module { range: None, .. }) => offset <= MAX_BPF,
        };
        covered.then_some(Named { symbol: name, module: module.map(|m| m.name.as_str()), offset })
    }
}

/// `name size users dependants state address`.
fn modules(file: impl Read) -> Vec<Module> {
    let mut modules = Vec::new();
    let _partial = each_line(file, |line| {
        let mut fields = line.split_ascii_whitespace();
        let (Some(name), Some(size)) = (fields.next(), fields.next()) else { return };
        let address = fields.nth(3).and_then(|field| field.strip_prefix("0x"));
        let address = address.and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let range = address
            .filter(|address| *address != 0)
            .zip(size.parse::<u64>().ok())
            .map(|(start, size)| (start, start.saturating_add(size)));
        modules.push(Module { name: name.into(), range });
    });
    modules
}

fn each_line(file: impl Read, mut each: impl FnMut(&str)) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(256 << 10, file);
    let mut line = String::new();
    while reader.read_line(&mut line)? != 0 {
        each(&line);
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "\
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000100 t alloc_msg
ffffffff81000180 D some_data
ffffffff81000200 T load_msg
ffffffff81000300 T _etext
ffffffffc0001000 t first\t[nvidia]
ffffffffc0001100 t second\t[nvidia]
ffffffffc0009000 t uvm_va_block_alloc\t[nvidia_uvm]
ffffffffc0100000 t bpf_prog_6deef7357e7b4530_mt_kmalloc\t[bpf]
";
    const MODULES: &str = "nvidia_uvm 4096 0 - Live 0xffffffffc0009000 (POE)\n\
                           nvidia 8192 3 nvidia_uvm, Live 0xffffffffc0001000 (POE)\n";

    fn table() -> Table {
        Table::parse(KALLSYMS.as_bytes(), modules(MODULES.as_bytes()))
    }

    fn find(address: u64) -> Option<(String, Option<String>, u64)> {
        let table = table();
        let named = table.find(address)?;
        Some((named.symbol.into(), named.module.map(Into::into), named.offset))
    }

    #[test]
    fn return_addresses_belong_to_the_call_before_them() {
        assert_eq!(find(0xffff_ffff_8100_0110), Some(("alloc_msg".into(), None, 0x10)));
        // A call that never returns may be a function's last instruction.
        assert_eq!(find(0xffff_ffff_8100_0200), Some(("alloc_msg".into(), None, 0x100)));
        assert_eq!(find(0xffff_ffff_8100_0001), Some(("_stext".into(), None, 1)));
    }

    #[test]
    fn modules_are_named_and_end_where_they_end() {
        let nvidia = Some("nvidia".to_owned());
        assert_eq!(find(0xffff_ffff_c000_1110), Some(("second".into(), nvidia, 0x10)));
        assert_eq!(find(0xffff_ffff_c000_3002), None);
        let uvm = Some("nvidia_uvm".to_owned());
        let named = ("uvm_va_block_alloc".to_owned(), uvm, 0x21);
        assert_eq!(find(0xffff_ffff_c000_9021), Some(named));
    }

    #[test]
    fn what_lies_beyond_has_no_name() {
        assert_eq!(find(0xffff_ffff_8100_0310), None);
        assert_eq!(find(0x1000), None);
        assert_eq!(find(0xffff_ffff_c010_0010).unwrap().1, Some("bpf".into()));
        assert_eq!(find(0xffff_ffff_c020_0010), None);
    }

    #[test]
    fn hidden_addresses_say_what_is_missing() {
        let blank = "0000000000000000 T _stext\n0000000000000000 T load_msg\n";
        let why = Table::parse(blank.as_bytes(), Vec::new()).blank.unwrap();
        assert!(why.contains("CAP_SYSLOG"), "{why}");
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn the_running_kernel_has_load_msg() {
        let text = std::fs::read_to_string("/proc/kallsyms").unwrap();
        let line = text.lines().find(|line| line.ends_with(" load_msg")).unwrap();
        let start = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        let mut symbols = KernelSymbols::default();
        let named = symbols.name(start + 5).unwrap();
        assert_eq!(named, Named { symbol: "load_msg", module: None, offset: 5 });
        assert!(symbols.name(0x1234).unwrap_err().contains("/proc/kallsyms"));
    }
}
