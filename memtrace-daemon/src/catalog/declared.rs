//! Functions that the daemon's configuration adds to the catalog, in the tables that the catalog
//! itself is written in.

use memtrace_common::{FIRST_DECLARED_FUNCTION, Family, FunctionId, PointerClass};

use super::check::{allocator, class, free, library};
use super::document::{AllocatorRow, FreeRow};
use super::{Catalog, Function, Library};

/// More than anybody writes by hand, and few enough for one row of totals each in every process.
const MOST: usize = 128;

/// Name spaces of what the programs on the kernel's side know more about than a document says.
const OWN: [u8; 4] = [
    PointerClass::Physical as u8,
    PointerClass::Context as u8,
    PointerClass::Primary as u8,
    PointerClass::Tensor as u8,
];

/// Name spaces of pointers that the configuration names: a word, and whether something gives and
/// something takes such pointers.
#[derive(Default)]
struct Pointers<'a> {
    words: Vec<(&'a str, bool, bool)>,
}

impl<'a> Pointers<'a> {
    /// The name space of a word; one of its own where memtrace has none of the word.
    fn class(&mut self, word: &'a str, gives: bool) -> Result<u8, String> {
        match class(word) {
            Ok(class) if OWN.contains(&class) => {
                return Err(format!("pointers: `{word}` are for memtrace's own functions"));
            }
            Ok(class) => return Ok(class),
            Err(_) => {}
        }
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if word.is_empty() || !word.bytes().all(fits) {
            return Err(format!("pointers: `{}` is no word", word.escape_debug()));
        }
        let place = self.words.iter().position(|(known, ..)| *known == word);
        let place = place.unwrap_or_else(|| {
            self.words.push((word, false, false));
            self.words.len() - 1
        });
        if let Some((_, given, taken)) = self.words.get_mut(place) {
            *given |= gives;
            *taken |= !gives;
        }
        Ok(PointerClass::FIRST_DECLARED + place as u8)
    }

    /// That whatever is given can be taken back, and the other way round.
    fn check(&self) -> Result<(), String> {
        for (word, given, taken) in &self.words {
            if !taken {
                return Err(format!(
                    "[[allocator]]: nothing frees pointers `{word}`, so that all would look kept; \
                     declare a [[free]] with pointers = \"{word}\""
                ));
            }
            if !given {
                return Err(format!(
                    "[[free]]: nothing gives pointers `{word}`; declare an [[allocator]] with \
                     pointers = \"{word}\""
                ));
            }
        }
        Ok(())
    }
}

impl Catalog {
    /// This catalog and what is declared.
    ///
    /// # Errors
    /// What makes no sense, in one line that names the function.
    pub(super) fn with(
        &self,
        allocators: &[AllocatorRow],
        frees: &[FreeRow],
    ) -> Result<Self, String> {
        let mut catalog = self.clone();
        let mut pointers = Pointers::default();
        if allocators.len() + frees.len() > MOST {
            return Err(format!("[[allocator]], [[free]]: more than {MOST} functions"));
        }
        let mut next = FIRST_DECLARED_FUNCTION;
        for row in allocators {
            let within = |message: String| format!("[[allocator]] {message}");
            let of = |message: String| within(format!("{}: {message}", row.symbol));
            own(row.id).map_err(of)?;
            let library = catalog.declared_library(&row.library).map_err(of)?;
            let class = pointers.class(&row.pointers, true).map_err(of)?;
            let spec = allocator(row, library, class).map_err(within)?;
            catalog.push(next, library, &row.symbol, spec).map_err(within)?;
            next += 1;
        }
        for row in frees {
            let within = |message: String| format!("[[free]] {message}");
            let of = |message: String| within(format!("{}: {message}", row.symbol));
            own(row.id).map_err(of)?;
            let library = catalog.declared_library(&row.library).map_err(of)?;
            let class = pointers.class(&row.pointers, false).map_err(of)?;
            let spec = free(row, library, class).map_err(within)?;
            catalog.push(next, library, &row.symbol, spec).map_err(within)?;
            next += 1;
        }
        pointers.check()?;
        Ok(catalog.seal())
    }

    /// The functions that were declared.
    pub(super) fn declared(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(|function| function.id >= FIRST_DECLARED_FUNCTION)
    }

    /// A library that is declared: one that is known, or a new one.
    fn declared_library(&mut self, soname: &str) -> Result<Library, String> {
        let new = library(soname, Family::Declared)?;
        for known in &self.libraries {
            let prefix = known.soname_prefix;
            if prefix == soname {
                return Ok(*known);
            }
            // A DT_SONAME names one library only.
            if prefix.starts_with(soname) || soname.starts_with(prefix) {
                return Err(format!("library `{soname}` is known as `{prefix}`; write that"));
            }
        }
        self.libraries.push(new);
        Ok(new)
    }
}

fn own(id: Option<FunctionId>) -> Result<(), String> {
    id.map_or(Ok(()), |_| Err("id: only memtrace's own functions have one".to_owned()))
}

#[cfg(test)]
mod tests {
    use memtrace_common::{Domain, FunctionKind, PointerRule, SizeRule, Success};

    use super::super::{CATALOG, document::Document};
    use super::*;

    fn declare(text: &str) -> Result<Catalog, String> {
        let document: Document = toml::from_str(text).map_err(|error| error.to_string())?;
        CATALOG.with(&document.allocator, &document.free)
    }

    const TAKE: &str = "[[allocator]]\nlibrary = 'libpool.so'\nsymbol = 'pool_take'\n\
        domain = 'heap'\npointers = 'pool'\nsize = [0, 1]\npointer = 'return'\n";
    const GIVE: &str = "[[free]]\nlibrary = 'libpool.so'\nsymbol = 'pool_give'\n\
        domain = 'heap'\npointers = 'pool'\nargument = 1\nsuccess = 'always'\n";

    #[test]
    fn a_declared_pair_is_as_it_is_written() {
        let catalog = declare(&format!("{TAKE}{GIVE}")).unwrap();
        let [take, give] = catalog.declared().copied().collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(
            (take.symbol, take.domain, take.library.name),
            ("pool_take", Domain::Heap, "libpool")
        );
        assert_eq!(take.id, FIRST_DECLARED_FUNCTION);
        assert_eq!(take.spec.size_rule, SizeRule::Product as u8);
        assert_eq!(take.spec.pointer_rule, PointerRule::Return as u8);
        assert_eq!(take.spec.success, Success::NonNull as u8);
        assert_eq!(give.spec.kind, FunctionKind::Free as u8);
        assert_eq!((give.spec.pointer_argument, give.spec.success), (1, Success::Always as u8));
        assert_eq!(take.spec.class, give.spec.class);
        assert!(take.spec.class >= PointerClass::FIRST_DECLARED);
        // The rest is where it was.
        assert_eq!(catalog.functions[..CATALOG.functions.len()], CATALOG.functions);
    }

    #[test]
    fn a_wrapper_may_give_pointers_that_memtrace_knows() {
        let text = TAKE.replace("'pool'", "'device'").replace("'heap'", "'cuda'");
        let catalog = declare(&text).unwrap();
        let take = catalog.declared().next().unwrap();
        assert_eq!(take.spec.class, PointerClass::Device as u8);
        assert_ne!(take.spec.folds & Family::CudaRuntime as u8, 0);
    }

    #[test]
    fn what_makes_no_sense_is_one_line_that_names_the_function() {
        let pair = format!("{TAKE}{GIVE}");
        for (text, expected) in [
            (
                pair.replace("'heap'", "'gpu'"),
                "[[allocator]] pool_take: unknown domain `gpu`; choose",
            ),
            (pair.replace("'heap'", "'kernel'"), "unknown domain `kernel`; choose from cuda,"),
            (
                pair.replace("[0, 1]", "6"),
                "[[allocator]] pool_take: argument 6 is not in a register",
            ),
            (pair.replace("argument = 1", "argument = 9"), "[[free]] pool_give: argument 9 is not"),
            (format!("{pair}{TAKE}"), "[[allocator]] pool_take: libpool has it twice"),
            (
                pair.replace("pool_take", "_Z9pool_takem"),
                "[[allocator]] _Z9pool_takem: a function of C++ or Rust may throw",
            ),
            (pair.replace("pool_take", "pool take"), "[[allocator]] `pool take` is no symbol of C"),
            (pair.replace("libpool.so", "libpool"), "library `libpool`: no DT_SONAME such as"),
            (
                pair.replace("libpool.so", "libcuda.so.1"),
                "library `libcuda.so.1` is known as `libcuda.so`; write that",
            ),
            (
                pair.replace("libpool.so", "libcuda.so").replace("pool_take", "cuMemAlloc_v2"),
                "[[allocator]] cuMemAlloc_v2: libcuda has it twice",
            ),
            (TAKE.to_owned(), "[[allocator]]: nothing frees pointers `pool`"),
            (GIVE.to_owned(), "[[free]]: nothing gives pointers `pool`"),
            (
                pair.replace("'return'", "'return'\nsuccess = 'zero'"),
                "pool_take: it returns a pointer, so no status: success = \"zero\"",
            ),
            (
                pair.replace("'return'", "{ out = 2 }\nsuccess = 'not_null'"),
                "pool_take: it returns no pointer: success = \"not_null\"",
            ),
            (pair.replace("size =", "id = 9\nsize ="), "pool_take: id: only memtrace's own"),
            (pair.replace("'pool'", "'physical'"), "`physical` are for memtrace's own functions"),
            (pair.replace("'pool'", "''"), "[[allocator]] pool_take: pointers: `` is no word"),
        ] {
            let error = declare(&text).map(|_| ()).unwrap_err();
            assert!(error.contains(expected), "{text}\ngave: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        let many = (0..MOST).map(|n| TAKE.replace("pool_take", &format!("take_{n}")));
        let error = declare(&format!("{}{GIVE}", many.collect::<String>())).unwrap_err();
        assert!(error.contains("more than 128 functions"), "{error}");
    }
}
