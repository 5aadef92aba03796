//! A proxy between rank 0 and a worker. It counts bytes and simulates network faults.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The fault of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Bytes pass unchanged.
    None,
    /// The connection ends.
    Cut,
    /// No bytes pass.
    Stall,
    /// Each chunk is delayed.
    Slow,
    /// One byte in each chunk is changed.
    Garbage,
}

/// A proxy between rank 0 and a worker.
pub struct Proxy {
    /// The address on which it listens.
    pub address: SocketAddr,
    fault: Arc<Mutex<Fault>>,
    worker: Arc<Mutex<SocketAddr>>,
    /// Bytes to the worker, and from it.
    passed: Arc<[AtomicUsize; 2]>,
    /// The open connections; true if one lost or changed bytes, or is closing.
    open: Arc<Mutex<Vec<Weak<AtomicBool>>>>,
}

impl Proxy {
    /// Starts a proxy for this worker.
    ///
    /// # Panics
    /// If no port is free.
    pub fn start(worker: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let fault = Arc::new(Mutex::new(Fault::None));
        let worker = Arc::new(Mutex::new(worker));
        let passed: Arc<[AtomicUsize; 2]> = Arc::default();
        let open: Arc<Mutex<Vec<Weak<AtomicBool>>>> = Arc::default();
        let (shared, place, sums) = (Arc::clone(&fault), Arc::clone(&worker), Arc::clone(&passed));
        let connections = Arc::clone(&open);
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(*place.lock().expect("no panic")) else { continue };
                let harmed = Arc::new(AtomicBool::new(false));
                connections.lock().expect("no panic").push(Arc::downgrade(&harmed));
                for (way, (from, to)) in [(&near, &far), (&far, &near)].into_iter().enumerate() {
                    let ends = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                    let (fault, sums) = (Arc::clone(&shared), Arc::clone(&sums));
                    let harmed = Arc::clone(&harmed);
                    std::thread::spawn(move || pump(ends.0, ends.1, &fault, &harmed, &sums[way]));
                }
            }
        });
        Self { address, fault, worker, passed, open }
    }

    /// Sets the fault.
    ///
    /// # Panics
    /// If one of its threads panicked.
    pub fn set(&self, fault: Fault) {
        *self.fault.lock().expect("no panic") = fault;
    }

    /// Directs new connections to this worker.
    ///
    /// # Panics
    /// If one of its threads panicked.
    pub fn lead_to(&self, worker: SocketAddr) {
        *self.worker.lock().expect("no panic") = worker;
    }

    /// Returns true if a connection is open and all open ones have passed every byte. A connection damaged by a fault is not whole until
    /// both ends have closed it.
    ///
    /// # Panics
    /// If one of its threads panicked.
    pub fn is_whole(&self) -> bool {
        let mut open = self.open.lock().expect("no panic");
        open.retain(|connection| connection.strong_count() > 0);
        let is_harmed = |it: &Weak<AtomicBool>| it.upgrade().is_none_or(|it| it.load(Ordering::Relaxed));
        !open.is_empty() && !open.iter().any(is_harmed)
    }

    /// Returns the bytes that have passed to the worker, and from it.
    pub fn passed(&self) -> [usize; 2] {
        [0, 1].map(|way| self.passed[way].load(Ordering::Relaxed))
    }
}

fn pump(
    mut from: TcpStream,
    mut to: TcpStream,
    fault: &Mutex<Fault>,
    harmed: &AtomicBool,
    passed: &AtomicUsize,
) {
    let present = || *fault.lock().expect("no panic");
    // macOS rejects this for a closed connection; the first read then reports the end.
    from.set_read_timeout(Some(Duration::from_millis(10))).ok();
    let mut buffer = [0; 4096];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(_) if present() == Fault::Cut => break,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(_) => break,
        };
        match present() {
            Fault::Cut => break,
            Fault::Stall => {
                harmed.store(true, Ordering::Relaxed);
                while present() == Fault::Stall {
                    std::thread::sleep(Duration::from_millis(10));
                }
                break;
            }
            Fault::Slow => std::thread::sleep(Duration::from_millis(20)),
            Fault::Garbage => {
                harmed.store(true, Ordering::Relaxed);
                buffer[count / 2] ^= 0x55;
            }
            Fault::None => {}
        }
        passed.fetch_add(count, Ordering::Relaxed);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    harmed.store(true, Ordering::Relaxed);
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}
