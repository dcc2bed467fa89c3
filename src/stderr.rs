//! The standard error stream of a process that must not wait for whoever reads it.
//!
//! A host that started the proxy may never read this stream, or have closed it. So lines are handed to a thread of
//! their own: a full pipe stops that thread and nobody else, a broken one makes the lines go nowhere. What finds no
//! room is dropped and counted, and the count is written once there is room again. Never fails, never panics.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// What may wait to be written.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// The process's stderr. Each `write` is kept together and never waits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stderr;

impl Write for Stderr {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if let Some(stream) = process() {
            stream.push(text);
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The process's stderr for log lines: each `write` is a line, and begins as every line of the gate does, so that whoever
/// reads what several programs say knows whose it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogLines;

impl Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        Stderr.write_all(&[b"holdpoint: ", line].concat())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits up to `within` until everything is written. False when it is not: then nobody reads the stream, and writing
/// to it directly would wait for ever.
pub fn flush(within: Duration) -> bool {
    process().is_none_or(|stream| stream.is_written_within(within))
}

/// The process's queue and its thread; `None` where the thread could not be started.
fn process() -> Option<&'static Stream> {
    static STREAM: OnceLock<Option<&'static Stream>> = OnceLock::new();
    // A descriptor of its own: whoever writes through the standard library's would wait for its lock.
    let output = || Ok(File::from(io::stderr().as_fd().try_clone_to_owned()?));
    *STREAM.get_or_init(|| output().and_then(Stream::start).ok())
}

#[derive(Debug, Default)]
struct Stream {
    state: Mutex<State>,
    /// Something waits.
    more: Condvar,
    /// Nothing waits, and nothing is being written.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    dropped: u64,
    writing: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.dropped == 0 && !self.writing
    }
}

impl Stream {
    /// Starts the thread, which lives as long as the process.
    fn start<W: Write + Send + 'static>(output: W) -> io::Result<&'static Stream> {
        let stream: &'static Stream = Box::leak(Box::default());
        let thread = thread::Builder::new().name("holdpoint-stderr".to_owned());
        thread.spawn(move || stream.write_for_ever(output))?;
        Ok(stream)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, text: &[u8]) {
        let mut state = self.lock();
        if state.bytes + text.len() > WAITING_BYTES_MAX {
            state.dropped += 1;
        } else {
            state.bytes += text.len();
            state.waiting.push_back(text.to_vec());
        }
        self.more.notify_one();
    }

    fn write_for_ever(&self, mut output: impl Write) {
        loop {
            let text = self.next();
            // There is nowhere to say that this stream can't be written.
            drop(output.write_all(&text).and_then(|()| output.flush()));
            let mut state = self.lock();
            state.writing = false;
            if state.is_idle() {
                self.idle.notify_all();
            }
        }
    }

    fn next(&self) -> Vec<u8> {
        let nothing = |state: &mut State| state.waiting.is_empty() && state.dropped == 0;
        let mut state = self.more.wait_while(self.lock(), nothing).unwrap_or_else(PoisonError::into_inner);
        state.writing = true;
        match state.waiting.pop_front() {
            Some(text) => {
                state.bytes -= text.len();
                text
            }
            None => {
                let dropped = std::mem::take(&mut state.dropped);
                format!("holdpoint: {dropped} lines were dropped here: nobody read this stream\n")
                    .into_bytes()
            }
        }
    }

    fn is_written_within(&self, within: Duration) -> bool {
        let waited = self.idle.wait_timeout_while(self.lock(), within, |state| !state.is_idle());
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read, pipe};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn read_until(reader: &mut PipeReader, wanted: &str) -> String {
        let (mut text, mut chunk) = (String::new(), [0; 4096]);
        while !text.contains(wanted) {
            let count = reader.read(&mut chunk).unwrap();
            assert!(count > 0, "it ended before {wanted:?}");
            text.push_str(std::str::from_utf8(&chunk[..count]).unwrap());
        }
        text
    }

    #[test]
    fn a_stream_that_nobody_reads_keeps_nobody_waiting_and_says_what_it_dropped() {
        let (mut reader, writer) = pipe().unwrap();
        let stream = Stream::start(writer).unwrap();
        let line = format!("{}\n", "x".repeat(1023));
        for _ in 0..3000 {
            stream.push(line.as_bytes());
        }
        assert!(!stream.is_written_within(Duration::from_millis(10)));
        let text = read_until(&mut reader, "lines were dropped here");
        let kept = text.lines().filter(|line| line.starts_with('x')).count();
        assert!((1024..3000).contains(&kept), "{kept}");
        assert!(text.contains(&format!("{} lines were dropped here", 3000 - kept)), "{kept}");
        assert!(stream.is_written_within(LONG));
    }

    #[test]
    fn a_stream_whose_reader_is_gone_swallows_what_is_written() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let stream = Stream::start(writer).unwrap();
        stream.push(b"into the void\n");
        stream.push(b"and again\n");
        assert!(stream.is_written_within(LONG));
    }
}
