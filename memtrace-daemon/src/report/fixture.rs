//! Snapshots for tests: a busy host at night, and the end of a `run`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use memtrace_common::{Amount, LossCause};

use crate::snapshot::{
    Baseline, CallLatency, CoverageRow, Device, DeviceProcess, Evidence, Exhaustion, Finding,
    Frame, FrameKind, HostInfo, Loss, Pool, Process, ProcessDevice, ProcessTerms, Runtime, Sample,
    Site, Snapshot, Taken, TakenBy, Terms, Verdict, difference,
};

pub(crate) fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

pub(crate) fn amount(bytes: u64, count: u64) -> Amount {
    Amount { bytes, count }
}

pub(crate) fn terms(seen: Amount, live: Amount) -> Terms {
    Terms { seen, live, freed: seen.saturating_sub(live), ..Terms::default() }
}

/// Nothing on the books.
pub(crate) fn empty() -> Snapshot {
    Snapshot {
        schema: 1,
        generated_at: time("2026-11-29T23:10:04Z"),
        attached_at: time("2026-11-29T20:55:01Z"),
        stopped_at: None,
        host: HostInfo { name: "gpu-17".into(), kernel: "6.18.2".into(), arch: "x86_64".into() },
        domains: ["kernel", "cuda", "managed", "pinned"]
            .map(|name| (name, Terms::default()))
            .into(),
        coverage: vec![],
        not_seen: vec![
            "pages taken straight from the page allocator".into(),
            "vmalloc".into(),
            "percpu".into(),
            "named slab caches (--kmem-cache books them)".into(),
            "memory from before attach".into(),
        ],
        devices: vec![],
        layers: vec![],
        latency: vec![],
        loss: LossCause::ALL
            .into_iter()
            .map(|cause| (cause.name(), Loss { count: 0, bytes: cause.bytes_known().then_some(0) }))
            .collect(),
        processes: vec![],
        findings: vec![],
        runtime: Runtime { ready: true, ..Runtime::default() },
    }
}

pub(crate) fn frame(symbol: &str, module: &str, file: &str, line: u32) -> Frame {
    Frame {
        symbol: Some(symbol.into()),
        module: Some(module.into()),
        offset: Some(0x11e0),
        file: Some(file.into()),
        line: Some(line),
        ..Frame::default()
    }
}

pub(crate) fn kernel(symbol: &str, offset: u64, allocator: bool) -> Frame {
    Frame {
        kind: FrameKind::Kernel,
        symbol: Some(symbol.into()),
        offset: Some(offset),
        allocator,
        ..Frame::default()
    }
}

pub(crate) fn site(id: u64, domain: &'static str, api: &'static str, live: Amount) -> Site {
    Site {
        id: Some(id),
        domain,
        api,
        context: "process",
        device: None,
        live_bytes: live.bytes,
        live_count: live.count,
        allocated_bytes: live.bytes,
        freed_bytes: 0,
        allocations: live.count,
        frees: 0,
        failures: 0,
        growth_bytes_per_second: None,
        oldest_age_seconds: Some(7_800.0),
        verdict: Verdict::Steady,
        confidence: None,
        evidence: Evidence::default().into(),
        sampling: 1.0,
        frames_sampled: false,
        stack: Some(Taken::whole(TakenBy::Copy)),
        frames: vec![].into(),
        samples: vec![],
        note: None,
    }
}

pub(crate) fn process(pid: u32, comm: &str, sites: Vec<Site>) -> Process {
    let mut domains = BTreeMap::<_, Box<ProcessTerms>>::new();
    for site in &sites {
        let seen = amount(site.allocated_bytes, site.allocations);
        domains
            .entry(site.domain)
            .or_default()
            .terms
            .add(&terms(seen, amount(site.live_bytes, site.live_count)));
    }
    Process {
        pid,
        start_ns: u64::from(pid) * 1_000,
        ppid: Some(1),
        comm: comm.into(),
        cmdline: None,
        cgroup: Some("/system.slice/llm.service".into()),
        ended: false,
        ended_at: None,
        baseline: Baseline::default(),
        measured: crate::snapshot::Measured::default(),
        device: None,
        pool: None,
        domains,
        devices: vec![],
        sites,
    }
}

fn python_stack() -> Vec<Frame> {
    vec![
        Frame {
            allocator: true,
            ..frame(
                "c10::cuda::alloc",
                "/opt/torch/libc10_cuda.so",
                "CUDACachingAllocator.cpp",
                812,
            )
        },
        frame("encode_prompt", "/opt/llm/serve.so", "/opt/llm/serve.py", 41),
        Frame { inlined: true, ..frame("run", "/opt/llm/serve.so", "/opt/llm/server.py", 212) },
        Frame {
            module: Some("/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0".into()),
            offset: Some(0x1d2c30),
            reason: Some("no symbols".into()),
            ..Frame::default()
        },
    ]
}

fn kernel_site(id: u64, live: Amount) -> Site {
    Site {
        frames: vec![
            kernel("__kmalloc_noprof", 0x1a4, true),
            kernel("load_msg", 0x5b, false),
            kernel("do_msgsnd", 0x7a, false),
            kernel("do_syscall_64", 0x82, false),
        ]
        .into(),
        frames_sampled: true,
        stack: Some(Taken::whole(TakenBy::Kernel)),
        samples: vec![Sample {
            weight_bytes: live.bytes,
            count: 12,
            frames: vec![].into(),
            user_frames: vec![
                frame("send_all", "/usr/local/bin/queue", "queue.c", 31),
                frame("main", "/usr/local/bin/queue", "queue.c", 77),
            ]
            .into(),
        }],
        allocations: live.count * 3,
        allocated_bytes: live.bytes * 3,
        freed_bytes: live.bytes * 2,
        frees: live.count * 2,
        ..site(id, "kernel", "kmalloc", live)
    }
}

fn evidence() -> Evidence {
    Evidence {
        floor_first_bytes: Some(1 << 30),
        floor_last_bytes: Some(3 << 30),
        windows: 12,
        window_seconds: 600.0,
        rising_windows: 12,
        ..Evidence::default()
    }
}

fn library(path: &str, attached: bool) -> CoverageRow {
    CoverageRow {
        kind: "library",
        library: Some("libcudart".into()),
        path: Some(path.into()),
        build_id: Some("ab12".into()),
        file: Some("8:1:77".into()),
        pid: Some(4121),
        attached,
        attached_at: attached.then(|| time("2026-11-29T20:55:01Z")),
        by: attached.then_some("uprobe_multi"),
        functions: if attached { vec!["cudaMalloc".into(), "cudaFree".into()] } else { vec![] },
        missing: vec![],
        layers: vec!["runtime".into()],
        reason: (!attached).then(|| "16 files of user 1000 are attached already".into()),
    }
}

/// A busy host: a leak on a GPU, an undecided one in the kernel, a large pool, losses.
pub(crate) fn busy() -> Snapshot {
    let leaking = Site {
        frames: python_stack().into(),
        growth_bytes_per_second: Some(20_971.52),
        verdict: Verdict::Leak,
        ..site(0xabc, "cuda", "cudaMalloc", amount(3_328_599_654, 1204))
    };
    let pool = Site {
        frames: python_stack().into_iter().skip(1).collect(),
        verdict: Verdict::Plateau,
        growth_bytes_per_second: Some(0.0),
        ..site(0xdef, "cuda", "cudaMalloc", amount(61 << 30, 812))
    };
    let modeset = Site {
        growth_bytes_per_second: Some(7_000.0),
        ..kernel_site(0x123, amount(38 << 20, 19_456))
    };
    let unnamed = Site { id: None, ..site(0, "pinned", "cudaHostAlloc", amount(64 << 20, 3)) };
    let mut serve = process(4121, "python3", vec![pool, leaking, unnamed]);
    serve.cmdline = Some("/usr/bin/python3 serve.py --model /models/llama-70b --port 8000".into());
    let mut queue = process(977, "queue", vec![modeset]);
    queue.ended = true;
    queue.ended_at = Some(time("2026-11-29T22:10:04Z"));
    let mut evil = process(
        31_337,
        "\x1b[2Jroot\nLEAK",
        vec![Site {
            frames: vec![kernel("alloc_skb", 9, false)].into(),
            ..site(0x77, "kernel", "kmalloc", amount(4096, 2))
        }],
    );
    evil.cmdline = Some("sh -c \x1b]0;pwned\x07\n\u{202e}exe".into());

    serve.pool = Some(Pool {
        held_bytes: 3_712 << 20,
        tensor_bytes: 3_174 << 20,
        tensors: 1_204,
        most_bytes: 3_500 << 20,
        cached_bytes: 538 << 20,
        whole: true,
    });
    let mut snapshot = empty();
    for process in [&serve, &queue, &evil] {
        for (name, domain) in &process.domains {
            snapshot.domains.entry(name).or_default().add(&domain.terms);
        }
    }
    snapshot.processes = vec![serve, queue, evil];
    snapshot.coverage = vec![
        CoverageRow {
            attached: true,
            attached_at: Some(time("2026-11-29T20:55:01Z")),
            layers: vec!["runtime".into(), "driver".into()],
            ..CoverageRow::of_process(
                4121,
                "calls before the probes were there are not seen".into(),
            )
        },
        library("/usr/local/cuda/lib64/libcudart.so.12", true),
        library("/home/eve/\x1b[31mlibcudart.so.12", false),
    ];
    snapshot.loss.insert("recursion", Loss { count: 1_203, bytes: None });
    snapshot.loss.insert("live_map_full", Loss { count: 2, bytes: Some(8192) });
    snapshot.findings = vec![
        Finding {
            level: "site",
            domain: "cuda",
            processes: vec![4121],
            comm: "python3".into(),
            site: Some(0xabc),
            function: Some("encode_prompt".into()),
            verdict: Verdict::Leak,
            confidence: Some(0.97),
            since: time("2026-11-29T22:03:11Z"),
            exhaustion: Some(Exhaustion { seconds: 20_400.0, of: "cuda:0".into() }),
            evidence: evidence(),
            decided_by: vec!["the floor rose in every window and nothing old was freed".into()],
        },
        Finding {
            level: "site",
            domain: "kernel",
            processes: vec![977],
            comm: "queue".into(),
            site: Some(0x123),
            function: Some("load_msg".into()),
            verdict: Verdict::Growing,
            confidence: Some(0.4),
            since: time("2026-11-29T23:01:00Z"),
            exhaustion: None,
            evidence: Evidence::default(),
            decided_by: vec!["no frees seen yet, 6 min more tell".into()],
        },
    ];
    snapshot.runtime.records = [("process", 12), ("account", 40_000)].into();
    snapshot.runtime.probes =
        [(("cudaMalloc".to_owned(), "/usr/local/cuda/lib64/libcudart.so.12".to_owned()), true)]
            .into();
    snapshot.runtime.explained = [("cuda", 0.98)].into();
    let device = ProcessDevice::of(Some(65 << 30), snapshot.domains["cuda"].live.bytes, 0);
    snapshot.processes[0].device = Some(device);
    let buckets = vec![(Some(0.000_001), 7), (Some(0.000_002), 2), (None, 1)];
    snapshot.latency = vec![CallLatency::new("cudaMalloc", 0.25, buckets)];
    snapshot.devices = vec![Device {
        index: 0,
        total_bytes: 80 << 30,
        used_bytes: 66 << 30,
        free_bytes: 13 << 30,
        traced_bytes: device.traced_bytes,
        untraced_bytes: device.traced_bytes.map(|traced| difference(66 << 30, traced)),
        processes: vec![DeviceProcess { pid: 4121, used_bytes: Some(65 << 30), gone: false }],
        all_listed: true,
    }];
    snapshot.runtime.program_seconds = [("mt_kmalloc".to_owned(), 1.25)].into();
    snapshot
}

/// The end of `memtrace run -- ./leaky`.
pub(crate) fn run() -> Snapshot {
    let leak = Site {
        frames: vec![
            frame("make_leak", "/home/me/leaky", "/home/me/leaky.c", 12),
            frame("main", "/home/me/leaky", "/home/me/leaky.c", 30),
        ]
        .into(),
        ..site(0xfeed_beef, "cuda", "cudaMalloc", amount(16 << 16, 16))
    };
    let mut leaky = process(4242, "leaky", vec![kernel_site(0x123, amount(2_048_000, 1000)), leak]);
    leaky.cmdline = Some("./leaky --fast".into());
    if let Some(cuda) = leaky.domains.get_mut("cuda") {
        (cuda.failures, cuda.unknown_frees) = (20, 1);
    }
    leaky.ended = true;
    leaky.ended_at = Some(time("2026-11-29T20:55:03Z"));
    let mut snapshot = empty();
    snapshot.generated_at = time("2026-11-29T20:55:04Z");
    for (name, domain) in &leaky.domains {
        let mut terms = domain.terms;
        if *name != "kernel" {
            // Held at its end: closed, as far as the host is concerned.
            terms.closed = std::mem::take(&mut terms.live);
        }
        snapshot.domains.entry(name).or_default().add(&terms);
    }
    snapshot.processes = vec![leaky];
    snapshot.coverage = vec![library("/home/me/libcudart.so.12", true)];
    snapshot
}
