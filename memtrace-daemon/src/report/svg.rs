//! A flame graph of live bytes that a browser opens: one file, nothing fetched, searchable.
//!
//! Invariant: what it shows is text. inferno escapes markup, and names come without control
//! characters, which XML forbids even escaped.

use std::io::{self, Write};

use inferno::flamegraph::color::{BasicPalette, Color, Palette, PaletteMap};
use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};

use super::escape::escape;
use super::filter::Filter;
use super::tree::{Kind, Tree};
use crate::human;
use crate::snapshot::Snapshot;

/// More frames than this make a browser slow, and are too thin to see.
const MOST_FRAMES: usize = 20_000;
/// Bytes of all lines that the picture is made from.
const MOST_BYTES: usize = 32 << 20;

/// Writes the flame graph. `filter` is what the snapshot was narrowed by, for the title.
///
/// # Errors
///
/// What came back from writing.
pub fn write(snapshot: &Snapshot, filter: &Filter, out: &mut dyn Write) -> io::Result<()> {
    let tree = Tree::of(snapshot);
    if tree.is_empty() {
        return nothing(snapshot, filter, out);
    }
    let (lines, shown) = lines(&tree)?;
    let mut colors = colors(&tree);
    let mut options = Options::default();
    options.title = title(snapshot);
    options.subtitle = Some(subtitle(filter, &tree, shown));
    options.count_name = "bytes".into();
    options.colors = Palette::Basic(BasicPalette::Mem);
    options.palette_map = Some(&mut colors);
    // The same snapshot is the same picture.
    options.deterministic = true;
    options.text_truncate_direction = TextTruncateDirection::Right;
    options.min_width = 0.0;
    // The lines are in the order of the tree already. Sorted as text, a frame would be torn in
    // two by a sibling whose name goes on where its own ends.
    options.flame_chart = true;
    let mut svg = Vec::new();
    from_lines(&mut options, lines.iter().rev().map(String::as_str), &mut svg)?;
    // Frames are bounded, so this is some megabytes.
    let (before, root, after) = root(&svg, &tree);
    out.write_all(before)?;
    out.write_all(root)?;
    out.write_all(after)?;
    out.flush()
}

/// A line a stack, and how many frames are shown: each line has all names on the way, so names
/// that are long leave room for fewer frames.
fn lines(tree: &Tree) -> io::Result<(Vec<String>, usize)> {
    let mut most = MOST_FRAMES;
    loop {
        let (mut lines, mut size) = (Vec::new(), 0_usize);
        tree.each_stack(most, |stack, bytes| {
            size = size.saturating_add(stack.len());
            if size <= MOST_BYTES {
                lines.push(format!("{stack} {bytes}"));
            }
            io::Result::Ok(())
        })?;
        if size <= MOST_BYTES || most < 2 {
            return Ok((lines, most));
        }
        most /= 2;
    }
}

/// The picture before, at and after the title of its root. inferno's says the sum of everything,
/// and domains are never added.
fn root<'a>(svg: &'a [u8], tree: &Tree) -> (&'a [u8], &'static [u8], &'a [u8]) {
    let title = format!("<title>all ({} bytes, 100%)</title>", human::count(tree.total()));
    let at = svg.windows(title.len()).position(|part| part == title.as_bytes());
    let several = tree.domains().nth(1).is_some();
    let parts = at
        .filter(|_| several)
        .and_then(|at| Some((svg.get(..at)?, SEVERAL.as_bytes(), svg.get(at + title.len()..)?)));
    parts.unwrap_or((svg, b"", b""))
}

/// Title of the root where there are several domains.
const SEVERAL: &str = "<title>domains, side by side; never to be added (100%)</title>";

fn title(snapshot: &Snapshot) -> String {
    format!(
        "Live bytes on {}, {}",
        escape(&snapshot.host.name),
        snapshot.generated_at.strftime("%Y-%m-%d %H:%M:%S UTC"),
    )
}

fn subtitle(filter: &Filter, tree: &Tree, shown: usize) -> String {
    let mut domains: Vec<_> = tree.domains().collect();
    domains.sort_unstable();
    let mut said = domains.join(", ");
    if !filter.is_empty() {
        said.push_str(&format!(" · only {filter}"));
    }
    if tree.len() > shown {
        let (most, all) = (human::count(shown as u64), human::count(tree.len() as u64));
        said.push_str(&format!(" · the {most} heaviest of {all} frames"));
    }
    said
}

/// Colours by what a frame is; functions keep the palette's greens.
fn colors(tree: &Tree) -> PaletteMap {
    let mut colors = PaletteMap::default();
    // The root has no name.
    colors.insert("", Color { r: 214, g: 222, b: 214 });
    for (name, kind) in tree.names() {
        let (r, g, b) = match kind {
            Kind::Domain => (122, 164, 224),
            Kind::Process => (168, 200, 240),
            Kind::Kernel => (240, 160, 80),
            Kind::Allocator => (190, 190, 190),
            Kind::Inlined => (110, 205, 205),
            Kind::Nameless => (232, 130, 120),
            Kind::Function => continue,
        };
        colors.insert(name, Color { r, g, b });
    }
    colors
}

/// inferno has an error for this; that nothing is live is none.
fn nothing(snapshot: &Snapshot, filter: &Filter, mut out: impl Write) -> io::Result<()> {
    let title = markup(&title(snapshot));
    let mut said = "nothing is live".to_owned();
    if !filter.is_empty() {
        said.push_str(&format!(" of what was asked for: only {filter}"));
    }
    writeln!(
        out,
        r##"<?xml version="1.0" standalone="no"?>
<svg version="1.1" width="1200" height="90" viewBox="0 0 1200 90" xmlns="http://www.w3.org/2000/svg">
<rect width="100%" height="100%" fill="#eef2ee"/>
<g font-family="monospace" text-anchor="middle">
<text id="title" x="600" y="24" font-size="17">{title}</text>
<text id="nothing" x="600" y="58" font-size="12">{}</text>
</g>
</svg>"##,
        markup(&said)
    )?;
    out.flush()
}

/// Text between tags.
fn markup(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture::{amount, busy, empty, frame, process, site};
    use crate::snapshot::Site;

    fn drawn(snapshot: &Snapshot, filter: &Filter) -> String {
        let mut out = vec![];
        write(&filter.apply(snapshot), filter, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Titles of the frames: `name (bytes, share)`.
    fn titles(svg: &str) -> Vec<String> {
        let parts = svg.split("<title>").skip(1);
        parts.filter_map(|part| Some(part.split_once("</title>")?.0.to_owned())).collect()
    }

    #[test]
    fn frames_say_their_bytes_and_the_picture_says_what_it_is_of() {
        let svg = drawn(&busy(), &Filter::default());
        let titles = titles(&svg);
        let has = |start: &str| titles.iter().any(|title| title.starts_with(start));
        assert!(has("c10::cuda::alloc (3,328,599,654 bytes, "), "{titles:#?}");
        assert!(has("encode_prompt (68,826,850,918 bytes, "), "{titles:#?}");
        assert!(has("[stack not named yet] (67,108,864 bytes, "), "{titles:#?}");
        assert!(has("domains, side by side; never to be added (100%)"), "{titles:#?}");
        assert!(!svg.contains("68,933,809,766"), "the sum of domains is nothing");
        assert!(svg.contains("Live bytes on gpu-17, 2026-11-29 23:10:04 UTC"));
        assert!(svg.contains("cuda, kernel, pinned</text>"));
        assert_eq!(svg, drawn(&busy(), &Filter::default()), "the same picture twice");
        let filter = Filter { pid: Some(977), ..Filter::default() };
        let svg = drawn(&busy(), &filter);
        assert!(svg.contains("kernel · only pid 977") && !svg.contains("encode_prompt"));
        assert!(svg.contains("<title>all (39,845,888 bytes, 100%)</title>"));
    }

    #[test]
    fn names_are_text_and_no_markup() {
        let names = ["</text><script>alert(1)</script>", "a]]>b", "\0\x1b[2J\u{fffe}", "\"'&<"];
        let frames: Vec<_> = names.iter().map(|name| frame(name, "/m", "f.c", 1)).collect();
        let site = Site { frames: frames.into(), ..site(1, "cuda", "cudaMalloc", amount(64, 1)) };
        let mut snapshot = empty();
        snapshot.host.name = "<host>".into();
        snapshot.processes = vec![process(1, "--><a href='x'>", vec![site])];
        for svg in [drawn(&snapshot, &Filter::default()), drawn(&snapshot, &nobody())] {
            assert!(!svg.contains("alert(1)</script>") && !svg.contains("<host>"));
            assert!(!svg.contains("<a ") && !svg.contains("\u{fffe}"));
            assert!(svg.chars().all(|c| !c.is_control() || "\n\t".contains(c)));
            assert_eq!(svg.matches("<script").count(), svg.matches("</script>").count());
        }
        let titles = titles(&drawn(&snapshot, &Filter::default())).join("\n");
        assert!(titles.contains("&lt;/text&gt;&lt;script&gt;alert(1)"), "{titles}");
        assert!(
            titles.contains("a]]&gt;b") && titles.contains("&quot;&apos;&amp;&lt;"),
            "{titles}"
        );
        assert!(titles.contains("\\x00\\x1b[2J\\u{fffe}"), "{titles}");
    }

    fn nobody() -> Filter {
        Filter { comm: Some("<nobody>".into()), ..Filter::default() }
    }

    #[test]
    fn nothing_live_is_a_picture_that_says_so() {
        let svg = drawn(&empty(), &Filter::default());
        assert!(svg.contains("nothing is live</text>") && svg.contains("Live bytes on gpu-17"));
        let svg = drawn(&busy(), &nobody());
        assert!(
            svg.contains("nothing is live of what was asked for: only command &lt;nobody&gt;<")
        );
    }

    #[test]
    fn more_frames_than_a_browser_can_show_are_left_out_and_said() {
        let mut snapshot = empty();
        let sites = (0..30_000_u32).map(|number| Site {
            frames: vec![frame(&format!("f{number}"), "/m", "f.c", 1)].into(),
            ..site(u64::from(number), "cuda", "cudaMalloc", amount(1 + u64::from(number), 1))
        });
        snapshot.processes = vec![process(1, "many", sites.collect())];
        let svg = drawn(&snapshot, &Filter::default());
        assert!(svg.contains("cuda · the 20,000 heaviest of 30,002 frames"));
        assert!(svg.contains("f29999 (30,000 bytes") && !svg.contains("f9999 (10,000 bytes"));
        assert!(svg.contains("many-1 (450,015,000 bytes, 100.00%)"), "sums stay");
        assert_eq!(titles(&svg).len(), 20_001);
    }
}
