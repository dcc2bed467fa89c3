//! Power loss: images of the disk at any moment, built from the writes and syncs that the real programs made.
//!
//! Owns the model of a disk: what a file's last sync covers is there; of what came after it, each write is there, not
//! there, or there in some of its sectors, whatever came first. What was not synced when a sync failed may be lost for
//! good, whatever later sync succeeds. Reads' records may be lost with the power, and are not
//! asked for.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use crate::checker::{Outside, Violation, judge_image};
use crate::clock::Rng;

/// What a disk writes whole.
const SECTOR: usize = 512;
/// Nothing, in pieces of so much.
const ZEROS: [u8; 4_096] = [0; 4_096];
/// Of one entry of the recording, before its bytes.
const HEAD: usize = 18;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Write(Vec<u8>),
    Sync,
    /// A sync that failed.
    Failed,
    Truncate,
}

#[derive(Debug)]
struct Operation {
    kind: Kind,
    /// 0 the database, 1 its log.
    file: usize,
    offset: usize,
    /// How long the recording was with it.
    end: u64,
}

/// What came of the images of one recording.
#[derive(Debug, Default)]
pub(crate) struct Images {
    pub(crate) built: usize,
    pub(crate) violations: Vec<Violation>,
}

/// Builds images at random moments, and at those of acknowledgements and effects, and judges each. `outside` is what people and the world knew in the end; of that,
/// each image answers for what they knew by its moment.
pub(crate) fn cut(
    recording: &Path,
    folder: &Path,
    outside: &Outside,
    images: usize,
    rng: &mut Rng,
) -> Result<Images, String> {
    let bytes = fs::read(recording).map_err(|error| format!("read the recording: {error}"))?;
    let operations = read(&bytes)?;
    // Before the log's first sync there is no database yet that anybody was told of.
    let first = operations.iter().position(is_sync_of_log).ok_or("the recording has no sync of the log")?;
    let mut found = Images::default();
    // Half of the images are of the moments that matter most: right when somebody came to rely on the record.
    let moments = outside.moments();
    for _ in 0..images {
        let left = operations.len() - first;
        let moment = moments.get(below(rng, moments.len())).filter(|_| rng.flip());
        let count = match moment {
            Some(moment) => {
                (operations.partition_point(|operation| operation.end < *moment) + 1).max(first + 1)
            }
            None => first + 1 + below(rng, left),
        };
        let happened = &operations[..count.min(operations.len())];
        let moment = happened.last().map_or(0, |operation| operation.end);
        let [database, log] = [0, 1].map(|file| image(happened, file, rng));
        let path = folder.join("cut.db");
        for (name, bytes) in [(path.clone(), database), (folder.join("cut.db-wal"), log)] {
            put(&name, &bytes).map_err(|error| format!("{}: {error}", name.display()))?;
        }
        // The shared memory goes with the power.
        drop(fs::remove_file(folder.join("cut.db-shm")));
        let known = outside.by(moment);
        let wrong = judge_image(&path, &known).unwrap_or_else(|why| vec![Violation::unreadable(why)]);
        let at = format!("after {count} of {} operations", operations.len());
        found.violations.extend(wrong.into_iter().map(|violation| violation.at(&at)));
        found.built += 1;
    }
    Ok(found)
}

/// What a disk may have kept of both files when the power goes after everything that was recorded.
pub(crate) fn kept(recording: &Path, rng: &mut Rng) -> Result<[Vec<u8>; 2], String> {
    let bytes = fs::read(recording).map_err(|error| format!("read the recording: {error}"))?;
    let operations = read(&bytes)?;
    Ok([0, 1].map(|file| image(&operations, file, rng)))
}

/// Begins a recording anew, of a disk that has these files for good.
pub(crate) fn begin(recording: &Path, files: &[Vec<u8>; 2]) -> Result<(), String> {
    let mut bytes = Vec::new();
    for (which, content) in (0..).zip(files) {
        for (kind, data) in [(1, content.as_slice()), (2, &[])] {
            bytes.extend_from_slice(&[kind, which]);
            bytes.extend_from_slice(&0_u64.to_le_bytes());
            bytes.extend_from_slice(&(data.len() as u64).to_le_bytes());
            bytes.extend_from_slice(data);
        }
    }
    fs::write(recording, bytes).map_err(|error| format!("begin the recording: {error}"))
}

/// Writes a file, without the zeros at its end: a log is made long before it is full, and most of it is a hole.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let zeros = bytes.rchunks(ZEROS.len()).take_while(|piece| **piece == ZEROS[..piece.len()]);
    let left = bytes.len() - zeros.map(<[u8]>::len).sum::<usize>();
    let mut file = fs::File::create(path)?;
    file.write_all(&bytes[..left])?;
    file.set_len(bytes.len() as u64)
}

fn below(rng: &mut Rng, end: usize) -> usize {
    usize::try_from(rng.below(end as u64)).unwrap_or(0)
}

fn is_sync_of_log(operation: &Operation) -> bool {
    operation.file == 1 && operation.kind == Kind::Sync
}

/// Whether a log was ever synced in this recording.
pub(crate) fn has_sync(recording: &Path) -> bool {
    let operations = fs::read(recording).ok().and_then(|bytes| read(&bytes).ok());
    operations.is_some_and(|operations| operations.iter().any(is_sync_of_log))
}

fn read(mut bytes: &[u8]) -> Result<Vec<Operation>, String> {
    let whole = bytes.len();
    let mut operations = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(HEAD) {
        let number = |at: usize| {
            let field = head[at..at + 8].try_into().unwrap_or([0; 8]);
            usize::try_from(u64::from_le_bytes(field)).map_err(|error| error.to_string())
        };
        let (offset, length) = (number(2)?, number(10)?);
        let Some((data, rest)) = rest.split_at_checked(length) else { break };
        let kind = match head[0] {
            1 => Kind::Write(data.to_vec()),
            2 => Kind::Sync,
            3 => Kind::Truncate,
            4 => Kind::Failed,
            other => return Err(format!("the recording has an operation {other}")),
        };
        bytes = rest;
        operations.push(Operation {
            kind,
            file: usize::from(head[1]),
            offset,
            end: (whole - rest.len()) as u64,
        });
    }
    Ok(operations)
}

/// One file as a disk may have it after these operations and a power cut.
fn image(happened: &[Operation], file: usize, rng: &mut Rng) -> Vec<u8> {
    let mut content = Vec::new();
    let mut unsynced: Vec<&Operation> = Vec::new();
    for operation in happened.iter().filter(|operation| operation.file == file) {
        match operation.kind {
            Kind::Write(_) | Kind::Truncate => unsynced.push(operation),
            Kind::Sync => unsynced.drain(..).for_each(|operation| apply(&mut content, operation)),
            // The kernel has told of it once, and takes what it could not write for written.
            Kind::Failed => {
                let all = rng.flip();
                unsynced.retain(|_| !all && rng.flip());
            }
        }
    }
    // All, none, or each as chance has it.
    let manner = rng.below(6);
    if manner == 5 {
        unsynced.reverse();
    }
    for operation in unsynced {
        let fate = match manner {
            0 => 0,
            1 => 1,
            _ => rng.below(3),
        };
        match fate {
            0 => {}
            1 => apply(&mut content, operation),
            _ => apply_torn(&mut content, operation, |_| rng.flip()),
        }
    }
    content
}

/// Applies an operation.
fn apply(content: &mut Vec<u8>, operation: &Operation) {
    match &operation.kind {
        Kind::Sync | Kind::Failed => {}
        Kind::Truncate => resize(content, operation.offset),
        Kind::Write(bytes) => put_at(content, operation.offset, bytes),
    }
}

/// Applies an operation, sector by sector as `keeps` has it.
fn apply_torn(content: &mut Vec<u8>, operation: &Operation, mut keeps: impl FnMut(usize) -> bool) {
    let Kind::Write(bytes) = &operation.kind else { return apply(content, operation) };
    let mut at = 0;
    while at < bytes.len() {
        let place = operation.offset + at;
        // To the next border of a sector.
        let length = (SECTOR - place % SECTOR).min(bytes.len() - at);
        if keeps(place / SECTOR) {
            put_at(content, place, &bytes[at..at + length]);
        }
        at += length;
    }
}

fn put_at(content: &mut Vec<u8>, place: usize, bytes: &[u8]) {
    let end = place + bytes.len();
    if content.len() < end {
        resize(content, end);
    }
    content[place..end].copy_from_slice(bytes);
}

/// Gives it this length. Zeros are copied in pieces, or come from the system as pages that nobody has touched: one by one
/// they would take longer than all else.
fn resize(content: &mut Vec<u8>, length: usize) {
    content.truncate(length);
    if length > 2 * content.len() {
        let mut longer = vec![0; length];
        longer[..content.len()].copy_from_slice(content);
        *content = longer;
    }
    while content.len() < length {
        let some = (length - content.len()).min(ZEROS.len());
        content.extend_from_slice(&ZEROS[..some]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: u8, offset: u64, bytes: &[u8]) -> Vec<u8> {
        let head =
            [vec![kind, 1], offset.to_le_bytes().to_vec(), (bytes.len() as u64).to_le_bytes().to_vec()];
        [head.concat(), bytes.to_vec()].concat()
    }

    #[test]
    fn what_was_synced_is_in_every_image_and_what_was_not_is_in_some() {
        let recording = [entry(1, 0, &[7; 1_024]), entry(2, 0, &[]), entry(1, 1_024, &[9; 1_024])].concat();
        let operations = read(&recording).unwrap();
        assert_eq!(operations.len(), 3);
        let mut rng = Rng::new(1);
        let images: Vec<Vec<u8>> = (0..64).map(|_| image(&operations, 1, &mut rng)).collect();
        assert!(images.iter().all(|image| image[..1_024] == [7; 1_024]));
        let lengths: std::collections::BTreeSet<usize> = images.iter().map(Vec::len).collect();
        assert_eq!(Vec::from_iter(lengths), [1_024, 1_536, 2_048]);
    }

    #[test]
    fn what_a_failed_sync_left_behind_may_be_lost_whatever_is_synced_later() {
        let recording =
            [entry(1, 0, &[7; 512]), entry(4, 0, &[]), entry(1, 512, &[9; 512]), entry(2, 0, &[])].concat();
        let operations = read(&recording).unwrap();
        let mut rng = Rng::new(1);
        let images: Vec<Vec<u8>> = (0..64).map(|_| image(&operations, 1, &mut rng)).collect();
        assert!(images.iter().all(|image| image[512..] == [9; 512]));
        let firsts: std::collections::BTreeSet<u8> = images.iter().map(|image| image[0]).collect();
        assert_eq!(Vec::from_iter(firsts), [0, 7]);
    }
}
