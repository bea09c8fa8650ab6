//! A file says what it says, a wrong one gives one line with the place.

use std::path::Path;
use std::time::Duration;

use memtrace_common::Domain;

use super::values::{parse_bytes, parse_duration};
use super::{Config, Domains, Listen};

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("m.toml"), text).map_err(|error| error.to_string())
}

#[test]
fn nothing_said_is_the_default() {
    assert_eq!(parse("").unwrap(), Config::default());
}

#[test]
fn values_arrive() {
    let config = parse(
        "domains = ['cuda']\nlisten = 'off'\nsettle = '2s'\nquantum = '64KiB'\n\
         [maps]\nring = 1048576\n[stacks]\nallocators = ['our::pool::*']\n[exclude]\ncomm = ['nginx']\nuid = [33]\n",
    )
    .unwrap();
    assert_eq!(config.domains.iter().collect::<Vec<_>>(), [Domain::Cuda]);
    assert_eq!(config.listen, Listen(None));
    assert_eq!(config.settle, Duration::from_secs(2));
    assert_eq!(config.quantum, 65_536);
    assert_eq!(config.maps.ring, 1 << 20);
    assert_eq!(config.stacks.allocators, ["our::pool::*"]);
    assert_eq!(config.exclude.comm, ["nginx"]);
    assert_eq!(config.exclude.uid, [33]);
}

#[test]
fn a_wrong_line_is_named_in_one_line() {
    for (text, expected) in [
        ("a = 1", "m.toml line 1: unknown field `a`"),
        ("\n[maps]\n\nrings = 1", "m.toml line 4: unknown field `rings`"),
        ("[verdicts]", "m.toml line 1: unknown field `verdicts`"),
        ("domains = ['kernel', 'gpu']", "m.toml line 1: unknown domain `gpu`; choose from kernel,"),
        ("domains = ['mmap']", "domain `mmap` has no probes yet; choose from kernel,"),
        ("domains = []", "no domain is named"),
        ("settle = '5'", "m.toml line 1: `5` is no duration; write it like 500ms"),
        ("settle = '-5s'", "no duration"),
        ("listen = 'here'", "m.toml line 1: `here` is no address; write IP:PORT"),
        ("socket = 'x'", "m.toml: socket: `x` is not an absolute path"),
        ("quantum = 1", "m.toml: quantum: less than 4KiB"),
        ("[maps]\nring = 1000000", "m.toml: maps.ring: 1000000 bytes is no power of two"),
        ("[maps]\naccounts = 1", "m.toml: maps.accounts: 1 is not between"),
        ("[stacks]\nallocator = []", "m.toml line 2: unknown field `allocator`"),
        ("[stacks]\nallocators = ['f', ' **']", "stacks.allocators: ` **` fits every function"),
        ("[exclude]\ncomm = ['a-very-long-process-name']", "exclude.comm"),
        ("[exclude]\nlibrary_build_id = ['xyz']", "exclude.library_build_id: `xyz`"),
        (
            "[exclude]\nlibrary_version = ['libcudart']",
            "exclude.library_version: `libcudart` is no",
        ),
        ("[exclude]\nlibrary_version = ['a.so.x']", "exclude.library_version: `a.so.x` is no"),
        ("[ceiling]\nfirings_per_second = 999", "ceiling.firings_per_second: 999 is what any"),
        ("[ceiling]\npause = '10ms'", "ceiling.pause: 0.01 s is not between"),
        ("[include]\nunit = ['nginx']", "include.unit: `nginx` is no unit"),
        ("[include]\ncgroup = ['nginx']", "include.cgroup: `nginx` does not begin with /"),
        ("[verdict]\nwindow_seconds = nan", "verdict.window_seconds: NaN"),
        (
            "[verdict]\nconfidence_to_report = 97",
            "m.toml: verdict.confidence_to_report: 97 is not between 0 and 1, as SURE",
        ),
        ("[verdict]\nconfidence_to_report = nan", "verdict.confidence_to_report: NaN"),
        ("[verdict]\n\nknown_sites = ['abc']", "m.toml line 3: `abc` is no site; an id has 16 hex"),
        ("[verdict]\nknown_sites = [12]", "m.toml line 2: invalid type: integer `12`"),
        ("[verdict.domain.gpu]\n", "unknown domain `gpu`; choose from kernel,"),
        ("[verdict.domain.mmap]\n", "domain `mmap` has no probes yet; choose from kernel,"),
        (
            "[verdict.domain.cuda]\nwindow_seconds = 1.0",
            "m.toml line 2: unknown field `window_seconds`, expected one of `minimum_age_seconds`,",
        ),
        ("[verdict.domain.cuda]\nminimum_bytes = 'lots'", "m.toml line 2: `lots` is no size"),
        (
            "[verdict.domain.cuda]\nminimum_age_seconds = -1.0",
            "m.toml: verdict.domain.cuda.minimum_age_seconds: -1 is not between 0 and 604800",
        ),
        (
            "[verdict.domain.kernel]\nconfidence_to_report = 1.5",
            "m.toml: verdict.domain.kernel.confidence_to_report: 1.5 is not between 0 and 1",
        ),
        ("listen = [", "m.toml line 1: "),
        ("[[allocator]]\nsymbol = 'f'\nlibary = 'x'", "m.toml line 3: unknown field `libary`"),
        ("[[allocator]]\nsymbol = 'f'", "m.toml line 1: missing field `library`"),
        (
            "[[free]]\nlibrary = 'libx.so'\nsymbol = 'f'\ndomain = 'gpu'\npointers = 'x'",
            "m.toml: [[free]] f: unknown domain `gpu`; choose from cuda,",
        ),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected), "{text:?} gave: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn declared_functions_give_a_domain_its_probes() {
    let declared = "[[allocator]]\nlibrary = 'libx.so'\nsymbol = 'take'\ndomain = 'heap'\n\
        pointers = 'x'\nsize = 0\npointer = 'return'\n\
        [[free]]\nlibrary = 'libx.so'\nsymbol = 'give'\ndomain = 'heap'\npointers = 'x'\n";
    let error = parse(declared).unwrap_err();
    assert_eq!(error, "m.toml: [[allocator]] take: its domain is off; add \"heap\" to `domains`");
    let config = parse(&format!("domains = ['heap']\n{declared}")).unwrap();
    assert_eq!((config.allocator.len(), config.free.len()), (1, 1));
    assert!(parse("domains = ['heap']").is_err());
    for (from, to, expected) in [
        ("size = 0", "size = 'big'", "m.toml line 7: a size is the number of an argument"),
        ("'return'", "'here'", "m.toml line 8: a pointer is"),
    ] {
        let error = parse(&format!("domains = ['heap']\n{}", declared.replace(from, to)));
        let error = error.unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn verdicts_are_set_by_domain_and_site() {
    let verdict = parse(
        "[verdict]\nknown_sites = ['0b96d93d16c8b97c', '00000000000000FF']\n\
         [verdict.domain.cuda]\nminimum_bytes = 4096\nminimum_age_seconds = 5.0\n\
         [verdict.domain.kernel]\nminimum_bytes = '4MiB'\nconfidence_to_report = 1.0\n",
    )
    .unwrap()
    .verdict;
    assert_eq!(verdict.known_sites, [0x0b96_d93d_16c8_b97c, 0xff]);
    let cuda = verdict.domain[&Domain::Cuda];
    assert_eq!((cuda.minimum_bytes, cuda.confidence_to_report), (Some(4096), None));
    assert_eq!(cuda.minimum_age_seconds, Some(5.0));
    let kernel = verdict.domain[&Domain::Kernel];
    assert_eq!((kernel.minimum_bytes, kernel.confidence_to_report), (Some(4 << 20), Some(1.0)));
    assert_eq!(verdict.minimum_bytes, 1 << 20, "the others keep what they have");
}

#[test]
fn a_missing_file_says_which_and_what_to_do() {
    let error = Config::load(Path::new("/nonexistent/m.toml")).unwrap_err().to_string();
    assert!(error.starts_with("cannot read the configuration /nonexistent/m.toml: No such file"));
    assert!(error.ends_with("name another with --config"));
}

#[test]
fn sizes() {
    for (text, bytes) in [
        ("0", 0),
        ("1048576", 1 << 20),
        ("32KiB", 32 << 10),
        ("32k", 32 << 10),
        ("1.5GiB", 3 << 29),
        ("2 MiB", 2 << 20),
        ("1MB", 1_000_000),
        ("512B", 512),
    ] {
        assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
    }
    for text in ["", "KiB", "-1", "1.5", "1 parsec", "1e9", "20000000T", "1.2.3M", "inf"] {
        assert!(parse_bytes(text).is_err(), "{text}");
    }
}

#[test]
fn durations() {
    for (text, milliseconds) in
        [("500ms", 500), ("10s", 10_000), ("2m", 120_000), ("1h30m", 5_400_000)]
    {
        assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
    }
    for text in ["", "10", "-1s", "soon"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}

#[test]
fn a_list_of_domains_reads_back() {
    let domains: Domains = "pinned, kernel".parse().unwrap();
    assert_eq!(domains.to_string(), "kernel,pinned");
    assert!(domains.contains(Domain::Pinned) && !domains.contains(Domain::Cuda));
    assert!(",".parse::<Domains>().is_err());
}

/// The lines of the packaged file that are keys, with their comment sign taken away.
fn uncommented(text: &str) -> String {
    text.lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if !key.is_empty() && !key.starts_with([' ', '#']) => key,
            _ => line,
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn the_packaged_file_says_the_defaults() {
    let text = include_str!("../../../packaging/memtrace.toml");
    assert_eq!(parse(text).unwrap(), Config::default());
    let all = uncommented(text);
    assert_eq!(parse(&all).unwrap(), Config::default());
    // A key that the file does not mention would be one that nobody can find.
    let written: toml::Table = all.parse().unwrap();
    for key in [
        "domains",
        "kmem_cache",
        "exact",
        "libraries",
        "listen",
        "allowed_hosts",
        "socket",
        "state_dir",
        "settle",
        "quantum",
    ] {
        assert!(written.contains_key(key), "{key} is not in memtrace.toml");
    }
    for (section, keys) in [
        ("maps", 7),
        ("stacks", 2),
        ("torch", 4),
        ("include", 4),
        ("exclude", 7),
        ("verdict", 7),
        ("ceiling", 2),
    ] {
        assert_eq!(written[section].as_table().unwrap().len(), keys, "[{section}]");
    }
}
