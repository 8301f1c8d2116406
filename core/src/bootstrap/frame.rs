//! The wire format: little-endian fields, and frames `{u32 length, u8 kind, body}`. Received bytes
//! are untrusted until they are checked.

use crate::text::harmless;

/// A number that is sent in little-endian order.
pub(crate) trait Number {
    /// Appends it.
    fn append(self, out: &mut Vec<u8>);
}

macro_rules! number {
    ($($type:ty),+) => {$(
        impl Number for $type {
            fn append(self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
        }
    )+};
}
number!(u8, u16, u32, u64);

/// Appends a number.
pub(crate) fn put(out: &mut Vec<u8>, number: impl Number) {
    number.append(out);
}

/// Appends the length of the bytes, then the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u32);
    out.extend(bytes);
}

/// The unread rest of a message. `None` means that it is too short.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    /// Reads a length, then as many bytes.
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = self.u32()? as usize;
        self.take(count)
    }
    /// Reads a length, then printable text. Invalid UTF-8 is replaced.
    pub(crate) fn text(&mut self) -> Option<String> {
        self.bytes().map(printable)
    }
}

/// Converts text from a peer so that it is safe in an error or on a terminal.
pub(crate) fn printable(bytes: &[u8]) -> String {
    harmless(&String::from_utf8_lossy(bytes), usize::MAX).into_owned()
}

/// Encodes one frame.
pub(crate) fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + body.len());
    put(&mut out, body.len() as u32 + 1);
    put(&mut out, kind);
    out.extend(body);
    out
}

/// Splits incoming bytes into frames. The buffer holds only bytes that have arrived; an announced
/// length allocates nothing.
#[derive(Debug)]
pub(crate) struct Frames {
    buffer: Vec<u8>,
    start: usize,
    limit: usize,
}

impl Frames {
    /// Accepts frames of up to `limit` bytes.
    pub(crate) const fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, limit }
    }

    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start >= self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend(bytes);
    }

    /// The next frame, if all of it has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<(u8, Vec<u8>)>, &'static str> {
        let mut fields = Fields(&self.buffer[self.start..]);
        let Some(length) = fields.u32() else { return Ok(None) };
        if length == 0 || length as usize > self.limit {
            return Err("a frame of impossible length");
        }
        let Some(content) = fields.take(length as usize) else { return Ok(None) };
        let (kind, body) = (content[0], content[1..].to_vec());
        self.start += 4 + length as usize;
        Ok(Some((kind, body)))
    }

    /// The bytes after the last frame that was taken.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let rest = self.buffer.split_off(self.start);
        self.buffer.clear();
        self.start = 0;
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_split() {
        for chunk in [1, 3, 100] {
            let sent = [frame(1, b"one"), frame(2, b""), frame(3, &[7; 50])].concat();
            let mut frames = Frames::new(64);
            let mut seen = Vec::new();
            for part in sent.chunks(chunk) {
                frames.extend(part);
                while let Some(frame) = frames.next().unwrap() {
                    seen.push(frame);
                }
            }
            assert_eq!(seen, [(1, b"one".to_vec()), (2, Vec::new()), (3, vec![7; 50])]);
            frames.extend(b"tail");
            assert_eq!(frames.rest(), b"tail");
        }
    }

    #[test]
    fn an_impossible_length_is_an_error_before_anything_is_allocated() {
        for length in [0u32, 65, u32::MAX] {
            let mut frames = Frames::new(64);
            frames.extend(&length.to_le_bytes());
            assert!(frames.next().is_err(), "{length}");
        }
    }

    #[test]
    fn fields_never_read_beyond_the_end() {
        let mut out = Vec::new();
        put(&mut out, 5u16);
        put_bytes(&mut out, b"text");
        let mut fields = Fields(&out);
        assert_eq!((fields.u16(), fields.text()), (Some(5), Some("text".to_string())));
        assert_eq!((fields.u8(), fields.u64(), fields.bytes()), (None, None, None));
        assert_eq!(Fields(&[255, 255, 255, 255, 1]).bytes(), None);
    }
}
