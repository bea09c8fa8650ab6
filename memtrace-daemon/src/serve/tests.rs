//! Real sockets, real requests: who gets what, and who is refused with which words.

use std::path::PathBuf;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::*;
use crate::cli::client;
use crate::report::fixture;
use crate::snapshot::Snapshot;

struct Served {
    directory: PathBuf,
    socket: PathBuf,
    tcp: SocketAddr,
    stop: watch::Sender<bool>,
    server: JoinHandle<()>,
    published: Arc<ArcSwap<Snapshot>>,
}

impl Served {
    /// Serves the busy host; `fresh` snapshots have one more process.
    async fn start(name: &str) -> Self {
        let directory =
            std::env::temp_dir().join(format!("memtrace-serve-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&directory));
        let socket = directory.join("memtrace.sock");
        let mut busy = fixture::busy();
        busy.generated_at = jiff::Timestamp::now();
        let published = Arc::new(ArcSwap::from_pointee(busy));
        let (refresh, mut requests) = Refresh::channel();
        let last = published.clone();
        tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                let mut fresh = Snapshot::clone(&last.load());
                fresh.processes.push(fixture::process(5, "fresh", vec![]));
                drop(request.send(Arc::new(fresh)));
            }
        });
        let (control, mut told) = Control::channel();
        let shown = published.clone();
        tokio::spawn(async move {
            while let Some(ControlRequest { stop, reply }) = told.recv().await {
                let mut snapshot = Snapshot::clone(&shown.load());
                snapshot.stopped_at = stop.then(jiff::Timestamp::now);
                shown.store(Arc::new(snapshot));
                drop(reply.send(Ok(())));
            }
        });
        let hosts = AllowedHosts::new(["gpu-17".into()]);
        let state = State::new(published.clone(), refresh, control, hosts);
        let listeners = Listeners::bind("127.0.0.1:0".parse().ok(), &socket).await.unwrap();
        let tcp = listeners.tcp_address().unwrap();
        let (stop, stopped) = watch::channel(false);
        let server = tokio::spawn(listeners.serve(state, stopped));
        Self { directory, socket, tcp, stop, server, published }
    }

    async fn unix(&self, target: &str) -> Result<String, String> {
        let mut out = vec![];
        client::get(&self.socket, target, &mut out).await.map_err(|error| error.to_string())?;
        Ok(String::from_utf8(out).unwrap())
    }

    /// What the socket calls its answer.
    async fn media_type(&self, target: &str) -> String {
        let mut stream = tokio::net::UnixStream::connect(&self.socket).await.unwrap();
        let request =
            format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = vec![];
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let line = answer.lines().find_map(|line| line.strip_prefix("content-type: "));
        line.unwrap().to_owned()
    }

    /// Status line and body of a request over TCP.
    async fn tcp(&self, request: &str) -> (String, String) {
        let mut stream = tokio::net::TcpStream::connect(self.tcp).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }

    async fn get(&self, path: &str, host: &str) -> (String, String) {
        self.tcp(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).await
    }

    async fn end(self) {
        self.stop.send(true).unwrap();
        tokio::time::timeout(Duration::from_secs(10), self.server).await.unwrap().unwrap();
        assert!(!self.socket.exists());
        std::fs::remove_dir_all(self.directory).unwrap();
    }
}

#[tokio::test]
async fn tcp_has_three_routes_and_no_more() {
    let served = Served::start("tcp").await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(served.get(path, "127.0.0.1").await.0, "HTTP/1.1 200 OK", "{path}");
    }
    for path in ["/", "/api/v1/dump", "/api/v1/status", "/metrics/x"] {
        assert_eq!(served.get(path, "localhost").await.0, "HTTP/1.1 404 Not Found", "{path}");
    }
    let body = served.get("/metrics", "gpu-17:9753").await.1;
    assert!(body.contains("memtrace_finding{"));
    assert!(!body.contains("serve.py"), "command lines are on the unix socket only");
    let post = "POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(served.tcp(post).await.0, "HTTP/1.1 405 Method Not Allowed");
    served.end().await;
}

#[tokio::test]
async fn a_rebound_name_is_refused_in_a_sentence() {
    let served = Served::start("host").await;
    let (status, body) = served.get("/metrics", "evil.example:9753").await;
    assert_eq!(status, "HTTP/1.1 421 Misdirected Request");
    assert_eq!(
        body,
        "`evil.example:9753` is no name of this host; ask by IP address, or add it to allowed_hosts\n"
    );
    let twice = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(served.tcp(twice).await.0, "HTTP/1.1 400 Bad Request");
    let absolute =
        "GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(served.tcp(absolute).await.0, "HTTP/1.1 421 Misdirected Request");
    served.end().await;
}

#[tokio::test]
async fn health_follows_the_engine() {
    let served = Served::start("health").await;
    let mut stuck = fixture::empty();
    stuck.runtime.ready = false;
    served.published.store(Arc::new(stuck));
    let (status, body) = served.get("/healthz", "localhost").await;
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
    assert!(body.starts_with("the engine has published nothing for "), "{body}");
    assert_eq!(served.get("/readyz", "localhost").await.0, "HTTP/1.1 503 Service Unavailable");
    served.end().await;
}

#[tokio::test]
async fn the_socket_has_the_api() {
    let served = Served::start("api").await;
    let json = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();

    let dump = json(served.unix("/api/v1/dump").await.unwrap());
    assert_eq!(dump["schema"], 1);
    assert_eq!(dump["processes"].as_array().unwrap().len(), 4, "a dump is made when asked for");
    let one = json(served.unix("/api/v1/dump?format=json&pid=4121&domain=cuda").await.unwrap());
    assert_eq!(one["processes"][0]["sites"].as_array().unwrap().len(), 2);
    let text = served.unix("/api/v1/dump?format=text&width=100&comm=queue").await.unwrap();
    assert!(text.contains("GROWING") && !text.contains("LEAK "), "{text}");
    assert!(served.unix("/api/v1/dump?format=folded").await.unwrap().starts_with("cuda;"));
    let svg = served.unix("/api/v1/dump?format=svg&comm=queue").await.unwrap();
    assert!(svg.contains("only command queue") && !svg.contains("encode_prompt"), "{svg}");
    for (format, media_type) in [
        ("json", "application/json"),
        ("text", "text/plain; charset=utf-8"),
        ("folded", "text/plain; charset=utf-8"),
        ("pprof", "application/octet-stream"),
        ("svg", "image/svg+xml"),
    ] {
        let target = format!("/api/v1/dump?format={format}");
        assert_eq!(served.media_type(&target).await, media_type);
    }

    assert_eq!(json(served.unix("/api/v1/findings").await.unwrap()).as_array().unwrap().len(), 2);
    let processes = json(served.unix("/api/v1/processes").await.unwrap());
    assert_eq!(processes[0]["sites"], 3);
    assert_eq!(processes[0]["cmdline"].as_str().unwrap().split(' ').nth(1), Some("serve.py"));
    let sites = json(served.unix("/api/v1/sites?site=0000000000000abc").await.unwrap());
    assert_eq!(sites.as_array().unwrap().len(), 1);
    assert_eq!(
        (sites[0]["pid"].as_u64(), sites[0]["api"].as_str()),
        (Some(4121), Some("cudaMalloc"))
    );
    let status = json(served.unix("/api/v1/status").await.unwrap());
    assert_eq!(status["findings"]["leak"], 1);
    assert_eq!(status["processes"]["running"], 2);
    served.end().await;
}

#[tokio::test]
async fn a_wrong_question_gets_a_sentence() {
    let served = Served::start("wrong").await;
    for (target, expected) in [
        ("/api/v1/dump?format=xml", "unknown format `xml`"),
        ("/api/v1/dump?pids=1", "unknown field `pids`"),
        ("/api/v1/dump?pid=x", "pid"),
        ("/api/v1/dump?site=1", "`1` is no site"),
        ("/api/v1/dump?domain=gpu", "unknown domain `gpu`"),
        ("/api/v1/findings?format=text", "this list is json, not text"),
        ("/api/v1/status?format=folded", "status is text or json"),
        ("/api/v2/dump", "no /api/v2/dump; here are /metrics"),
    ] {
        let error = served.unix(target).await.unwrap_err();
        assert!(error.contains(expected), "{target} gave: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    served.end().await;
}

#[tokio::test]
async fn who_is_not_there_is_named() {
    let directory = std::env::temp_dir().join(format!("memtrace-absent-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let ask = async |name: &str| {
        let error = client::get(&directory.join(name), "/", &mut vec![]).await.unwrap_err();
        error.to_string()
    };
    assert!(ask("none").await.contains("there is no such socket; start it with `systemctl"));
    drop(std::os::unix::net::UnixListener::bind(directory.join("dead")).unwrap());
    assert!(ask("dead").await.contains("nobody listens at that socket"));
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let served = Served::start("port").await;
    let other = served.directory.join("other.sock");
    let error = Listeners::bind(Some(served.tcp), &other).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot listen at {}: Address already in use", served.tcp)));
    assert!(error.ends_with("choose another with --listen, or `off`"));
    assert!(!other.exists(), "nothing is left behind");
    served.end().await;
}

#[tokio::test]
async fn an_open_connection_does_not_hold_up_the_end() {
    let served = Served::start("open").await;
    let _idle = tokio::net::TcpStream::connect(served.tcp).await.unwrap();
    let mut half = tokio::net::TcpStream::connect(served.tcp).await.unwrap();
    half.write_all(b"GET /metrics HT").await.unwrap();
    tokio::task::yield_now().await;
    served.end().await;
}

#[test]
fn a_query_is_escaped() {
    let target =
        client::query("/x", &[("a", None), ("b", Some("1 &=/ü".into())), ("c", Some("d".into()))]);
    assert_eq!(target, "/x?b=1%20%26%3D%2F%C3%BC&c=d");
}
