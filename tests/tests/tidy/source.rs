//! The files of the repository as the rules see them: with comments and strings blanked, and with
//! tests blanked.

use std::path::{Path, PathBuf};

/// One file. All three texts have the same lines.
#[derive(Debug)]
pub(crate) struct Source {
    /// Its path from the root of the repository, with `/`.
    pub(crate) path: String,
    /// The original text.
    pub(crate) text: String,
    /// The text without comments and without the content of strings. Only for Rust files.
    pub(crate) code: String,
    /// The code without its tests.
    pub(crate) product: String,
}

/// A place: `path:line`.
pub(crate) fn place(source: &Source, offset: usize) -> String {
    format!("{}:{}", source.path, source.code[..offset].matches('\n').count() + 1)
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_path_buf()
}

/// Every file written by people, in order of path.
pub(crate) fn all() -> Vec<Source> {
    let mut sources = Vec::new();
    walk(&root(), "", &mut sources);
    sources.sort_by(|a: &Source, b| a.path.cmp(&b.path));
    assert!(sources.len() > 20, "no repository at {}", root().display());
    sources
}

/// Every Rust file.
pub(crate) fn rust() -> Vec<Source> {
    all().into_iter().filter(|source| source.path.ends_with(".rs")).collect()
}

fn walk(folder: &Path, prefix: &str, sources: &mut Vec<Source>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the repository").flatten() {
        let name = entry.file_name().into_string().expect("names are text");
        let path = format!("{prefix}{name}");
        let hidden = name.starts_with('.') && ![".ci", ".gitignore"].contains(&name.as_str());
        if hidden || name == "target" {
            continue;
        }
        let kind = entry.file_type().expect("an entry just read");
        if kind.is_dir() {
            walk(&entry.path(), &format!("{path}/"), sources);
        } else if let (true, Ok(text)) = (kind.is_file(), std::fs::read_to_string(entry.path())) {
            sources.push(Source::new(path, text));
        }
    }
}

impl Source {
    fn new(path: String, text: String) -> Self {
        let code = if path.ends_with(".rs") { without_prose(&text) } else { text.clone() };
        let in_tests = path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs");
        let product = if in_tests { blank(&code) } else { without_tests(&code) };
        Self { path, text, code, product }
    }
}

fn blank(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect()
}

/// Blanks comments and the content of strings and character literals.
pub(crate) fn without_prose(text: &str) -> String {
    let c: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < c.len() {
        let end = match prose(&c, at) {
            Some(end) => end.min(c.len()),
            None => {
                out.push(c[at]);
                at += 1;
                continue;
            }
        };
        // Quotes stay, so that `concat!("a")` is still a call with an argument.
        for (i, &char) in c[at..end].iter().enumerate() {
            let edge = (i == 0 || at + i + 1 == end) && char == '"';
            out.push(if char == '\n' || edge { char } else { ' ' });
        }
        at = end;
    }
    out
}

/// The end of the comment or literal that begins at `at`; `None` if none begins there.
fn prose(c: &[char], at: usize) -> Option<usize> {
    let get = |i: usize| c.get(i).copied().unwrap_or('\0');
    let word_before = at > 0 && (c[at - 1].is_alphanumeric() || c[at - 1] == '_');
    match (c[at], get(at + 1)) {
        ('/', '/') => Some(c[at..].iter().position(|&x| x == '\n').map_or(c.len(), |n| at + n)),
        ('/', '*') => {
            let (mut depth, mut i) = (1, at + 2);
            while depth > 0 && i < c.len() {
                match (c[i], get(i + 1)) {
                    ('/', '*') => (depth, i) = (depth + 1, i + 1),
                    ('*', '/') => (depth, i) = (depth - 1, i + 1),
                    _ => {}
                }
                i += 1;
            }
            Some(i)
        }
        ('r', '"' | '#') if !word_before || (at > 0 && c[at - 1] == 'b') => {
            let hashes = c[at + 1..].iter().take_while(|&&x| x == '#').count();
            if get(at + 1 + hashes) != '"' {
                return None; // r#keyword
            }
            let closes = |i: usize| c[i] == '"' && (1..=hashes).all(|n| get(i + n) == '#');
            let body = at + 2 + hashes;
            Some((body..c.len()).find(|&i| closes(i)).map_or(c.len(), |i| i + 1 + hashes))
        }
        ('"', _) => {
            let mut i = at + 1;
            while i < c.len() && c[i] != '"' {
                i += if c[i] == '\\' { 2 } else { 1 };
            }
            Some(i + 1)
        }
        // A character, not a lifetime.
        ('\'', '\\') => Some(c[at + 3..].iter().position(|&x| x == '\'').map_or(c.len(), |n| at + n + 4)),
        ('\'', _) if get(at + 2) == '\'' => Some(at + 3),
        _ => None,
    }
}

/// Blanks every item that exists only in tests.
fn without_tests(code: &str) -> String {
    let mut out = code.to_string();
    let mut from = 0;
    while let Some(found) = out[from..].find("#[cfg(") {
        let start = from + found;
        let condition = balanced(&out, start + 5);
        from = condition.1;
        let words = &out[condition.0..condition.1];
        if word_at(words, "test").is_none() || words.contains("not(test)") {
            continue;
        }
        let rest = &out[from..];
        let body = rest.find(['{', ';']).map_or(out.len(), |n| from + n);
        let end = if out[body..].starts_with('{') { balanced(&out, body).1 } else { out.len().min(body + 1) };
        let blanked = blank(&out[start..end]);
        // Blanking keeps the number of characters, not bytes: the blanked text is code, which is
        // almost always ASCII.
        let same = blanked.len() == end - start;
        out.replace_range(start..end, &if same { blanked } else { blank_bytes(&out[start..end]) });
        from = end;
    }
    out
}

fn blank_bytes(text: &str) -> String {
    text.bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }).collect()
}

/// The inside of the bracket that opens at `open`: from after it to after its end.
pub(crate) fn balanced(code: &str, open: usize) -> (usize, usize) {
    let mut depth = 0;
    for (n, byte) in code[open..].bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (open + 1, open + n + 1);
        }
    }
    (open + 1, code.len())
}

/// The first place of `word` as a whole word.
pub(crate) fn word_at(code: &str, word: &str) -> Option<usize> {
    words_at(code, word).next()
}

/// Every place of `word` as a whole word: no letter, digit or underscore beside it.
pub(crate) fn words_at<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = code[..at].chars().next_back().is_some_and(part) && word.starts_with(part);
        let behind = code[at + word.len()..].chars().next().is_some_and(part) && word.ends_with(part);
        !before && !behind
    })
}

#[test]
fn comments_strings_and_tests_are_not_code() {
    let text = r####"
fn f<'a>(x: &'a str) { g("unsafe // \" here", 'u', '\'', r#"un"safe"#) } // unsafe
/* unsafe /* unsafe */ unsafe */ fn h() {}
#[cfg(test)]
mod tests { fn t() { unsafe {} } }
#[cfg(not(test))]
fn i() { word(); }
"####;
    let source = Source::new("core/src/x.rs".into(), text.into());
    assert_eq!(words_at(&source.code, "unsafe").count(), 1);
    assert_eq!(words_at(&source.product, "unsafe").count(), 0);
    assert_eq!(source.product.lines().count(), text.lines().count());
    assert!(source.product.contains("fn h() {}") && source.product.contains("word()"));
    assert!(source.code.contains("<'a>(x: &'a str)"));
    assert_eq!(word_at("unsafely unsafe", "unsafe"), Some(9));
}
