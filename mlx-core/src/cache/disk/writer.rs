//! The thread that finds and writes missing blocks, so that the engine never waits for the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use super::block::Block;
use super::file::Invalid;
use super::quota::Quota;
use super::snapshot::Snapshot;
use super::storage::Storage;
use super::survey::{Missing, MissingSearch};
use super::{DiskOptions, folder};
use crate::error::Result;

/// The maximum number of pending orders. Two threads that queue at the same time may exceed it by one.
const QUEUE: usize = 4;
/// The number of written blocks after which the folder is measured again, since other programs may write to it.
const RECOUNT: usize = 32;

/// The content of a file.
pub(super) enum Content {
    Block(Block),
    Snapshot(Snapshot),
}

impl Content {
    fn bytes(&self) -> Result<Vec<u8>, Invalid> {
        match self {
            Self::Block(block) => block.write(),
            Self::Snapshot(snapshot) => snapshot.write(),
        }
    }
}

enum Order {
    /// Removes temporary files left over from a crash.
    Clean,
    Write(PathBuf, Content),
    /// Finds the missing files of a text.
    Survey(MissingSearch, Sender<Missing>),
    /// Marks these files as used. The first blocks, which all others need, become the most recent.
    Touch(Vec<PathBuf>),
}

/// The queue of the writer thread.
pub(super) struct Writer {
    orders: Mutex<Option<Sender<Order>>>,
    waiting: Arc<Waiting>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The number of pending orders, and a signal for each completed one.
#[derive(Default)]
struct Waiting {
    count: Mutex<usize>,
    fewer: Condvar,
}

impl Waiting {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until fewer than `most` orders are pending; false if none completes within `patience`.
    fn wait_until_below(&self, most: usize, patience: Duration) -> bool {
        let mut count = self.count();
        while *count >= most {
            let before = *count;
            let waited = self.fewer.wait_timeout_while(count, patience, |count| *count >= before);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
            if *count >= before {
                return false;
            }
        }
        true
    }
}

impl Writer {
    pub(super) fn start(options: DiskOptions, storage: Arc<dyn Storage>) -> std::io::Result<Self> {
        let (orders, queue) = channel();
        let waiting = Arc::new(Waiting::default());
        let disk = Disk::new(options, storage, Arc::clone(&waiting));
        let work = move || disk.work(&queue);
        let thread = std::thread::Builder::new().name("prompt-cache".into()).spawn(work)?;
        let writer = Self { orders: Mutex::new(Some(orders)), waiting, thread: Mutex::new(Some(thread)) };
        // The clean-up is an order, so that `close` gives up on it if the disk does not respond.
        writer.order(Order::Clean);
        Ok(writer)
    }

    /// Returns true if the queue has space.
    pub(super) fn has_room(&self) -> bool {
        *self.waiting.count() < QUEUE
    }

    /// Waits until the queue has space; false if no order completes within `patience`.
    pub(super) fn wait_for_room(&self, patience: Duration) -> bool {
        self.waiting.wait_until_below(QUEUE, patience)
    }

    /// Waits until the queue is empty; false if no order completes within `patience`.
    pub(super) fn wait_until_idle(&self, patience: Duration) -> bool {
        self.waiting.wait_until_below(1, patience)
    }

    /// Queues a file.
    pub(super) fn write(&self, path: PathBuf, content: Content) {
        self.order(Order::Write(path, content));
    }

    /// Queues a search for the missing files of a text. The channel closes without a reply if the writer has ended.
    pub(super) fn survey(&self, survey: MissingSearch) -> Receiver<Missing> {
        let (reply, missing) = channel();
        self.order(Order::Survey(survey, reply));
        missing
    }

    pub(super) fn touch(&self, paths: Vec<PathBuf>) {
        // If the queue is full, the files only look older than they are.
        if self.has_room() {
            self.order(Order::Touch(paths));
        }
    }

    fn order(&self, order: Order) {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(orders) = orders.as_ref() {
            *self.waiting.count() += 1;
            // The thread ends only after this sender is dropped.
            orders.send(order).ok();
        }
    }

    /// Ends the thread after it has completed all orders. Stops waiting if no order completes within `patience`.
    pub(super) fn close(&self, patience: Duration) {
        drop(self.orders.lock().unwrap_or_else(PoisonError::into_inner).take());
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if self.waiting.wait_until_below(1, patience) {
            thread.join().ok();
        } else {
            tracing::warn!("the folder of saved prefixes does not respond; the last prefixes are not saved");
        }
    }
}

struct Disk {
    options: DiskOptions,
    storage: Arc<dyn Storage>,
    waiting: Arc<Waiting>,
    quota: Quota,
    begin: Instant,
    /// The last known size of the folder, in bytes.
    total: u64,
    written: usize,
}

impl Disk {
    fn new(options: DiskOptions, storage: Arc<dyn Storage>, waiting: Arc<Waiting>) -> Self {
        let quota = Quota::new(options.max_writes_per_hour);
        Self { options, storage, waiting, quota, begin: Instant::now(), total: 0, written: 0 }
    }

    fn work(mut self, queue: &Receiver<Order>) {
        while let Ok(order) = queue.recv() {
            // A panic must not end the thread: the queue would stay full.
            if catch_unwind(AssertUnwindSafe(|| self.carry_out(order))).is_err() {
                tracing::error!("the writer of saved prefixes panicked; please report this");
            }
            *self.waiting.count() -= 1;
            self.waiting.fewer.notify_all();
        }
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Clean => {
                if let Err(error) = folder::list(&self.options.folder) {
                    tracing::warn!(%error, "cannot read the folder of saved prefixes");
                }
            }
            Order::Write(path, content) => {
                if let Err(error) = self.write(&path, &content) {
                    tracing::warn!(%error, "cannot save a block of a prefix");
                }
            }
            // The requester may have dropped the receiver.
            Order::Survey(survey, reply) => drop(reply.send(survey.run(&*self.storage))),
            Order::Touch(paths) => {
                let now = SystemTime::now();
                for (place, path) in paths.iter().enumerate() {
                    let earlier = Duration::from_micros(place as u64);
                    folder::touch(path, now.checked_sub(earlier).unwrap_or(now));
                }
            }
        }
    }

    fn write(&mut self, path: &Path, content: &Content) -> Result<()> {
        if self.storage.exists(path) {
            return Ok(());
        }
        let bytes = content.bytes().map_err(|Invalid(message)| crate::Error::file(path, message))?;
        let size = bytes.len() as u64;
        if size > self.options.max_bytes || !self.quota.take(size, self.begin.elapsed()) {
            return Ok(());
        }
        if self.written.is_multiple_of(RECOUNT) || self.total + size > self.options.max_bytes {
            let most = self.options.max_bytes;
            // Free more than this block needs, so that it happens less often.
            let aim = if self.total + size > most { (most - most / 8).min(most - size) } else { most - size };
            self.total = folder::shrink_to(&self.options.folder, aim)?;
        }
        self.written += 1;
        self.storage.write(path, &bytes)?;
        self.total += size;
        Ok(())
    }
}
