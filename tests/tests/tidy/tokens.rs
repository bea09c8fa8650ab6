//! What the rules need to know of a file, read from its tokens: paths with their use trees
//! spelled out (inside macros too), and a few words. Code under `#[cfg(test)]` is left out.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// Words that `::path` may follow and that are no part of it.
const KEYWORDS: [&str; 16] = [
    "as", "break", "const", "dyn", "else", "for", "if", "impl", "in", "match", "mut", "pub", "ref",
    "return", "use", "while",
];

/// A path that the code names.
#[derive(Debug, PartialEq, Eq)]
pub struct Mention {
    /// Its segments; the last is `*` for a glob.
    pub segments: Vec<String>,
    /// Line, from 1.
    pub line: usize,
}

/// What a file says.
#[derive(Debug, Default)]
pub struct Facts {
    /// Paths outside tests.
    pub mentions: Vec<Mention>,
    /// Calls of `unwrap` and `expect` outside tests: line and name.
    pub unwraps: Vec<(usize, String)>,
    /// `unsafe` blocks and implementations outside tests.
    pub unsafe_lines: Vec<usize>,
    /// `#[ignore]` anywhere: line and reason.
    pub ignores: Vec<(usize, Option<String>)>,
    /// `#[allow]` anywhere.
    pub allows: Vec<usize>,
    /// Modules declared under `#[cfg(test)]` that are files of their own.
    pub test_modules: Vec<String>,
}

/// Reads a file.
pub fn read(text: &str) -> Result<Facts, String> {
    let tokens: TokenStream = text.parse().map_err(|error| format!("cannot be read: {error}"))?;
    let mut facts = Facts::default();
    walk(tokens, &[], false, &mut facts);
    Ok(facts)
}

/// Walks one level of tokens. `prefix` is the path before the braces of a use tree.
fn walk(tokens: TokenStream, prefix: &[String], test: bool, facts: &mut Facts) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut position = 0;
    let mut under_cfg_test = false;
    while let Some(token) = tokens.get(position) {
        if let Some(attribute) = attribute_at(&tokens, position) {
            under_cfg_test |= attribute_facts(attribute, facts);
            position += 2;
        } else if under_cfg_test {
            position = skip_item(&tokens, position, facts);
            under_cfg_test = false;
        } else if let TokenTree::Ident(_) = token {
            position = ident(&tokens, position, prefix, test, facts);
        } else {
            if let TokenTree::Group(group) = token {
                walk(group.stream(), &[], test, facts);
            }
            position += 1;
        }
    }
}

/// The brackets of `#[…]` at a position.
fn attribute_at(tokens: &[TokenTree], position: usize) -> Option<&Group> {
    match (tokens.get(position)?, tokens.get(position + 1)?) {
        (TokenTree::Punct(hash), TokenTree::Group(group))
            if hash.as_char() == '#' && group.delimiter() == Delimiter::Bracket =>
        {
            Some(group)
        }
        _ => None,
    }
}

/// Notes `ignore` and `allow`; whether the attribute is `cfg(test)`.
fn attribute_facts(attribute: &Group, facts: &mut Facts) -> bool {
    let line = attribute.span_open().start().line;
    let inside: Vec<TokenTree> = attribute.stream().into_iter().collect();
    match inside.first().map(ToString::to_string).as_deref() {
        Some("ignore") => {
            let reason =
                inside.get(2).map(|reason| reason.to_string().trim_matches('"').to_owned());
            facts.ignores.push((line, reason));
        }
        Some("allow") => facts.allows.push(line),
        Some("cfg") => return inside.get(1).is_some_and(|group| group.to_string() == "(test)"),
        _ => {}
    }
    false
}

/// Steps over an item under `#[cfg(test)]`, to behind its `;` or braces, and notes a module
/// that is a file of its own. Attributes of tests inside it still count.
fn skip_item(tokens: &[TokenTree], start: usize, facts: &mut Facts) -> usize {
    let mut module = None;
    for (position, token) in tokens.iter().enumerate().skip(start) {
        match token {
            TokenTree::Ident(name) if name == "mod" => {
                module = tokens.get(position + 1).map(ToString::to_string);
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => {
                facts.test_modules.extend(module);
                return position + 1;
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                walk(group.stream(), &[], true, facts);
                return position + 1;
            }
            _ => {}
        }
    }
    tokens.len()
}

/// Reads the path, or the word, that begins with the identifier at a position; returns the
/// position behind it.
fn ident(
    tokens: &[TokenTree],
    start: usize,
    prefix: &[String],
    test: bool,
    facts: &mut Facts,
) -> usize {
    let Some(TokenTree::Ident(first)) = tokens.get(start) else { return start + 1 };
    let line = first.span().start().line;
    let before = start.checked_sub(1).and_then(|position| tokens.get(position));
    let name = first.to_string();
    if before.is_some_and(|token| is_punct(token, '.')) {
        let called = matches!(tokens.get(start + 1), Some(TokenTree::Group(_)));
        if called && !test && (name == "unwrap" || name == "expect") {
            facts.unwraps.push((line, name));
        }
        return start + 1;
    }
    if name == "unsafe" {
        let next = tokens.get(start + 1);
        let block = matches!(next, Some(TokenTree::Group(_)));
        let implementation = matches!(next, Some(TokenTree::Ident(word)) if word == "impl");
        if !test && (block || implementation) {
            facts.unsafe_lines.push(line);
        }
        return start + 1;
    }
    if KEYWORDS.contains(&name.as_str()) {
        return start + 1;
    }

    let mut segments = prefix.to_vec();
    // `{self, …}` in a use tree is the path before the braces.
    if prefix.is_empty() || name != "self" {
        segments.push(name);
    }
    let mut position = start + 1;
    while separator_at(tokens, position) {
        match tokens.get(position + 2) {
            Some(TokenTree::Ident(next)) => segments.push(next.to_string()),
            Some(TokenTree::Punct(star)) if star.as_char() == '*' => segments.push("*".to_owned()),
            Some(TokenTree::Group(tree)) if tree.delimiter() == Delimiter::Brace => {
                walk(tree.stream(), &segments, test, facts);
                return position + 3;
            }
            _ => break,
        }
        position += 3;
    }
    let used = matches!(before, Some(TokenTree::Ident(word)) if word == "use");
    if !test && (segments.len() > 1 || used) {
        facts.mentions.push(Mention { segments, line });
    }
    position
}

fn separator_at(tokens: &[TokenTree], position: usize) -> bool {
    let colon = |position| tokens.get(position).is_some_and(|token| is_punct(token, ':'));
    colon(position) && colon(position + 1)
}

fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}
