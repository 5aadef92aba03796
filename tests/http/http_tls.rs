//! HTTPS: certificates are read again when they change, without an effect on connections, and bad files leave the old ones.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use mlx_tests::golden_folder;
use mlx_tests::server::Server;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::{SERVER, wait_until};

const KEY: &str = "0123456789abcdef";

fn certificate(name: &str) -> CertificateDer<'static> {
    let file = golden_folder().join("tls").join(format!("{name}.pem"));
    CertificateDer::from_pem_file(file).expect("the fixture is a certificate")
}

/// Puts a certificate and a key in place.
fn install(folder: &Path, chain: &str, key: &str) {
    for (file, name) in [("chain.pem", format!("{chain}.pem")), ("key.pem", format!("{key}-key.pem"))] {
        let from = golden_folder().join("tls").join(name);
        let text = std::fs::read(from).expect("a fixture");
        std::fs::write(folder.join(file), text).expect("it can be written");
    }
}

fn serve(folder: &Path) -> Server {
    let [chain, key] = ["chain.pem", "key.pem"].map(|file| folder.join(file).display().to_string());
    Server::start(&SERVER, &["--tls-cert", &chain, "--tls-key", &key, "--api-key", KEY])
}

fn connect(server: &Server) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut roots = RootCertStore::empty();
    for name in ["one", "two"] {
        roots.add(certificate(name)).expect("a certificate");
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a valid configuration");
    let mut stream = StreamOwned::new(connection, TcpStream::connect(server.address())?);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

fn is_served(server: &Server, name: &str) -> bool {
    let stream = connect(server).expect("a handshake");
    stream.conn.peer_certificates().is_some_and(|chain| chain[0] == certificate(name))
}

fn send(stream: &mut impl Write, path: &str, body: &str) {
    let head = if body.is_empty() { "GET" } else { "POST" };
    let request = format!(
        "{head} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("the server reads");
}

/// Reads to the end of a connection. A server may end it without an alert.
fn rest(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_certificate_is_renewed_while_a_stream_goes_on_and_a_bad_one_changes_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    install(folder.path(), "one", "one");
    let server = serve(folder.path());
    assert!(is_served(&server, "one"));
    let mut stream = connect(&server).expect("a handshake");
    send(
        &mut stream,
        "/v1/completions",
        r#"{"prompt": "a", "max_tokens": 200, "ignore_eos": true, "stream": true}"#,
    );
    let mut first = [0; 15];
    stream.read_exact(&mut first).expect("an answer begins");
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    install(folder.path(), "two", "two");
    wait_until("the new certificate is served", || is_served(&server, "two"));
    let text = rest(&mut stream);
    assert!(text.contains("data: [DONE]"), "the stream is whole: {text}");
    // A key of another certificate, and a file that is no certificate.
    install(folder.path(), "two", "one");
    wait_until("the log names the flag", || server.log().contains("--tls-key"));
    std::fs::write(folder.path().join("chain.pem"), "soon").expect("it can be written");
    wait_until("the log names the other flag", || server.log().contains("--tls-cert"));
    assert!(is_served(&server, "two"), "the old one stays");
    install(folder.path(), "one", "one");
    wait_until("a good pair is used again", || is_served(&server, "one"));

    // Without TLS there is no answer, and no key is no access.
    let mut plain = TcpStream::connect(server.address()).expect("a connection");
    send(&mut plain, "/health", "");
    assert!(!rest(&mut plain).contains("HTTP/1.1 200"));
    let mut stream = connect(&server).expect("a handshake");
    stream
        .write_all(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("it reads");
    assert!(rest(&mut stream).starts_with("HTTP/1.1 401"));
}

#[test]
fn a_server_with_a_certificate_needs_good_files_and_a_key() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    install(folder.path(), "one", "two");
    let [chain, key] = ["chain.pem", "key.pem"].map(|file| folder.path().join(file).display().to_string());
    let refused = |arguments: &[&str]| {
        let output = Command::new(SERVER[0]).args(arguments).output().expect("it runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let files = ["--port", "0", "--tls-cert", &chain, "--tls-key", &key];
    let message = refused(&[&files[..], &["--api-key", KEY]].concat());
    assert!(message.contains("--tls-key") && message.contains("key.pem"), "{message}");
    let message = refused(&files);
    assert!(message.contains("--tls-cert") && message.contains("--api-key"), "{message}");
    let message = refused(&["--port", "0", "--tls-cert", &chain, "--api-key", KEY]);
    assert!(message.contains("--tls-key"), "{message}");
    let missing = format!("{key}.gone");
    let message = refused(&["--port", "0", "--tls-cert", &chain, "--tls-key", &missing, "--api-key", KEY]);
    assert!(message.contains("key.pem.gone"), "{message}");
}
