//! A fake worker for tests of rank 0. It runs the real handshake and then replies as the test decides.

use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use super::connection::Connection;
use super::group_backend::GroupBackend;
use super::key::Key;
use super::message::{LoadRequest, Loaded, PROTOCOL, Reply, Request, VERSION};
use super::parallel::Parallel;
use super::worker_client::WorkerClient;
use crate::cache::SavedLayers;
use crate::weights::FloatPolicy;

/// The heartbeat timeout of the tests.
pub(super) const HEARTBEAT_TIMEOUT: Duration = Duration::from_millis(500);

/// The time limit of each step of a test.
pub(super) const SOON: Duration = Duration::from_secs(10);

const NONCE: &str = "00112233445566778899aabbccddeeff";

/// The listener of a fake worker.
pub(super) struct FakeWorker(TcpListener);

impl FakeWorker {
    /// Listens at a free port.
    pub(super) fn listen() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").expect("a free port"))
    }

    /// Runs `work` for each connecting rank 0. Returns rank 0's client, and the receiver of the values that `work` sends.
    pub(super) fn start<T: Send + 'static>(
        rank: usize,
        mut work: impl FnMut(Connection, &Sender<T>) + Send + 'static,
    ) -> (WorkerClient, Receiver<T>) {
        let (worker, (found, all)) = (Self::listen(), channel());
        let client = worker.client(rank);
        thread::spawn(move || {
            loop {
                work(worker.welcome(), &found);
            }
        });
        (client, all)
    }

    /// Returns rank 0's client of this worker.
    pub(super) fn client(&self, rank: usize) -> WorkerClient {
        let address = self.0.local_addr().expect("it is bound").to_string();
        WorkerClient::new(&address, rank, &Key::default(), HEARTBEAT_TIMEOUT, None)
    }

    /// Accepts a connection and sends a `Hello` with this version.
    pub(super) fn hello(&self, protocol: u32, version: &str) -> Connection {
        let (stream, _) = self.0.accept().expect("rank 0 comes");
        let connection = Connection::new(stream, SOON).expect("a socket");
        let hello = Reply::Hello { protocol, version: version.to_owned(), nonce: NONCE.to_owned() };
        connection.send(&hello, &[]).expect("rank 0 reads");
        connection
    }

    /// Runs the worker's side of the handshake.
    fn welcome(&self) -> Connection {
        let mut connection = self.hello(PROTOCOL, VERSION);
        let (request, _) = connection.expect(SOON).expect("rank 0 greets");
        let Request::Join { nonce, .. } = request else { panic!("{request:?}") };
        let proof = Key::default().proof("worker", [NONCE, &nonce]);
        connection
            .send(&Reply::Welcome { proof, budget: 1 << 30, group_address: None }, &[])
            .expect("rank 0 reads");
        connection
    }
}

/// Waits for the request to load a share.
pub(super) fn asked_to_load(connection: &mut Connection) -> LoadRequest {
    match connection.expect(SOON).expect("rank 0 asks").0 {
        Request::Load(part) => part,
        other => panic!("{other:?}"),
    }
}

/// Returns a share for tests.
pub(super) fn part() -> LoadRequest {
    LoadRequest {
        identity: "0".into(),
        adapters: Vec::new(),
        rank: 1,
        ranks: 2,
        parallel: Parallel::Pipeline,
        layers: 1..2,
        floats: FloatPolicy::Checkpoint,
        keep_packed: true,
        backend: GroupBackend::Ring,
        group_file: String::new(),
    }
}

/// Returns the reply of a loaded worker.
pub(super) fn ready() -> Reply {
    Reply::Ready(Loaded {
        weight_bytes: 1,
        room: 1,
        saved_layers: SavedLayers::default(),
        fingerprints: vec!["0".into()],
    })
}
