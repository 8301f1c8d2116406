//! The bytes of a file that is to be packed, without its empty pages.
//!
//! Most of a recorder was never written, and a dump holds the recorders of a whole job at once.

use std::io::Read;

/// Bytes of one page; the same as a memory page.
const PAGE: usize = 4096;

/// Bytes, of which only the pages that are not all zeros take memory.
#[derive(Debug)]
pub(super) struct Sparse {
    len: usize,
    /// By page number, in ascending order.
    pages: Vec<(usize, Box<[u8]>)>,
}

impl Sparse {
    /// Holds `bytes`.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let pages = bytes.chunks(PAGE).enumerate();
        let written = pages.filter(|(_, page)| page.iter().any(|byte| *byte != 0));
        Self { len: bytes.len(), pages: written.map(|(at, page)| (at, page.into())).collect() }
    }

    /// The number of bytes, empty pages included.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// All bytes.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        for (at, page) in &self.pages {
            bytes[at * PAGE..][..page.len()].copy_from_slice(page);
        }
        bytes
    }

    /// Reads all bytes, one after the other.
    pub(super) fn reader(&self) -> impl Read + '_ {
        Reader { from: self, next: 0, at: 0 }
    }
}

struct Reader<'a> {
    from: &'a Sparse,
    /// The index of the first page that does not end before `at`.
    next: usize,
    at: usize,
}

impl Read for Reader<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let Sparse { len, pages } = self.from;
        let (begins, page): (usize, &[u8]) =
            pages.get(self.next).map_or((*len, &[]), |(at, page)| (at * PAGE, page));
        let count = if self.at < begins {
            let count = into.len().min(begins - self.at);
            into[..count].fill(0);
            count
        } else {
            let rest = &page[self.at - begins..];
            let count = into.len().min(rest.len());
            into[..count].copy_from_slice(&rest[..count]);
            self.next += usize::from(count == rest.len());
            count
        };
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_was_held_and_empty_pages_take_no_memory() {
        let mut bytes = vec![0; 10 * PAGE + 7];
        for (written, held) in [(None, 0), (Some(3 * PAGE), 1), (Some(0), 2), (Some(10 * PAGE + 6), 3)] {
            if let Some(at) = written {
                bytes[at] = 9;
            }
            let sparse = Sparse::of(&bytes);
            assert_eq!((sparse.len(), sparse.pages.len()), (bytes.len(), held));
            assert_eq!(sparse.bytes(), bytes);
            let mut read = Vec::new();
            sparse.reader().read_to_end(&mut read).unwrap();
            assert_eq!(read, bytes);
        }
        assert_eq!(Sparse::of(&[]).reader().read(&mut [0; 5]).unwrap(), 0);
    }
}
