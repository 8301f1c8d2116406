//! The memory that a job takes once it is parsed, found without keeping any of it.
//!
//! Every field of a row may be absent, so two bytes of a file, `{}` or `[]`, become a rank of
//! several hundred: serde also reads a row from an array of its fields in order.

use ccl::snapshot::{
    Behind, BlockedOn, CommSnapshot, Failure, LinkSnapshot, NotJoined, PeerSnapshot, PortSnapshot,
    QueuePairSnapshot, RankSnapshot, SocketSnapshot, ThreadFacts, Verdict,
};
use ccl::types::Rank;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A number in an array: a rank, or half a range of them.
const NUMBER: usize = 8;
/// The largest row.
const LARGEST: usize = {
    let (comm, rank) = (size_of::<CommSnapshot>(), size_of::<RankSnapshot>());
    if comm > rank { comm } else { rank }
};

/// The approximate bytes that this JSON takes as a job.
///
/// # Errors
/// Why it is no JSON.
pub(super) fn weigh(json: &[u8]) -> serde_json::Result<usize> {
    let mut bytes = 0;
    let whole = Weight { bytes: &mut bytes, own: None, each: 0 };
    whole.deserialize(&mut serde_json::Deserializer::from_slice(json))?;
    Ok(bytes)
}

/// The size of a row of the array of this name.
fn row(of: &str) -> usize {
    match of {
        "ranks" => size_of::<RankSnapshot>(),
        "comms" => size_of::<CommSnapshot>(),
        "links" => size_of::<LinkSnapshot>(),
        "sockets" => size_of::<SocketSnapshot>(),
        "queue_pairs" => size_of::<QueuePairSnapshot>(),
        "ports" => size_of::<PortSnapshot>(),
        "peers" => size_of::<PeerSnapshot>(),
        "threads" => size_of::<ThreadFacts>(),
        "blocked_on" => size_of::<BlockedOn>(),
        "failures" => size_of::<Failure>(),
        "not_joined" => size_of::<NotJoined>(),
        "verdicts" => size_of::<Verdict>(),
        "absent_runs" => size_of::<(Rank, Rank)>(),
        // The largest of the others.
        _ => size_of::<Behind>(),
    }
}

struct Weight<'a> {
    bytes: &'a mut usize,
    /// In an array, the size of a row. What is no element lies in the row around it.
    own: Option<usize>,
    /// If it is an array, the size of its rows.
    each: usize,
}

impl Weight<'_> {
    /// Adds an element of an array that is no row.
    fn add<E: Error>(self, element: usize, rest: usize) -> Result<(), E> {
        *self.bytes += self.own.map_or(0, |_| element) + rest;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Weight<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Weight<'_> {
    type Value = ();

    fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.add(NUMBER, 0)
    }
    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.add(NUMBER, 0)
    }
    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.add(NUMBER, 0)
    }
    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.add(NUMBER, 0)
    }
    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.add(NUMBER, 0)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.add(size_of::<String>(), text.len())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        let Self { bytes, own, each } = self;
        *bytes += own.unwrap_or(0);
        // An array in an array may be a row, whose fields have no names here. Those that are arrays
        // may be of any rows.
        while all.next_element_seed(Weight { bytes: &mut *bytes, own: Some(each), each: LARGEST })?.is_some()
        {
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        *self.bytes += self.own.unwrap_or(0);
        while let Some(name) = all.next_key::<String>()? {
            all.next_value_seed(Weight { bytes: &mut *self.bytes, own: None, each: row(&name) })?;
        }
        Ok(())
    }
}
