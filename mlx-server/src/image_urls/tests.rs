//! Tests that fetch images from a host on this machine. Their address rule allows it.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mlx_tests::golden_folder;
use serde_json::{Value, json};

use super::*;

/// An image host at 127.0.0.1 and 127.0.0.2.
struct Host {
    port: u16,
    /// Another port of the host, with the same images.
    other: u16,
    connections: Arc<AtomicUsize>,
}

fn picture() -> Vec<u8> {
    let file = golden_folder().join("pictures/mistral3-f32/48x32.png");
    std::fs::read(file).expect("the fixture is there")
}

impl Host {
    fn start() -> Self {
        let listeners = [(); 2].map(|()| TcpListener::bind("0.0.0.0:0").expect("a port"));
        let ports = listeners.each_ref().map(|it| it.local_addr().expect("an address").port());
        let connections = Arc::new(AtomicUsize::new(0));
        for listener in listeners {
            let count = Arc::clone(&connections);
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    count.fetch_add(1, Ordering::Relaxed);
                    std::thread::spawn(move || answer(stream, ports));
                }
            });
        }
        Self { port: ports[0], other: ports[1], connections }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }
}

fn path_of(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    head.split_ascii_whitespace().nth(1).map(str::to_owned)
}

/// Answers a request. `None` if the client disconnects.
fn answer(mut stream: TcpStream, [port, other]: [u16; 2]) -> Option<()> {
    let path = path_of(&mut stream)?;
    let moved =
        |to: &str| format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n").into_bytes();
    let ok_response = |bytes: &[u8]| {
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n", bytes.len());
        [head.as_bytes(), bytes].concat()
    };
    let open = b"HTTP/1.1 200 OK\r\n\r\n\x89PNG\r\n\x1a\n".to_vec();
    let bytes = match path.as_str() {
        "/picture" => ok_response(&picture()),
        "/moved" => moved("/picture"),
        "/loop" => moved("/loop"),
        "/unlisted" => moved(&format!("http://localhost:{port}/picture")),
        "/private" => moved(&format!("http://127.0.0.2:{port}/picture")),
        "/file" => moved("file:///etc/passwd"),
        "/elsewhere" => moved(&format!("http://127.0.0.1:{other}/picture")),
        "/encrypted" => moved(&format!("https://127.0.0.1:{port}/picture")),
        "/page" => ok_response(b"<html>"),
        "/missing" => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec(),
        "/cut" => ok_response(&picture())[..200].to_vec(),
        "/nothing" => Vec::new(),
        "/endless" | "/slow" => open,
        other => panic!("{other}"),
    };
    stream.write_all(&bytes).ok()?;
    let (pause, more) = match path.as_str() {
        "/endless" => (Duration::ZERO, 1 << 16),
        "/slow" => (Duration::from_millis(20), 1),
        _ => return Some(()),
    };
    loop {
        std::thread::sleep(pause);
        stream.write_all(&vec![0; more]).ok()?;
    }
}

const ONE: AddressRule = |address| address == IpAddr::from([127, 0, 0, 1]);

fn images(rule: AddressRule, time: Duration) -> ImageUrls {
    let hosts = ["127.0.0.1", "127.0.0.2", "host.example"].map(str::to_owned);
    let fetcher = Fetcher::new(&hosts, rule, time);
    ImageUrls { fetcher: Some(Arc::new(fetcher)), threads: Arc::new(Semaphore::new(MAX_THREADS)) }
}

fn body(urls: &[String]) -> Value {
    let part = |url: &String| json!({"type": "input_image", "image_url": url});
    json!({"input": [{"content": urls.iter().map(part).collect::<Vec<_>>()}]})
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

fn insert(images: &ImageUrls, urls: &[String], room: u64) -> Result<(Value, usize), ApiError> {
    let mut fields = Fields::parse(body(urls).to_string().as_bytes()).expect("an object");
    let memory = BodyMemory::new(ByteSize(1 << 20));
    let bytes = run(images.insert(&mut fields, room, &memory))?;
    assert_eq!(memory.charge().set(1 << 20), Ok(()), "what was fetched is no longer charged");
    Ok((fields.to_value().into(), bytes))
}

fn data_url() -> String {
    format!(
        "data:image/png;base64,{}",
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, picture())
    )
}

#[test]
fn a_request_with_urls_becomes_the_same_as_one_with_the_pictures() {
    let (host, images) = (Host::start(), images(ONE, fetch::TIMEOUT));
    let urls: Vec<String> = (0..MAX_URLS).map(|it| host.url(["picture", "moved"][it % 2])).collect();
    let (fields, bytes) = insert(&images, &urls, 16 << 20).expect("all are fetched");
    assert_eq!(fields, body(&vec![data_url(); MAX_URLS]));
    assert_eq!(bytes, MAX_URLS * data_url().len());
    let too_many = [&urls[..], &urls[..1]].concat();
    let error = insert(&images, &too_many, 16 << 20).expect_err("one too many");
    assert_eq!(error.param(), Some("input[0].content[32].image_url"));
    let error = insert(&images, &urls, bytes as u64 - 1).expect_err("too large together");
    assert_eq!(error.status().as_u16(), 413);
}

#[test]
fn what_cannot_be_fetched_is_refused_with_the_reason() {
    let (host, images) = (Host::start(), images(ONE, Duration::from_millis(600)));
    for (path, reason) in [
        ("loop", "more than 3 redirects"),
        ("unlisted", "localhost is not among the hosts of --allow-image-urls"),
        ("private", "127.0.0.2 has no public address"),
        ("file", "cannot be fetched"),
        ("elsewhere", "redirected to another scheme or port"),
        ("encrypted", "redirected to another scheme or port"),
        ("page", "not a png, jpeg, webp or gif file"),
        ("missing", "returned 404"),
        ("cut", "the connection failed"),
        ("nothing", "the connection failed"),
        ("endless", "larger than"),
        ("slow", "longer than 0.6 seconds"),
    ] {
        let urls = [host.url("picture"), host.url(path)];
        let error = insert(&images, &urls, 200_000).expect_err(path);
        let message = error.message();
        assert_eq!(
            (error.status().as_u16(), error.param()),
            (400, Some("input[0].content[1].image_url")),
            "{message}"
        );
        assert!(message.contains(reason), "{path}: {message}");
    }
    for (url, reason) in [
        ("http://host.example./a.png", "not among the hosts"),
        ("http://127.0.0.1@evil.example/a.png", "evil.example is not among the hosts"),
        ("http://127.1/a.png", "127.1 is not among the hosts"),
        ("http:///a.png", "cannot be fetched"),
        ("https:a b", "not a URL"),
    ] {
        let message = insert(&images, &[url.to_owned()], 200_000).expect_err(url).message();
        assert!(message.contains(reason), "{url}: {message}");
    }
}

#[test]
fn no_connection_is_made_to_an_address_that_is_not_public() {
    let (host, images) = (Host::start(), images(is_public, fetch::TIMEOUT));
    for address in ["127.0.0.1", "127.0.0.2"] {
        let url = format!("http://{address}:{}/picture", host.port);
        let message = insert(&images, &[url], 200_000).expect_err(address).message();
        assert!(message.contains("has no public address"), "{message}");
    }
    assert_eq!(host.connections.load(Ordering::Relaxed), 0);
}

#[test]
fn a_host_may_be_allowed_with_one_port_only() {
    let host = Host::start();
    let fetcher = Fetcher::new(&[format!("127.0.0.1:{}", host.port)], ONE, fetch::TIMEOUT);
    let images =
        ImageUrls { fetcher: Some(Arc::new(fetcher)), threads: Arc::new(Semaphore::new(MAX_THREADS)) };
    insert(&images, &[host.url("picture")], 16 << 20).expect("it is on the list");
    let url = format!("http://127.0.0.1:{}/picture", host.other);
    let message = insert(&images, &[url], 16 << 20).expect_err("another port").message();
    assert!(message.contains("not among the hosts"), "{message}");
    assert_eq!(host.connections.load(Ordering::Relaxed), 1);
}

#[test]
fn memory_is_charged_while_a_picture_arrives() {
    let (host, images) = (Host::start(), images(ONE, fetch::TIMEOUT));
    let error = insert(&images, &[host.url("endless")], 16 << 20).expect_err("it holds too much");
    assert!(error.message().contains("--body-memory"), "{}", error.message());
}

#[test]
fn others_go_on_while_a_picture_is_slow() {
    let (host, images) = (Host::start(), images(ONE, Duration::from_secs(2)));
    let mut fields = Fields::parse(body(&[host.url("slow")]).to_string().as_bytes()).expect("an object");
    let memory = BodyMemory::new(ByteSize(1 << 20));
    let start = Instant::now();
    let slow = async {
        images.insert(&mut fields, 200_000, &memory).await.expect_err("too slow");
        start.elapsed()
    };
    let other = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        start.elapsed()
    };
    let (slow, other) = run(async { tokio::join!(slow, other) });
    assert!(other < slow / 2, "{other:?} beside {slow:?}");
}
