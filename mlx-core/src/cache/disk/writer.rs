//! The thread that writes blocks, so that the engine does not wait for the disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use super::block::Block;
use super::file::Damage;
use super::quota::Quota;
use super::snapshot::Snapshot;
use super::{DiskOptions, folder};
use crate::atomic_write::write_atomically;
use crate::error::Result;

/// The capacity of the queue.
const QUEUE: usize = 4;
/// The number of blocks after which the folder is measured again, since other programs may write to it.
const RECOUNT: usize = 32;

/// What a file holds.
pub(super) enum Content {
    Block(Block),
    Snapshot(Snapshot),
}

impl Content {
    fn bytes(&self) -> Result<Vec<u8>, Damage> {
        match self {
            Self::Block(block) => block.write(),
            Self::Snapshot(snapshot) => snapshot.write(),
        }
    }
}

enum Order {
    Write(PathBuf, Content),
    /// Marks these files as used. The first blocks, which all others need, become the most recent.
    Touch(Vec<PathBuf>),
}

/// The queue to the writer. Dropping it waits until all queued blocks are written.
pub(super) struct Writer {
    orders: Option<SyncSender<Order>>,
    /// Queued orders.
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(options: DiskOptions) -> std::io::Result<Self> {
        let (orders, queue) = sync_channel(QUEUE);
        let waiting = Arc::new(AtomicUsize::new(0));
        let disk = Disk::new(options, Arc::clone(&waiting));
        let work = move || disk.work(&queue);
        let thread = std::thread::Builder::new().name("prompt-cache".into()).spawn(work)?;
        Ok(Self { orders: Some(orders), waiting, thread: Some(thread) })
    }

    /// Whether the queue has space.
    pub(super) fn has_room(&self) -> bool {
        let gone = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        gone || self.waiting.load(Ordering::Relaxed) < QUEUE
    }

    /// Queues a file, waiting for space if needed; false if the writer has stopped.
    pub(super) fn write(&self, path: PathBuf, content: Content) -> bool {
        self.order(Order::Write(path, content))
    }

    pub(super) fn touch(&self, paths: Vec<PathBuf>) {
        // A lost mark is harmless if the queue is full.
        if self.has_room() {
            self.order(Order::Touch(paths));
        }
    }

    fn order(&self, order: Order) -> bool {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

struct Disk {
    options: DiskOptions,
    waiting: Arc<AtomicUsize>,
    quota: Quota,
    begin: Instant,
    /// Bytes in the folder, as far as is known.
    total: u64,
    written: usize,
}

impl Disk {
    fn new(options: DiskOptions, waiting: Arc<AtomicUsize>) -> Self {
        let quota = Quota::new(options.hourly_writes);
        Self { options, waiting, quota, begin: Instant::now(), total: 0, written: 0 }
    }

    fn work(mut self, queue: &Receiver<Order>) {
        while let Ok(order) = queue.recv() {
            match order {
                Order::Write(path, content) => {
                    if let Err(error) = self.write(&path, &content) {
                        tracing::warn!(%error, "saving a part of a prefix failed");
                    }
                }
                Order::Touch(paths) => {
                    let now = SystemTime::now();
                    for (place, path) in paths.iter().enumerate() {
                        let earlier = Duration::from_micros(place as u64);
                        folder::touch(path, now.checked_sub(earlier).unwrap_or(now));
                    }
                }
            }
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn write(&mut self, path: &Path, content: &Content) -> Result<()> {
        if path.exists() {
            return Ok(());
        }
        let bytes = content.bytes().map_err(|Damage(message)| crate::Error::file(path, message))?;
        let size = bytes.len() as u64;
        if size > self.options.most_bytes || !self.quota.take(size, self.begin.elapsed()) {
            return Ok(());
        }
        if self.written.is_multiple_of(RECOUNT) || self.total + size > self.options.most_bytes {
            let most = self.options.most_bytes;
            // Free more than this block needs, to do it less often.
            let aim = if self.total + size > most { (most - most / 8).min(most - size) } else { most - size };
            self.total = folder::shrink_to(&self.options.folder, aim)?;
        }
        self.written += 1;
        write_atomically(path, &bytes)?;
        self.total += size;
        Ok(())
    }
}
