//! Tests that saving a text costs the engine's thread no hashing, no file lookups and one walk of the tree, and that an unresponsive disk
//! stalls no request.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread::ThreadId;

use super::*;
use crate::cache::{DiskOptions, Storage, hashed_blocks, visited_tokens};
use crate::engine::stats::Gauges;

const TIER: Tier = Tier { owner: None, adapter: 0, exact: false };

/// Files in memory. It counts calls, and blocks them while `is_away` is set.
#[derive(Default)]
struct FakeDisk {
    files: Mutex<BTreeMap<PathBuf, Vec<u8>>>,
    calls: Mutex<Vec<(&'static str, ThreadId)>>,
    is_away: Mutex<bool>,
    is_back: Condvar,
    next_write_panics: AtomicBool,
}

impl FakeDisk {
    fn count(&self, call: &'static str) {
        self.calls.lock().expect("no panic").push((call, std::thread::current().id()));
        let away = self.is_away.lock().expect("no panic");
        drop(self.is_back.wait_while(away, |away| *away).expect("no panic"));
    }

    /// Returns the number of calls with this name. Panics if the engine's thread made any call.
    fn calls(&self, call: &str) -> usize {
        let calls = self.calls.lock().expect("no panic");
        let own = std::thread::current().id();
        assert!(calls.iter().all(|(_, thread)| *thread != own), "the engine's thread went to the disk");
        calls.iter().filter(|(name, _)| *name == call).count()
    }

    fn set_away(&self, away: bool) {
        *self.is_away.lock().expect("no panic") = away;
        self.is_back.notify_all();
    }
}

impl Storage for FakeDisk {
    fn exists(&self, path: &Path) -> bool {
        self.count("exists");
        self.files.lock().expect("no panic").contains_key(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.count("read");
        self.files.lock().expect("no panic").get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.count("write");
        assert!(!self.next_write_panics.swap(false, Ordering::AcqRel), "this panic is part of the test");
        self.files.lock().expect("no panic").insert(path.to_owned(), bytes.to_vec());
        Ok(())
    }
}

struct Bench {
    disk: Arc<FakeDisk>,
    store: PrefixStore,
    prefixes: DiskPrefixes,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new(patience: Duration) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let disk = Arc::new(FakeDisk::default());
        let options = DiskOptions::new(folder.path().to_owned());
        let storage: Arc<dyn Storage> = Arc::<FakeDisk>::clone(&disk);
        let cache = DiskCache::open_on(options, vec![1, 2], storage).expect("it opens");
        let prefixes = DiskPrefixes::start(cache, patience).expect("it starts");
        Self { disk, store: PrefixStore::new(1 << 30, Arc::<Gauges>::default()), prefixes, _folder: folder }
    }

    /// Stores a state of these tokens in memory and queues it to be saved.
    fn keep(&mut self, tokens: &[u32]) {
        self.store.insert(TIER, tokens, SequenceState::of_zeros(tokens.len()));
        self.prefixes.queue(TIER, tokens, Vec::new());
    }

    fn save(&mut self) {
        while self.prefixes.save_next(&self.store) {
            std::thread::yield_now();
        }
        assert!(self.prefixes.cache.wait_until_idle(Duration::from_mins(1)), "the disk works");
    }

    /// Waits for the next reply of the reader.
    fn restored(&mut self) -> Restored {
        loop {
            if let Some(restored) = self.prefixes.restored(Some(Duration::from_millis(1))).pop() {
                return restored;
            }
        }
    }
}

fn request(prompt: &[u32]) -> Request {
    let (prompt, tiers) = (prompt.to_vec(), vec![TIER]);
    Request { id: 1, prompt, tiers, exact: None, known: 0, checkpoints: false }
}

#[test]
fn saving_is_linear_and_costs_the_engine_nothing_but_copies() {
    const BLOCKS: usize = 1000;
    let _turn = crate::device_lock::device();
    let mut bench = Bench::new(DISK_TIMEOUT);
    let mut text: Vec<u32> = (0..(BLOCKS * BLOCK) as u32).collect();
    bench.keep(&text);
    let (hashed, visited) = (hashed_blocks(), visited_tokens());
    bench.save();
    assert_eq!(bench.disk.calls("write"), BLOCKS);
    // One lookup for each block, and another one before it is written.
    assert_eq!(bench.disk.calls("exists"), 2 * BLOCKS);
    assert!(visited_tokens() - visited <= 2 * text.len(), "the tree is walked once");
    // The next message of the chat.
    text.extend([7; BLOCK]);
    bench.keep(&text);
    let visited = visited_tokens();
    bench.save();
    assert_eq!((bench.disk.calls("write"), bench.disk.calls("read")), (BLOCKS + 1, 0));
    assert_eq!(bench.disk.calls("exists"), 2 * BLOCKS + (BLOCKS + 1) + 1);
    assert!(visited_tokens() - visited <= 2 * text.len(), "the tree is walked once");
    assert_eq!(hashed_blocks(), hashed, "other threads hash");
    assert!(bench.prefixes.request(request(&text)));
    assert_eq!(bench.restored().length, text.len() - 1, "the saved text is restored");
}

/// While the disk does not respond, the engine continues and stops, and only the first requests wait, for `patience`. If the engine's
/// thread waited for the disk, this test would not end.
#[test]
fn a_disk_that_is_away_stalls_nobody() {
    let _turn = crate::device_lock::device();
    let patience = Duration::from_millis(50);
    let mut bench = Bench::new(patience);
    let disk = Arc::clone(&bench.disk);
    disk.set_away(true);
    let text: Vec<u32> = (0..(8 * BLOCK) as u32).collect();
    assert!(bench.prefixes.request(request(&text)), "it is not known yet");
    for salt in 0..100 {
        bench.keep(&[&[salt], &text[..]].concat());
        assert!(bench.prefixes.save_next(&bench.store));
    }
    assert_eq!(bench.prefixes.pending.len(), MAX_PENDING);
    std::thread::sleep(2 * patience);
    assert!(bench.prefixes.restored(None).is_empty());
    for _ in 0..100 {
        assert!(!bench.prefixes.request(request(&text)), "no other request waits for it");
    }
    // The disk responds again and is used again.
    disk.set_away(false);
    assert!(bench.restored().blocks.is_empty());
    assert!(bench.prefixes.request(request(&text)));
    bench.restored();
    disk.set_away(true);
    assert!(bench.prefixes.request(request(&text)));
    bench.prefixes.save_all(&bench.store);
    drop(bench);
    // Let the threads end.
    disk.set_away(false);
}

#[test]
fn a_write_that_panics_loses_one_block_only() {
    let _turn = crate::device_lock::device();
    let mut bench = Bench::new(DISK_TIMEOUT);
    bench.disk.next_write_panics.store(true, Ordering::Release);
    let text: Vec<u32> = (0..(8 * BLOCK) as u32).collect();
    bench.keep(&text);
    bench.save();
    assert_eq!(bench.disk.calls("write"), 8);
    assert_eq!(bench.disk.files.lock().expect("no panic").len(), 7);
}
