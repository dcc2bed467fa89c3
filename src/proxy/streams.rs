//! The process's own two streams, as a host gave them.
//!
//! Owns how they are waited for. Hosts give pipes or sockets, which the kernel says are ready, so that a message is
//! read and written where it is handled; through tokio's thread for standard streams it would be handed over twice
//! each way. Anything else (a file, a terminal, a pipe that can't be opened again) is left to that thread.
//!
//! Waiting so needs non-blocking mode, which belongs to an open file and so to everybody who has it. A pipe is opened
//! once more, and nobody else notices. A socket can't be: it is switched, unless stderr is the same one. Its other end,
//! which is the host's, stays as it is.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::fs::{FileType, OFlags, fstat};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// What a host's messages are read from.
pub type Input = Box<dyn AsyncRead + Send + Unpin>;
/// What answers are written to. Shutting it down closes nothing: the stream ends with the process.
pub type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// The process's standard input. To be called on a runtime.
pub fn input() -> Input {
    input_of(io::stdin().as_fd(), io::stderr().as_fd()).unwrap_or_else(|_| Box::new(tokio::io::stdin()))
}

/// The process's standard output. To be called on a runtime.
pub fn output() -> Output {
    output_of(io::stdout().as_fd(), io::stderr().as_fd()).unwrap_or_else(|_| Box::new(tokio::io::stdout()))
}

fn input_of(fd: BorrowedFd<'_>, stderr: BorrowedFd<'_>) -> io::Result<Input> {
    Ok(match Polled::of(fd)? {
        Polled::Pipe => Box::new(pipe::Receiver::from_file(reopened(fd, OpenOptions::new().read(true))?)?),
        Polled::Socket => Box::new(socket(fd, stderr)?),
    })
}

fn output_of(fd: BorrowedFd<'_>, stderr: BorrowedFd<'_>) -> io::Result<Output> {
    Ok(match Polled::of(fd)? {
        Polled::Pipe => Box::new(pipe::Sender::from_file(reopened(fd, OpenOptions::new().write(true))?)?),
        Polled::Socket => Box::new(LeftOpen(socket(fd, stderr)?)),
    })
}

/// What the kernel says is ready.
enum Polled {
    Pipe,
    Socket,
}

impl Polled {
    fn of(fd: BorrowedFd<'_>) -> io::Result<Polled> {
        match FileType::from_raw_mode(fstat(fd)?.st_mode) {
            FileType::Fifo => Ok(Polled::Pipe),
            FileType::Socket => Ok(Polled::Socket),
            kind @ (FileType::RegularFile
            | FileType::Directory
            | FileType::Symlink
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, format!("a {kind:?} can't be polled")))
            }
        }
    }
}

/// Opens a pipe once more, as an open file of its own.
fn reopened(fd: BorrowedFd<'_>, options: &mut OpenOptions) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    options.custom_flags(nonblocking).open(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn socket(fd: BorrowedFd<'_>, stderr: BorrowedFd<'_>) -> io::Result<UnixStream> {
    let (this, other) = (fstat(fd)?, fstat(stderr)?);
    if (this.st_dev, this.st_ino) == (other.st_dev, other.st_ino) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "stderr is the same socket"));
    }
    let stream = StdUnixStream::from(fd.try_clone_to_owned()?);
    // Fails for a socket of another family.
    stream.local_addr()?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// A socket that is not shut down for writing when the last answer is written.
#[derive(Debug)]
struct LeftOpen(UnixStream);

impl AsyncWrite for LeftOpen {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const LONG: usize = 1 << 20;

    /// Stands for stderr, and is like no stream of a test.
    fn null() -> File {
        File::open("/dev/null").unwrap()
    }

    fn ends(input: &impl AsFd, output: &impl AsFd) -> (Input, Output) {
        let null = null();
        (input_of(input.as_fd(), null.as_fd()).unwrap(), output_of(output.as_fd(), null.as_fd()).unwrap())
    }

    /// Sends more than the kernel keeps, there and back.
    async fn carries(near: (Input, Output), far: (Input, Output)) -> Input {
        let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near, far);
        let echo = tokio::spawn(async move {
            let mut all = vec![0; LONG];
            far_in.read_exact(&mut all).await.unwrap();
            far_out.write_all(&all).await.unwrap();
            far_out.shutdown().await.unwrap();
        });
        let sent: Vec<u8> = (0..LONG).map(|at| (at % 251) as u8).collect();
        near_out.write_all(&sent).await.unwrap();
        let mut back = vec![0; LONG];
        near_in.read_exact(&mut back).await.unwrap();
        assert_eq!(back, sent);
        echo.await.unwrap();
        near_in
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn pipes_carry_more_than_they_hold_and_end() {
        let ((there_in, there_out), (back_in, back_out)) = (io::pipe().unwrap(), io::pipe().unwrap());
        let (near, far) = (ends(&back_in, &there_out), ends(&there_in, &back_out));
        for fd in [there_in.as_fd(), there_out.as_fd(), back_in.as_fd(), back_out.as_fd()] {
            let flags = rustix::fs::fcntl_getfl(fd).unwrap();
            assert!(!flags.contains(OFlags::NONBLOCK), "whoever shares it sees it as it was");
        }
        let mut near_in = carries(near, far).await;
        drop(back_out);
        assert_eq!(near_in.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn sockets_carry_more_than_they_hold_and_are_not_shut_down() {
        let (near, far) = StdUnixStream::pair().unwrap();
        let mut near_in = carries(ends(&near, &near), ends(&far, &far)).await;
        let mut byte = [0];
        let read = tokio::spawn(async move { near_in.read(&mut byte).await.map(|count| (count, byte)) });
        UnixStream::from_std(far).unwrap().write_all(b"!").await.unwrap();
        assert_eq!(read.await.unwrap().unwrap(), (1, *b"!"));
    }

    #[tokio::test]
    async fn a_socket_that_is_stderr_too_is_left_as_it_is() {
        let (near, _far) = StdUnixStream::pair().unwrap();
        let refused = input_of(near.as_fd(), near.as_fd()).map(drop).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        assert!(!rustix::fs::fcntl_getfl(&near).unwrap().contains(OFlags::NONBLOCK));
    }

    #[tokio::test]
    async fn what_can_t_be_polled_is_left_to_a_thread() {
        let (file, null) = (tempfile::tempfile().unwrap(), null());
        for fd in [file.as_fd(), null.as_fd()] {
            let refused = input_of(fd, null.as_fd()).map(drop).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        }
    }
}
