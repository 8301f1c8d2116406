//! The file of a dump: a tar archive, compressed with zstd. `tar --zstd -xf` opens it too.
//!
//! A bundle is hostile input: nothing in it is ever written to a disk, names are only compared,
//! every size is bounded before memory is allocated for it, and the checksum of the whole must be
//! right.

use std::io::Read;
use std::path::{Component, Path};

use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::sparse::Sparse;
use crate::discover::door;

/// The most bytes of a bundle, unpacked.
const MAX_BYTES: u64 = 1 << 30;
/// The most files in it.
const MAX_FILES: usize = 1 << 14;
/// The most bytes of one file in it.
///
/// The largest recorder that is read, which is far more than any of the texts.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// The most bytes of a bundle as it lies there: empty blocks unpack to nothing, without end.
const MAX_PACKED: u64 = 1 << 28;
/// How far back a compressed byte may refer, which is memory that decompression takes.
const MAX_WINDOW: u64 = 8 << 20;
/// The unit of a tar archive: a header takes one block, and every file a whole number of them.
const BLOCK: usize = 512;
/// The first bytes of a file that zstd made.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Whether a file may be a bundle, by its first bytes.
pub(crate) fn is_bundle(path: &Path) -> bool {
    let mut first = [0; 4];
    // A pipe must not block this, and a folder is not a bundle.
    let file = door::named(path).ok().and_then(|file| file.open().ok());
    file.is_some_and(|mut file| file.read_exact(&mut first).is_ok()) && first == ZSTD
}

/// Packs files, in this order.
///
/// # Errors
/// Why the archive cannot be made, or could not be opened again.
pub(super) fn pack(files: &[(String, Sparse)], seconds: u64) -> Result<Vec<u8>, String> {
    let total: u64 = files.iter().map(|(_, file)| file.len() as u64 + 1024).sum();
    let is_too_long = |(_, file): &(String, Sparse)| file.len() as u64 > MAX_FILE_BYTES;
    if total > MAX_BYTES || files.len() > MAX_FILES || files.iter().any(is_too_long) {
        return Err(too_large(total, files.len()));
    }
    let headers: Vec<tar::Header> =
        files.iter().map(|(name, file)| header(name, file, seconds)).collect::<Result<_, _>>()?;
    let parts = headers.iter().zip(files).map(|(header, (_, file))| -> Box<dyn Read + '_> {
        let padding = file.len().next_multiple_of(BLOCK) - file.len();
        let padding = std::io::repeat(0).take(padding as u64);
        Box::new(header.as_bytes().chain(file.reader()).chain(padding))
    });
    let end: Box<dyn Read + '_> = Box::new(std::io::repeat(0).take(2 * BLOCK as u64));
    // The archive is read while it is compressed and never exists as a whole. The result is in
    // memory, because this encoder does not handle a writer that fails.
    let archive = Parts { now: Box::new(std::io::empty()), next: parts.chain([end]) };
    let packed = compress_to_vec(archive, CompressionLevel::Fastest);
    if packed.len() as u64 > MAX_PACKED {
        return Err(too_large(packed.len() as u64, files.len()));
    }
    Ok(packed)
}

fn too_large(bytes: u64, files: usize) -> String {
    format!("a dump of {bytes} bytes in {files} files would be too large to be opened")
}

fn header(name: &str, file: &Sparse, seconds: u64) -> Result<tar::Header, String> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name).map_err(|e| format!("packing {name}: {e}"))?;
    header.set_size(file.len() as u64);
    header.set_mode(0o600);
    header.set_mtime(seconds);
    header.set_cksum();
    Ok(header)
}

/// Readers, one after the other.
struct Parts<'a, I> {
    now: Box<dyn Read + 'a>,
    next: I,
}

impl<'a, I: Iterator<Item = Box<dyn Read + 'a>>> Read for Parts<'a, I> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.now.read(into)? {
                0 if !into.is_empty() => match self.next.next() {
                    Some(part) => self.now = part,
                    None => return Ok(0),
                },
                count => return Ok(count),
            }
        }
    }
}

/// Unpacks a bundle, one file after the other; `take` gets each name and content.
///
/// # Errors
/// What is wrong with it, or the error of `take`.
pub(super) fn unpack(
    packed: impl Read,
    mut take: impl FnMut(&str, Vec<u8>) -> Result<(), String>,
) -> Result<(), String> {
    let decoder = StreamingDecoder::new_with_max_window_size(packed.take(MAX_PACKED), MAX_WINDOW)
        .map_err(|e| format!("it cannot be decompressed: {e}"))?;
    let mut bounded = Bounded { from: decoder, left: MAX_BYTES };
    let mut archive = tar::Archive::new(&mut bounded);
    // Raw: a bundle has plain files with short names only, and other entries would be read whole
    // into memory.
    let entries = archive.entries().map_err(|e| e.to_string())?.raw(true);
    for (count, entry) in entries.enumerate() {
        let entry = entry.map_err(|e| format!("it is damaged: {e}"))?;
        if count == MAX_FILES {
            return Err(format!("it holds more than {MAX_FILES} files"));
        }
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let is_plain = entry.header().entry_type().is_file()
            && Path::new(&name).components().all(|part| matches!(part, Component::Normal(_)));
        if !is_plain {
            return Err(format!("{name:?} in it is no plain file, or leads out of it"));
        }
        if entry.size() > MAX_FILE_BYTES {
            return Err(format!("{name:?} in it has {} bytes, which is too many", entry.size()));
        }
        let size = entry.size();
        let mut bytes = Vec::new();
        entry
            .take(MAX_FILE_BYTES)
            .read_to_end(&mut bytes)
            .map_err(|e| format!("{name:?} in it is damaged: {e}"))?;
        if bytes.len() as u64 != size {
            return Err(format!("it ends within {name:?}"));
        }
        take(&name, bytes)?;
    }
    // Reads what follows the last file, and with it the checksum.
    std::io::copy(&mut bounded, &mut std::io::sink()).map_err(|e| format!("it is damaged: {e}"))?;
    let decoder = bounded.from.into_frame_decoder();
    match (decoder.get_checksum_from_data(), decoder.get_calculated_checksum()) {
        (Some(stored), Some(is)) if stored != is => Err("it is damaged: its checksum is wrong".to_string()),
        _ => Ok(()),
    }
}

/// A reader that fails if its source has more bytes than allowed.
struct Bounded<R> {
    from: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.from.read(into)?;
        self.left = self
            .left
            .checked_sub(read as u64)
            .ok_or_else(|| std::io::Error::other(format!("it unpacks to more than {MAX_BYTES} bytes")))?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unpacked(packed: &[u8]) -> Result<Vec<(String, Vec<u8>)>, String> {
        let mut files = Vec::new();
        unpack(packed, |name, bytes| {
            files.push((name.to_string(), bytes));
            Ok(())
        })?;
        Ok(files)
    }

    fn some() -> Vec<(String, Vec<u8>)> {
        let text = (0..20_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        vec![("a.json".into(), b"{}".to_vec()), ("recorders/0.rec".into(), text), ("empty".into(), vec![])]
    }

    fn sparse(files: &[(String, Vec<u8>)]) -> Vec<(String, Sparse)> {
        files.iter().map(|(name, bytes)| (name.clone(), Sparse::of(bytes))).collect()
    }

    /// One file with these values in its header.
    fn with_header(name: &[u8], kind: u8, size: u64) -> Vec<u8> {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_size(size);
        header.set_cksum();
        compress_to_vec(&[header.as_bytes().as_slice(), &[0; 1024]].concat()[..], CompressionLevel::Fastest)
    }

    #[test]
    fn what_is_packed_comes_back() {
        let packed = pack(&sparse(&some()), 7).unwrap();
        assert!(packed.len() < 40_000, "{} bytes", packed.len());
        assert_eq!(unpacked(&packed).unwrap(), some());
        assert_eq!(unpacked(&pack(&[], 7).unwrap()).unwrap(), vec![]);
    }

    #[test]
    fn what_is_no_bundle_is_refused_with_the_reason() {
        let check = |packed: &[u8], says: &str| {
            let why = unpacked(packed).unwrap_err();
            assert!(why.contains(says), "{why}");
        };
        check(b"", "cannot be decompressed");
        check(b"garbage, no zstd at all", "cannot be decompressed");
        check(&compress_to_vec(&[1u8; 600][..], CompressionLevel::Fastest), "it is damaged");
        check(&with_header(b"../../etc/passwd", b'0', 0), "leads out of it");
        check(&with_header(b"/etc/passwd", b'0', 0), "leads out of it");
        check(&with_header(b"a/../../b", b'0', 0), "leads out of it");
        check(&with_header(b"link", b'2', 0), "is no plain file");
        check(&with_header(b"long", b'L', 8 << 30), "is no plain file");
        check(&with_header(b"large", b'0', 7 << 30), "which is too many");
        check(&with_header(b"cut", b'0', 5000), "it ends within \"cut\"");
        let packed = pack(&sparse(&some()), 7).unwrap();
        check(&packed[..packed.len() / 2], "damaged");
        let mut wrong = packed.clone();
        let last = wrong.len() - 1;
        wrong[last] ^= 1;
        check(&wrong, "its checksum is wrong");
    }

    #[test]
    fn a_small_file_that_unpacks_without_end_is_stopped() {
        // One block of 128 KiB equal bytes, which takes four bytes, many times.
        let mut bomb = [ZSTD.as_slice(), &[0, 0x58]].concat();
        let block = (128u32 << 10) << 3 | 1 << 1;
        for _ in 0..20_000 {
            bomb.extend(&block.to_le_bytes()[..3]);
            bomb.push(0);
        }
        // Zeros end an archive; what follows is still read, up to the bound.
        let why = unpacked(&bomb).unwrap_err();
        assert!(why.contains("unpacks to more than"), "{why}");
    }

    proptest! {
        #[test]
        fn whatever_is_changed_nothing_panics(
            at in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            cut in any::<prop::sample::Index>(),
            is_cut: bool,
        ) {
            let mut packed = pack(&sparse(&some()), 7).unwrap();
            for (at, byte) in at {
                let at = at.index(packed.len());
                packed[at] = byte;
            }
            if is_cut {
                packed.truncate(cut.index(packed.len()));
            }
            let _ = unpacked(&packed);
        }
    }
}
