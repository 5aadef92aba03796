//! Writes log lines on a thread of its own. A program that started the server may never read its stderr, and Ctrl-S stops a terminal: then
//! lines wait, and later ones are dropped, so that no request waits for the log.

use std::io::{Result, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use mlx_options::printable_json;

/// The most lines that wait, about 2 MB.
const MAX_WAITING: usize = 8192;

/// The longest wait for the last lines when the server ends.
const LAST_LINES: Duration = Duration::from_secs(1);

/// A message to the thread.
enum Message {
    Line(Vec<u8>),
    /// Asks for a reply after all earlier lines.
    Flush(SyncSender<()>),
}

/// The log of the process. Dropping it waits for the last lines.
pub(crate) struct LogQueue(LogWriter);

/// Adds one event per write to the queue.
#[derive(Clone)]
pub(crate) struct LogWriter {
    messages: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
    /// A JSON line may quote a model or a client and may be read on a terminal, so control characters are escaped.
    is_json: bool,
}

impl LogQueue {
    /// Starts the thread, which writes JSON lines or text to `target`.
    pub(crate) fn start(target: impl Write + Send + 'static, is_json: bool) -> Result<Self> {
        let (messages, lines) = sync_channel(MAX_WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&dropped);
        Builder::new().name("log".into()).spawn(move || write_lines(target, &lines, &count, is_json))?;
        Ok(Self(LogWriter { messages, dropped, is_json }))
    }

    /// Returns a writer of lines.
    pub(crate) fn writer(&self) -> LogWriter {
        self.0.clone()
    }
}

impl Drop for LogQueue {
    fn drop(&mut self) {
        let (reply, written) = sync_channel(1);
        if self.0.messages.try_send(Message::Flush(reply)).is_ok() {
            written.recv_timeout(LAST_LINES).ok();
        }
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> Result<usize> {
        let bytes = if self.is_json {
            printable_json(&String::from_utf8_lossy(line)).into_owned().into_bytes()
        } else {
            line.to_vec()
        };
        if self.messages.try_send(Message::Line(bytes)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Writes lines until all writers are gone. A failed write loses its line: nothing can report it.
fn write_lines(mut target: impl Write, messages: &Receiver<Message>, dropped: &AtomicU64, is_json: bool) {
    while let Ok(message) = messages.recv() {
        match message {
            Message::Line(line) => {
                target.write_all(&line).ok();
                let lost = dropped.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    target.write_all(notice(lost, is_json).as_bytes()).ok();
                }
            }
            Message::Flush(reply) => drop(reply.send(())),
        }
    }
}

/// Returns the line about lost lines.
fn notice(lost: u64, is_json: bool) -> String {
    const MESSAGE: &str = "log lines were dropped, since nobody read them";
    if is_json {
        return format!("{{\"level\":\"WARN\",\"message\":\"{MESSAGE}\",\"lines\":{lost}}}\n");
    }
    format!("{lost} {MESSAGE}\n")
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
