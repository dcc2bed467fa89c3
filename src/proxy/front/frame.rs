//! Lines of a host: bounded, and never lost without an answer.
//!
//! Owns the cutting of the input into lines and, for a line that is too long to keep, its skeleton: the message
//! without what its members hold, from which its id can still be read, so that whoever asked is told.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The longest line: sixteen MiB, as for a server's answers.
pub(super) const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The longest skeleton: an envelope without its parameters is far shorter.
const SKELETON_BYTES_MAX: usize = 4096;
const CHUNK_BYTES: usize = 64 * 1024;

/// One line of the host, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// It was kept.
    Whole(Vec<u8>),
    /// It was longer than [`LINE_BYTES_MAX`]; this is its skeleton.
    TooLong(Vec<u8>),
}

/// Cuts an input into lines.
#[derive(Debug)]
pub(super) struct Lines<R> {
    input: R,
    /// What was read last: its bytes from `at` to `end` are not cut yet.
    chunk: Box<[u8]>,
    at: usize,
    end: usize,
    line: Vec<u8>,
    skeleton: Option<Skeleton>,
    max: usize,
}

impl<R: AsyncRead + Unpin + Send> Lines<R> {
    /// Lines of `input`.
    pub(super) fn new(input: R) -> Lines<R> {
        Lines::bounded(input, LINE_BYTES_MAX)
    }

    fn bounded(input: R, max: usize) -> Lines<R> {
        Lines {
            input,
            chunk: vec![0; CHUNK_BYTES].into(),
            at: 0,
            end: 0,
            line: Vec::new(),
            skeleton: None,
            max,
        }
    }

    /// The next line that is not empty; `None` at the end of the input, whose last line may lack its end. It may be
    /// dropped while it waits: nothing that was read is lost.
    ///
    /// # Errors
    /// The input can't be read.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let rest = &self.chunk[self.at..self.end];
            let end = rest.iter().position(|byte| *byte == b'\n');
            let piece = &rest[..end.unwrap_or(rest.len())];
            match &mut self.skeleton {
                Some(skeleton) => skeleton.take(piece),
                None if self.line.len() + piece.len() > self.max => {
                    let mut skeleton = Skeleton::default();
                    skeleton.take(&self.line);
                    skeleton.take(piece);
                    self.line = Vec::new();
                    self.skeleton = Some(skeleton);
                }
                None => self.line.extend_from_slice(piece),
            }
            self.at = end.map_or(self.end, |end| self.at + end + 1);
            if end.is_some() {
                if let Some(line) = self.finish() {
                    return Ok(Some(line));
                }
                continue;
            }
            (self.at, self.end) = (0, 0);
            self.end = self.input.read(&mut self.chunk).await?;
            if self.end == 0 {
                return Ok(self.finish());
            }
        }
    }

    fn finish(&mut self) -> Option<Line> {
        if let Some(skeleton) = self.skeleton.take() {
            return Some(Line::TooLong(skeleton.out));
        }
        let line = std::mem::take(&mut self.line);
        (!line.iter().all(u8::is_ascii_whitespace)).then_some(Line::Whole(line))
    }
}

/// Keeps of a JSON text what stands outside its inner objects and arrays.
#[derive(Debug, Default)]
struct Skeleton {
    out: Vec<u8>,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Skeleton {
    fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let outside = self.depth <= 1;
            if self.in_string {
                self.in_string = self.escaped || byte != b'"';
                self.escaped = !self.escaped && byte == b'\\';
            } else {
                match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                }
            }
            if (outside || self.depth <= 1) && self.out.len() < SKELETON_BYTES_MAX {
                self.out.push(byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &[u8], max: usize) -> Vec<Line> {
        let mut lines = Lines::bounded(input, max);
        let mut all = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            all.push(line);
        }
        all
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.as_bytes().to_vec())
    }

    #[tokio::test]
    async fn lines_are_cut_and_empty_ones_skipped() {
        assert_eq!(lines(b"a\n\n \r\nb\r\nc", 100).await, [whole("a"), whole("b\r"), whole("c")]);
        assert_eq!(lines(b"", 100).await, []);
    }

    #[tokio::test]
    async fn a_line_at_the_bound_is_kept_and_one_past_it_is_not() {
        assert_eq!(
            lines(b"12345\n123456\n1\n", 5).await,
            [whole("12345"), Line::TooLong(b"123456".to_vec()), whole("1")]
        );
    }

    #[tokio::test]
    async fn the_skeleton_of_a_long_line_keeps_its_envelope() {
        let inner = format!(r#"{{"a":"}}\"{{","b":[{}]}}"#, "[1],".repeat(50_000) + "[2]");
        let text =
            format!(r#"{{"method":"tools/call","params":{inner},"jsonrpc":"2.0","id":"x\"y"}}"#) + "\nnext";
        let found = lines(text.as_bytes(), 100).await;
        let skeleton = br#"{"method":"tools/call","params":{},"jsonrpc":"2.0","id":"x\"y"}"#.to_vec();
        assert_eq!(found, [Line::TooLong(skeleton), whole("next")]);
    }

    #[tokio::test]
    async fn a_skeleton_is_bounded_whatever_the_line_holds() {
        let text = format!("\"{}\"\n[1", "x".repeat(1_000_000));
        let found = lines(text.as_bytes(), 10).await;
        let Line::TooLong(skeleton) = &found[0] else { panic!("{found:?}") };
        assert_eq!((skeleton.len(), &found[1]), (SKELETON_BYTES_MAX, &whole("[1")));
    }
}
