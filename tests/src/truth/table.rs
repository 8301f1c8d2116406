//! The table of ranks of a snapshot's text, as claims.

use super::claim::{Call, Claim, Stand};
use super::words::duration;

/// The first column of each table heading.
pub(super) struct Columns(Vec<(String, usize)>);

impl Columns {
    pub(super) fn new(header: &str) -> Self {
        let mut columns = Vec::new();
        let mut at = 0;
        for title in header.split("  ") {
            let lead = title.len() - title.trim_start().len();
            if !title.trim().is_empty() {
                columns.push((title.trim().to_string(), at + lead));
            }
            at += title.len() + 2;
        }
        Self(columns)
    }

    /// The cell below `title`, up to the next title.
    fn cell<'a>(&self, title: &str, row: &'a str) -> &'a str {
        let Some(at) = self.0.iter().position(|(name, _)| name == title) else { return "" };
        let from = self.0[at].1.min(row.len());
        let to = self.0.get(at + 1).map_or(row.len(), |(_, to)| (*to).min(row.len()));
        row.get(from..to).unwrap_or_default().trim()
    }
}

/// The claims of a row of the table of ranks.
pub(super) fn row(columns: &Columns, text: &str) -> Option<Vec<Claim>> {
    let rank = columns.cell("rank", text).parse().ok()?;
    let word = |title| Some(columns.cell(title, text).to_string()).filter(|word| !word.is_empty());
    let pid = columns.cell("pid", text).parse().ok();
    let state = word("process")?.to_lowercase().replace(" (d)", "");
    let mut claims = vec![
        Claim::Process { rank, pid, host: word("host"), state: Some(state) },
        Claim::From { rank, source: word("source")? },
    ];
    let Some(operation) = word("operation") else { return Some(claims) };
    if operation.starts_with("in init") {
        claims.push(Claim::InInit { rank });
        return Some(claims);
    }
    let (call, stand) = (operation.as_str(), columns.cell("state", text));
    // For a rank that failed and is gone, the time that it had been in the call is given, as in the
    // answer.
    let time = columns.cell("since", text);
    let time = if call.trim() == "-" && time.is_empty() { "0 ns" } else { time };
    let for_ns = duration(time.strip_prefix("after ").unwrap_or(time))?;
    let stand = match stand.trim() {
        "running" => Stand::Running,
        "in user code" | "failed between calls" => Stand::Idle,
        stand => Stand::Failed(stand.strip_prefix("failed: ")?.into()),
    };
    let call = match call.trim() {
        "-" => None,
        "in finish()" => Some(Call { kind: "finish()".into(), seq: 0, peer: None }),
        call => Some(Call::parse(call)?),
    };
    // A rank in finish() has ended its last operation.
    let stand =
        if call.as_ref().is_some_and(|call| call.kind == "finish()") { Stand::Running } else { stand };
    let stand = if time.starts_with("after ") { Stand::FailedAfter(stand_error(stand)?) } else { stand };
    claims.push(Claim::At { rank, call, stand, for_ns, tag: columns.cell("tag", text).into() });
    Some(claims)
}

fn stand_error(stand: Stand) -> Option<String> {
    match stand {
        Stand::Failed(error) => Some(error),
        _ => None,
    }
}
