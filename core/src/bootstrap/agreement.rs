//! Settings that must be equal on all ranks: which values a rank sends, and how they are compared.

use super::fault::{Fault, name_ranks};
use super::messages::Introduction;
use crate::config::{Key, ROWS, Settings};
use crate::error::ErrorKind;
use crate::types::Rank;

/// The settings on which the plans and messages of all ranks depend.
const AGREED: &[Key] = &[Key::Algorithm, Key::Channels, Key::Transport, Key::Streams, Key::Checksum];

/// This rank's values in lower case: case does not matter, as NCCL writes values differently.
pub(crate) fn own_settings(settings: &Settings) -> Vec<(String, String)> {
    let pair = |key: &Key| (ROWS[*key as usize].name.to_string(), settings.text(*key).to_ascii_lowercase());
    AGREED.iter().map(pair).collect()
}

/// The first setting that differs between ranks, as a fault. The text is the same on every rank.
pub(crate) fn differing_settings(peers: &[Introduction]) -> Option<Fault> {
    differing(&peers.iter().map(|peer| peer.settings.as_slice()).collect::<Vec<_>>())
}

/// The same, of the values of each rank.
pub(crate) fn differing(peers: &[&[(String, String)]]) -> Option<Fault> {
    let first = peers.first()?;
    let value = |peer: &[(String, String)], name: &str| {
        peer.iter().find(|(n, _)| n == name).map_or_else(String::new, |(_, v)| v.clone())
    };
    for (name, here) in *first {
        let differ = |(_, peer): &(usize, &[(String, String)])| value(peer, name) != *here;
        let all = peers.iter().copied().enumerate();
        let others: Vec<(usize, &[(String, String)])> = all.filter(differ).collect();
        if let Some((_, other)) = others.first() {
            let ranks: Vec<Rank> = others.iter().map(|(rank, _)| Rank(*rank as u32)).collect();
            let there = value(other, name);
            let verb = if ranks.len() == 1 { "has" } else { "have" };
            let more =
                if others.iter().all(|(_, peer)| value(peer, name) == there) { "" } else { " and others" };
            let text = format!(
                "{name} must be equal on all ranks: rank 0 has \"{here}\", {} {verb} \"{there}\"{more}",
                name_ranks(&ranks)
            );
            return Some(Fault::new(ErrorKind::Mismatch, &ranks, text));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(values: &[(&str, &str)]) -> Introduction {
        let settings = values.iter().map(|(n, v)| ((*n).to_string(), (*v).to_string())).collect();
        Introduction { contact: "127.0.0.1:1".parse().unwrap(), settings, own: Vec::new() }
    }

    #[test]
    fn what_differs_is_named_with_both_values_and_the_ranks() {
        let same = peer(&[("CCL_ALGO", "ring"), ("CCL_CHANNELS", "2")]);
        assert_eq!(differing_settings(&[same.clone(), same.clone()]), None);
        let other = peer(&[("CCL_ALGO", "ring"), ("CCL_CHANNELS", "4")]);
        let fault = differing_settings(&[same.clone(), other.clone(), same.clone(), other.clone()]).unwrap();
        assert_eq!(
            fault.text,
            "CCL_CHANNELS must be equal on all ranks: rank 0 has \"2\", ranks 1, 3 have \"4\""
        );
        assert_eq!((fault.kind, fault.culprits), (ErrorKind::Mismatch, vec![Rank(1), Rank(3)]));
        let third = peer(&[("CCL_ALGO", "ring")]);
        let fault = differing_settings(&[same, other, third]).unwrap();
        assert!(fault.text.ends_with("ranks 1-2 have \"4\" and others"), "{}", fault.text);
    }

    #[test]
    fn a_rank_tells_its_values_in_one_case() {
        let mut settings = Settings::default();
        settings.set(Key::Algorithm, "Ring").unwrap();
        let own = own_settings(&settings);
        assert!(own.contains(&("CCL_ALGO".into(), "ring".into())), "{own:?}");
        assert!(own.contains(&("CCL_CHANNELS".into(), "2".into())), "{own:?}");
    }
}
