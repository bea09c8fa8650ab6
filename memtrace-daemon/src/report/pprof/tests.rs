//! What a profile says, read back as bytes: sums, places, words.

use std::io::Read;

use flate2::read::GzDecoder;

use super::*;
use crate::report::fixture::{amount, busy, empty, frame, kernel, process, run, site};
use crate::snapshot::{Frame, Taken, TakenBy};

fn read(snapshot: &Snapshot, filter: &Filter) -> Profile {
    let mut bytes = vec![];
    write(&filter.apply(snapshot), filter, &mut bytes).unwrap();
    let mut plain = vec![];
    GzDecoder::new(&*bytes).read_to_end(&mut plain).unwrap();
    Profile::decode(&*plain).unwrap()
}

fn whole(snapshot: &Snapshot) -> Profile {
    read(snapshot, &Filter::default())
}

impl Profile {
    fn text(&self, index: i64) -> &str {
        &self.string_table[usize::try_from(index).unwrap()]
    }

    fn sums(&self) -> [i64; 4] {
        [0, 1, 2, 3].map(|at| self.sample.iter().map(|sample| sample.value[at]).sum())
    }

    /// (function, file, line) of a sample's stack, a list for each location.
    fn stack(&self, sample: usize) -> Vec<Vec<(&str, &str, i64)>> {
        let location = |id: &u64| self.location.iter().find(|one| one.id == *id).unwrap();
        let function = |id: u64| self.function.iter().find(|one| one.id == id).unwrap();
        let lines = |id| {
            let lines = location(id).line.iter().map(|line| {
                let function = function(line.function_id);
                (self.text(function.name), self.text(function.filename), line.line)
            });
            lines.collect()
        };
        self.sample[sample].location_id.iter().map(lines).collect()
    }

    fn labels(&self, sample: usize) -> Vec<(&str, String)> {
        let labels = self.sample[sample].label.iter();
        labels
            .map(|label| {
                let word = if label.str == 0 {
                    label.num.to_string()
                } else {
                    self.text(label.str).into()
                };
                (self.text(label.key), word)
            })
            .collect()
    }

    fn comments(&self) -> String {
        self.comment.iter().map(|id| self.text(*id)).collect::<Vec<_>>().join("\n")
    }
}

fn sums_of_sites(snapshot: &Snapshot) -> [i64; 4] {
    let sites = || snapshot.processes.iter().flat_map(|process| &process.sites);
    [0, 1, 2, 3].map(|at| sites().map(|site| i64::try_from(values(site)[at]).unwrap()).sum())
}

#[test]
fn samples_add_up_to_the_sites() {
    for snapshot in [busy(), run(), empty()] {
        let profile = whole(&snapshot);
        assert_eq!(profile.sums(), sums_of_sites(&snapshot));
        let types: Vec<_> = profile
            .sample_type
            .iter()
            .map(|of| (profile.text(of.r#type), profile.text(of.unit)))
            .collect();
        assert_eq!(types, VALUES);
        assert_eq!(profile.text(profile.default_sample_type), "live_space");
        assert_eq!(profile.string_table[0], "");
    }
    for filter in [
        Filter { pid: Some(977), ..Filter::default() },
        Filter { domain: Some(memtrace_common::Domain::Pinned), ..Filter::default() },
        Filter { site: Some(0xabc), ..Filter::default() },
        Filter { comm: Some("python3".into()), ..Filter::default() },
    ] {
        let profile = read(&busy(), &filter);
        assert_eq!(profile.sums(), sums_of_sites(&filter.apply(&busy())), "{filter}");
        assert_ne!(profile.sums(), whole(&busy()).sums(), "{filter}");
        assert!(profile.comments().contains(&format!("only {filter}")), "{}", profile.comments());
    }
}

#[test]
fn an_inlined_function_is_a_line_of_the_function_that_it_is_in() {
    let at = |offset, frame: Frame| Frame {
        offset: Some(offset),
        build_id: Some("ab12".into()),
        ..frame
    };
    let inlined = |frame| Frame { inlined: true, ..frame };
    let frames = vec![
        at(0x2345, inlined(frame("innermost", "/opt/a.so", "in.c", 1))),
        at(0x2345, inlined(frame("inner", "/opt/a.so", "in.c", 2))),
        at(0x2345, frame("outer", "/opt/a.so", "out.c", 3)),
        at(0x9001, frame("main", "/opt/a.so", "main.c", 4)),
        at(0x10, Frame { module: Some("/opt/b.so".into()), ..Frame::default() }),
    ];
    let mut snapshot = empty();
    let site = Site { frames: frames.into(), ..site(1, "cuda", "cudaMalloc", amount(64, 1)) };
    snapshot.processes = vec![process(1, "app", vec![site.clone(), site])];
    let profile = whole(&snapshot);
    let expected = [
        vec![("innermost", "in.c", 1), ("inner", "in.c", 2), ("outer", "out.c", 3)],
        vec![("main", "main.c", 4)],
        vec![],
    ];
    assert_eq!(profile.stack(0), expected);
    assert_eq!(profile.stack(1), expected);
    assert_eq!((profile.location.len(), profile.function.len()), (3, 4));

    let [a, b] = profile.mapping[..] else { panic!("{:?}", profile.mapping) };
    assert_eq!((profile.text(a.filename), profile.text(a.build_id)), ("/opt/a.so", "ab12"));
    assert_eq!(profile.text(b.filename), "/opt/b.so");
    assert!(a.has_functions && a.has_filenames && a.has_line_numbers && a.has_inline_frames);
    assert!(!b.has_functions && !b.has_filenames && !b.has_line_numbers && !b.has_inline_frames);
    assert!(a.memory_limit <= b.memory_start && b.memory_limit < 1 << 63);
    // What a reader computes: the offset in the file of the call, which is before the address
    // that it returns to.
    let in_file = |location: &proto::Location, mapping: proto::Mapping| {
        assert_eq!(location.mapping_id, mapping.id);
        assert!((mapping.memory_start..mapping.memory_limit).contains(&location.address));
        location.address - mapping.memory_start + mapping.file_offset
    };
    assert_eq!(in_file(&profile.location[0], a), 0x2344);
    assert_eq!(in_file(&profile.location[1], a), 0x9000);
    assert_eq!(in_file(&profile.location[2], b), 0xf);
    // The mapping begins in the segment that has the code, not before it.
    assert_eq!(a.file_offset, 0x2000);
}

#[test]
fn kernel_frames_have_addresses_of_their_own_and_the_callers_come_outside() {
    let profile = read(&busy(), &Filter { pid: Some(977), ..Filter::default() });
    let names: Vec<_> = profile.stack(0).into_iter().map(|lines| lines[0].0).collect();
    let kernel_names = ["__kmalloc_noprof", "load_msg", "do_msgsnd", "do_syscall_64"];
    assert_eq!(names, [&kernel_names[..], &["send_all", "main"]].concat());
    let mapping = profile.mapping[0];
    assert_eq!(profile.text(mapping.filename), "[kernel.kallsyms]");
    assert!(mapping.has_functions && !mapping.has_filenames);
    let addresses: Vec<_> = profile.location[..4].iter().map(|one| one.address).collect();
    assert!(addresses.is_sorted_by(|a, b| a < b), "{addresses:x?}");
    assert!(addresses.iter().all(|at| (mapping.memory_start..mapping.memory_limit).contains(at)));

    let mut snapshot = empty();
    let module = Frame { module: Some("nvidia_uvm".into()), ..kernel("uvm_alloc", 3, false) };
    let frames = vec![module, Frame { module: Some("[stack]".into()), ..Frame::default() }].into();
    let leak = Site { frames, ..site(1, "kernel", "kmalloc", amount(64, 1)) };
    snapshot.processes = vec![process(1, "app", vec![leak])];
    let profile = whole(&snapshot);
    assert_eq!(profile.text(profile.mapping[0].filename), "[nvidia_uvm]");
}

#[test]
fn samples_say_whose_they_are() {
    let profile = whole(&busy());
    let labels = [("domain", "cuda"), ("comm", "python3"), ("pid", "4121")];
    let more = [("site", "0000000000000abc"), ("api", "cudaMalloc"), ("verdict", "leak")];
    let expected: Vec<_> = labels.into_iter().chain(more).map(|(k, v)| (k, v.into())).collect();
    assert_eq!(profile.labels(1), expected);
    assert_eq!(profile.time_nanos, busy().generated_at.as_nanosecond() as i64);
    assert_eq!(profile.duration_nanos, 8_103 * 1_000_000_000);
    let hostile = profile.string_table.iter().find(|text| text.chars().any(char::is_control));
    assert_eq!(hostile, None);
    assert!(profile.string_table.contains(&"\\x1b[2Jroot\\nLEAK".to_owned()));
}

#[test]
fn what_is_not_whole_is_in_brackets_and_in_the_comments() {
    let mut snapshot = busy();
    let sites = &mut snapshot.processes[0].sites;
    let short = Taken { by: TakenBy::Copy, incomplete: Some("truncated copy".into()) };
    sites[0].stack = Some(short);
    sites[2].note = Some("unattributed");
    let profile = whole(&snapshot);
    assert_eq!(profile.stack(2), [[("[unattributed]", "", 0)]]);
    for line in [
        "lost: live_map_full, 2 times, 8,192 bytes: these allocations were seen",
        "lost: recursion, 1,203 times: kernel events",
        "without a stack: 67,108,864 bytes of pinned",
        "stack incomplete: 1 site: truncated copy",
        "not covered: /home/eve/\\x1b[31mlibcudart.so.12 in pid 4121: 16 files",
        "not seen: vmalloc",
    ] {
        assert!(profile.comments().contains(line), "{line} is not in\n{}", profile.comments());
    }
}

#[test]
fn absurd_figures_break_nothing() {
    let odd = |offset, module: Option<&str>| Frame {
        symbol: Some("odd".into()),
        offset,
        module: module.map(Into::into),
        ..Frame::default()
    };
    let frames = vec![
        Frame::default(),
        odd(Some(u64::MAX), Some("/a")),
        odd(Some(0), Some("/a")),
        odd(None, Some("/a")),
        odd(Some(7), None),
        kernel("f", u64::MAX, false),
        Frame { inlined: true, ..odd(Some(9), Some("/a")) },
    ];
    let site = Site {
        frames: frames.into(),
        live_bytes: u64::MAX,
        ..site(1, "cuda", "cudaMalloc", amount(1, 1))
    };
    let mut snapshot = empty();
    snapshot.processes = vec![process(0, "", vec![site])];
    let profile = whole(&snapshot);
    assert_eq!(profile.sample[0].value[0], i64::MAX);
    assert_eq!(profile.stack(0)[0], [("[unknown]", "", 0)]);
    assert_eq!(profile.labels(0)[1], ("pid", "0".into()));
    for location in &profile.location {
        let mapping = profile.mapping.iter().find(|one| one.id == location.mapping_id);
        let inside =
            |m: &proto::Mapping| (m.memory_start..m.memory_limit).contains(&location.address);
        assert!(mapping.is_none_or(inside), "{location:?} {mapping:?}");
    }
}
