//! What the names in perf maps mean: which are Python functions, which are JavaScript's, and
//! what of a name is the same in every process. Parses text; reads nothing.

use crate::snapshot::FrameKind;

/// The tags that V8 puts before a function that has a script; which one depends on how the
/// function came to be compiled, not on which function it is.
const SCRIPTED: &[&str] = &["JS:", "LazyCompile:", "Function:", "Script:", "Eval:"];
/// The tags of V8's own code.
const OWN: &[&str] = &["Builtin:", "BytecodeHandler:", "Stub:", "RegExp:", "Handler:", "Wasm:"];

/// A function made at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JitName {
    /// `python`, else `native`.
    pub kind: FrameKind,
    /// Function name.
    pub symbol: String,
    /// Source file.
    pub file: Option<String>,
    /// Source line.
    pub line: Option<u32>,
    /// The same for the same function in every process, however hot it is: no address, no mark
    /// of the compiler that made it.
    pub identity: String,
}

impl JitName {
    /// What a perf map's name says.
    #[must_use]
    pub fn parse(name: &str) -> Self {
        python(name).or_else(|| script(name)).unwrap_or_else(|| {
            let own = OWN.iter().find_map(|tag| name.strip_prefix(tag));
            let symbol = own.map_or(name, without_mark).trim();
            let symbol = if symbol.is_empty() { name } else { symbol };
            Self {
                kind: FrameKind::Native,
                symbol: symbol.into(),
                file: None,
                line: None,
                identity: format!("jit:{symbol}"),
            }
        })
    }
}

/// CPython: `py::QUALIFIED_NAME:FILE`. A name has no colon.
fn python(name: &str) -> Option<JitName> {
    let (symbol, file) = name.strip_prefix("py::")?.split_once(':')?;
    Some(JitName {
        kind: FrameKind::Python,
        symbol: symbol.into(),
        file: Some(file.into()),
        line: None,
        identity: name.into(),
    })
}

/// V8: a tag, a mark of the compiler, the function's name (which may be empty), a space, the
/// script, line and column.
fn script(name: &str) -> Option<JitName> {
    let text = without_mark(SCRIPTED.iter().find_map(|tag| name.strip_prefix(tag))?);
    let (function, place) = match place_in(text) {
        Some(at) => text.split_at_checked(at)?,
        None => (text, ""),
    };
    let (function, place) = (function.trim(), place.trim());
    let symbol = if function.is_empty() { "(anonymous)" } else { function };
    let (file, line) = match position(place) {
        Some((file, line)) => (Some(file), Some(line)),
        None => (Some(place).filter(|place| !place.is_empty()), None),
    };
    Some(JitName {
        kind: FrameKind::Native,
        symbol: symbol.into(),
        file: file.map(Into::into),
        line,
        identity: format!("js:{symbol} {place}").trim_end().into(),
    })
}

/// Where the script begins: names have spaces (`get size`), and so have paths.
fn place_in(text: &str) -> Option<usize> {
    let begins = [" /", " file:", " node:", " http:", " https:", " internal/", " evalmachine"];
    begins.iter().filter_map(|begin| text.find(begin)).min().or_else(|| text.find(' '))
}

/// `FILE:LINE:COLUMN`.
fn position(place: &str) -> Option<(&str, u32)> {
    let (rest, column) = place.rsplit_once(':')?;
    let _column: u32 = column.parse().ok()?;
    let (file, line) = rest.rsplit_once(':')?;
    Some((file, line.parse().ok()?))
}

/// Without V8's mark: `~` interpreted, `^` baseline, `+` and `*` optimised, with `'` where the
/// code is for one context only.
fn without_mark(text: &str) -> &str {
    let Some(behind) = text.strip_prefix(['~', '^', '+', '*']) else { return text };
    behind.strip_prefix('\'').unwrap_or(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str) -> (FrameKind, String, Option<String>, Option<u32>, String) {
        let JitName { kind, symbol, file, line, identity } = JitName::parse(name);
        (kind, symbol, file, line, identity)
    }

    #[test]
    fn python_functions_have_a_name_and_a_file() {
        let (kind, symbol, file, line, identity) = parsed("py::Pool.grow.<locals>.f:/srv/a:b.py");
        assert_eq!((kind, symbol.as_str()), (FrameKind::Python, "Pool.grow.<locals>.f"));
        assert_eq!((file.as_deref(), line), (Some("/srv/a:b.py"), None));
        assert_eq!(identity, "py::Pool.grow.<locals>.f:/srv/a:b.py");
    }

    #[test]
    fn a_script_function_is_the_same_however_hot_it_is() {
        let names = [
            "JS:~keep /srv/my app/leak.js:12:5",
            "JS:*keep /srv/my app/leak.js:12:5",
            "JS:+'keep /srv/my app/leak.js:12:5",
            "LazyCompile:^keep /srv/my app/leak.js:12:5",
        ];
        for name in names {
            let (kind, symbol, file, line, identity) = parsed(name);
            assert_eq!((kind, symbol.as_str(), line), (FrameKind::Native, "keep", Some(12)));
            assert_eq!(file.as_deref(), Some("/srv/my app/leak.js"));
            assert_eq!(identity, "js:keep /srv/my app/leak.js:12:5");
        }
    }

    #[test]
    fn odd_names_are_still_names() {
        for (name, symbol, file, line) in [
            ("JS:~get size file:///srv/x.mjs:3:7", "get size", Some("file:///srv/x.mjs"), Some(3)),
            ("JS:~ node:internal/main:1:1", "(anonymous)", Some("node:internal/main"), Some(1)),
            ("Script:~ /srv/x.js:1:1", "(anonymous)", Some("/srv/x.js"), Some(1)),
            ("Function:~f", "f", None, None),
            ("Builtin:ArrayMap", "ArrayMap", None, None),
            ("RegExp:a b", "a b", None, None),
            ("Builtin:", "Builtin:", None, None),
            ("Lcom/example/Main;::run", "Lcom/example/Main;::run", None, None),
            ("py::", "py::", None, None),
            ("*", "*", None, None),
        ] {
            let found = parsed(name);
            assert_eq!((found.1.as_str(), found.2.as_deref(), found.3), (symbol, file, line));
        }
    }
}
