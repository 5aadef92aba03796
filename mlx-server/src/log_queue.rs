//! Writes log lines on a separate thread. A program that started the server may never read its stderr, and Ctrl-S stops a terminal: then
//! lines wait, and later ones are dropped, so that no request waits for the log.

use std::io::{Result, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use mlx_options::printable_json;

/// The most lines that wait, about 2 MB.
const MAX_WAITING: usize = 8192;

/// The longest wait for the last lines when the server ends.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The log of the process. Dropping it waits for the last lines.
pub(crate) struct LogQueue(LogWriter);

/// Adds one event per write to the queue.
#[derive(Clone)]
pub(crate) struct LogWriter {
    lines: SyncSender<Vec<u8>>,
    counts: Arc<Counts>,
    /// A JSON line may quote a model or a client and may be read on a terminal, so control characters are escaped.
    is_json: bool,
}

/// The numbers of waiting lines, and of dropped lines that no line has reported.
#[derive(Default)]
struct Counts {
    numbers: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Counts {
    fn numbers(&self) -> MutexGuard<'_, (u64, u64)> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogQueue {
    /// Starts the thread, which writes JSON lines or text to `target`.
    pub(crate) fn start(target: impl Write + Send + 'static, is_json: bool) -> Result<Self> {
        let (lines, waiting) = sync_channel(MAX_WAITING);
        let counts = Arc::new(Counts::default());
        let shared = Arc::clone(&counts);
        Builder::new().name("log".into()).spawn(move || write_lines(target, &waiting, &shared, is_json))?;
        Ok(Self(LogWriter { lines, counts, is_json }))
    }

    /// Returns a writer of lines.
    pub(crate) fn writer(&self) -> LogWriter {
        self.0.clone()
    }
}

impl Drop for LogQueue {
    fn drop(&mut self) {
        let Counts { changed, .. } = &*self.0.counts;
        drop(changed.wait_timeout_while(self.0.counts.numbers(), LAST_LINES, |(waiting, _)| *waiting > 0));
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> Result<usize> {
        let bytes = if self.is_json {
            printable_json(&String::from_utf8_lossy(line)).into_owned().into_bytes()
        } else {
            line.to_vec()
        };
        let mut numbers = self.counts.numbers();
        match self.lines.try_send(bytes) {
            Ok(()) => numbers.0 += 1,
            Err(_) => numbers.1 += 1,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Writes lines until all writers are gone. A failed write loses its line: nothing can report it.
fn write_lines(mut target: impl Write, lines: &Receiver<Vec<u8>>, counts: &Counts, is_json: bool) {
    while let Ok(line) = lines.recv() {
        target.write_all(&line).ok();
        let dropped = std::mem::take(&mut counts.numbers().1);
        if dropped > 0 {
            target.write_all(notice(dropped, is_json).as_bytes()).ok();
        }
        counts.numbers().0 -= 1;
        counts.changed.notify_all();
    }
}

/// Returns the line about dropped lines.
fn notice(dropped: u64, is_json: bool) -> String {
    const MESSAGE: &str = "log lines were dropped, since nobody read them";
    if is_json {
        return format!("{{\"level\":\"WARN\",\"message\":\"{MESSAGE}\",\"lines\":{dropped}}}\n");
    }
    format!("{dropped} {MESSAGE}\n")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    /// Writes to a shared text, after each permission.
    struct Slow(Receiver<()>, Arc<Mutex<String>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            self.0.recv().ok();
            self.1.lock().expect("no panic").push_str(&String::from_utf8_lossy(bytes));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_nobody_reads_stops_no_writer_and_counts_lost_lines() {
        let (permit, permits) = channel();
        let text = Arc::new(Mutex::new(String::new()));
        let log = LogQueue::start(Slow(permits, Arc::clone(&text)), false).expect("a thread");
        let mut writer = log.writer();
        for number in 0..MAX_WAITING + 101 {
            writer.write_all(format!("{number}\n").as_bytes()).expect("it never fails");
        }
        // One line is being written, or still waits.
        drop(permit);
        drop(log);
        let text = text.lock().expect("no panic");
        let lost = text
            .lines()
            .find_map(|line| line.strip_suffix(" log lines were dropped, since nobody read them"));
        let lost: usize = lost.expect("a notice").parse().expect("a number");
        assert!((100..=101).contains(&lost), "{lost}");
        assert!(text.starts_with("0\n") && text.lines().count() == MAX_WAITING + 102 - lost);
    }

    #[test]
    fn control_characters_of_json_lines_are_escaped() {
        let (permit, permits) = channel();
        drop(permit);
        let text = Arc::new(Mutex::new(String::new()));
        let log = LogQueue::start(Slow(permits, Arc::clone(&text)), true).expect("a thread");
        log.writer().write_all("{\"a\":\"\u{9b}\"}\n".as_bytes()).expect("it never fails");
        drop(log);
        assert_eq!(*text.lock().expect("no panic"), "{\"a\":\"\\u009b\"}\n");
    }
}
