//! The connections of MLX's ring between this rank and its neighbors. MLX may wait for ever after one was cut, so a thread looks at them.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::connection::Outcome;
use super::group_backend::GroupBackend;
use crate::sockets;

/// The time between two looks at the connections.
const INTERVAL: Duration = Duration::from_millis(100);

/// The time until the end of a connection is reported. If the neighbor has ended, its control connection names it meanwhile.
const GRACE: Duration = Duration::from_millis(500);

/// The time until rank 0 reports an error of its own pass. If the reason is a lost connection or rank, that is reported meanwhile.
pub(super) const ERROR_GRACE: Duration = Duration::from_secs(1);

/// The connections between this rank and its neighbors, with the ranks of these.
pub(super) struct RingLinks(Vec<(TcpStream, usize)>);

impl RingLinks {
    /// Finds the connections of a rank in this process, which has joined the group that `file` describes. Other backends have none.
    pub(super) fn find(backend: GroupBackend, file: &str, rank: usize) -> Self {
        let addresses: Vec<[SocketAddr; 1]> = match backend {
            GroupBackend::Ring => serde_json::from_str(file).unwrap_or_default(),
            _ => Vec::new(),
        };
        let (ranks, Some([own])) = (addresses.len(), addresses.get(rank)) else { return Self(Vec::new()) };
        let [next, previous] = [(rank + 1) % ranks, (rank + ranks - 1) % ranks];
        let neighbor = |stream: TcpStream| {
            // Each rank connects to the next one.
            let is_next = stream.peer_addr().is_ok_and(|peer| peer == addresses[next][0]);
            let is_previous = stream.local_addr().is_ok_and(|local| local == *own);
            let neighbor = is_next.then_some(next).or(is_previous.then_some(previous))?;
            Some((stream, neighbor))
        };
        Self(sockets::connections().into_iter().filter_map(neighbor).collect())
    }

    /// Calls `report` from another thread with the rank of a neighbor whose connection has ended.
    pub(super) fn watch(self, report: impl FnOnce(usize) + Send + 'static) -> Outcome<()> {
        let run = move || {
            let is_lost = |(stream, rank): &(TcpStream, usize)| sockets::has_ended(stream).then_some(*rank);
            while !self.0.is_empty() {
                if let Some(rank) = self.0.iter().find_map(is_lost) {
                    std::thread::sleep(GRACE);
                    return report(rank);
                }
                std::thread::sleep(INTERVAL);
            }
        };
        let thread = std::thread::Builder::new().name("ring-links".into()).spawn(run);
        thread.map(drop).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    use super::*;

    /// Returns the neighbors that rank 1 finds in a ring of this process, and the one that it reports once the given rank cuts its
    /// connection to rank 1.
    fn neighbors(ranks: usize, cut: usize) -> (Vec<usize>, usize) {
        let listeners: Vec<_> =
            (0..ranks).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let addresses: Vec<[SocketAddr; 1]> =
            listeners.iter().map(|it| [it.local_addr().expect("it is bound")]).collect();
        let mut out: Vec<Option<TcpStream>> =
            (0..ranks).map(|rank| TcpStream::connect(addresses[(rank + 1) % ranks][0]).ok()).collect();
        let mut accepted: Vec<Option<TcpStream>> =
            listeners.iter().map(|it| it.accept().ok().map(|(stream, _)| stream)).collect();
        let file = serde_json::to_string(&addresses).expect("json");
        let links = RingLinks::find(GroupBackend::Ring, &file, 1);
        let mut found: Vec<usize> = links.0.iter().map(|(_, rank)| *rank).collect();
        found.sort_unstable();
        let (sender, reports) = channel();
        let report = move |rank| sender.send(rank).expect("it is awaited");
        links.watch(report).expect("a thread");
        let end = if cut == 0 { &mut out[0] } else { &mut accepted[2 % ranks] };
        end.take().expect("it is connected").shutdown(std::net::Shutdown::Both).expect("it is open");
        (found, reports.recv().expect("a report"))
    }

    #[test]
    fn a_cut_connection_has_the_rank_of_the_neighbor() {
        assert_eq!(neighbors(4, 0), (vec![0, 2], 0));
        assert_eq!(neighbors(4, 2), (vec![0, 2], 2));
        assert_eq!(neighbors(2, 0), (vec![0, 0], 0));
        let other = RingLinks::find(GroupBackend::Jaccl, r#"[[null, "rdma_en2"], ["rdma_en2", null]]"#, 1);
        assert!(other.0.is_empty());
    }
}
