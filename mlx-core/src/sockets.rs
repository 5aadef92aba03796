//! The TCP connections of this process, also those that a library has opened. Invariant: like mlx_sys.rs, this file may contain unsafe code.
#![expect(
    unsafe_code,
    reason = "the standard library has no list of descriptors and no look at a socket's next byte without a wait"
)]

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// The folder whose entries are the descriptors of this process.
const DESCRIPTORS: &str = "/dev/fd";

/// Returns another handle of each TCP connection.
pub(crate) fn connections() -> Vec<TcpStream> {
    let Ok(entries) = std::fs::read_dir(DESCRIPTORS) else { return Vec::new() };
    let number = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let numbers: Vec<RawFd> = entries.filter_map(number).collect();
    let connection = |number: RawFd| {
        // SAFETY: the descriptor is only copied. That fails if it was closed meanwhile.
        let copy = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().ok()?;
        let stream = TcpStream::from(copy);
        // Another kind of file has no peer.
        stream.peer_addr().is_ok().then_some(stream)
    };
    numbers.into_iter().filter_map(connection).collect()
}

/// Returns true if the peer has closed a connection, or it has failed. Reads nothing and does not wait.
pub(crate) fn has_ended(connection: &TcpStream) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the buffer has one byte.
    let count = unsafe { libc::recv(connection.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
    match count {
        0 => true,
        1.. => false,
        _ => !matches!(
            io::Error::last_os_error().kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn connections_are_found_and_their_end_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let there = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        let (mut here, from) = listener.accept().expect("it was connected");
        let found = connections().into_iter().find(|it| it.local_addr().ok() == Some(from));
        let found = found.expect("this process has the connection");
        assert!(!has_ended(&found));
        here.write_all(b"x").expect("it is open");
        assert!(!has_ended(&found));
        drop((here, there));
        let mut byte = [0];
        std::io::Read::read_exact(&mut &found, &mut byte).expect("the byte arrives");
        assert!(has_ended(&found));
    }
}
