//! Durations of operations by kind and size: percentiles over all ranks, and the mean of each rank.
//!
//! They come from histograms, so they are bounds of buckets, not exact values. They do not show
//! which rank is late: the longest times are those of the ranks that wait for it.

use std::collections::BTreeMap;

use ccl::diagnose::duration;
use ccl::recorder::reader::Histogram;
use ccl::types::{CollKind, CommId, Rank};
use ratatui::text::{Line, Span};

use super::wrapped;

use crate::tui::listing::{About, Cell, Column, Listing, Row};
use crate::tui::palette::Role;
use crate::tui::scene::{Scene, bytes, name};
use crate::words;

/// Columns of a bar below the list.
const BAR: u64 = 40;

/// The durations of one kind and size class in one communicator, of all ranks together.
struct Class<'a> {
    comm: CommId,
    name: &'a str,
    kind: CollKind,
    class_bytes: Option<u64>,
    /// Upper bound and count.
    buckets: Vec<(Option<u64>, u64)>,
    sum_ns: u64,
    sum_bytes: u64,
    /// Each rank's mean.
    means: BTreeMap<Rank, u64>,
}

impl Class<'_> {
    /// Its ranks as ranks of the job.
    fn ranks(&self, numbers: &BTreeMap<(CommId, Rank), Rank>) -> Vec<Rank> {
        let of_job = |rank: &Rank| numbers.get(&(self.comm, *rank)).copied().unwrap_or(*rank);
        let mut ranks: Vec<Rank> = self.means.keys().map(of_job).collect();
        ranks.sort_unstable();
        ranks
    }
    fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
    /// The bound below which `of_thousand` of 1,000 durations lie; `None` beyond the last bucket.
    fn percentile(&self, of_thousand: u64) -> Option<u64> {
        let wanted = (u128::from(self.count()) * u128::from(of_thousand)).div_ceil(1000).max(1);
        let mut seen = 0_u128;
        let found = self.buckets.iter().find(|(_, count)| {
            seen += u128::from(*count);
            seen >= wanted
        });
        found.and_then(|(bound, _)| *bound)
    }
}

/// The durations of the communicators that are shown.
fn shown<'a>(scene: &Scene<'a>) -> Vec<Class<'a>> {
    let all = scene.histograms.unwrap_or_default().iter();
    classes(all.filter(|one| scene.shows(one.comm)))
}

fn classes<'a>(histograms: impl IntoIterator<Item = &'a Histogram>) -> Vec<Class<'a>> {
    let mut classes: BTreeMap<(CommId, CollKind, u64), Class<'a>> = BTreeMap::new();
    for one in histograms {
        let count = one.buckets.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
        if count == 0 {
            continue;
        }
        let class =
            classes.entry((one.comm, one.kind, one.class_bytes.unwrap_or(u64::MAX))).or_insert(Class {
                comm: one.comm,
                name: &one.name,
                kind: one.kind,
                class_bytes: one.class_bytes,
                buckets: Vec::new(),
                sum_ns: 0,
                sum_bytes: 0,
                means: BTreeMap::new(),
            });
        class.sum_ns = class.sum_ns.saturating_add(one.sum_ns);
        class.sum_bytes = class.sum_bytes.saturating_add(one.sum_bytes);
        class.means.insert(one.rank, one.sum_ns / count);
        for (bound, count) in &one.buckets {
            match class.buckets.iter_mut().find(|(known, _)| known == bound) {
                Some((_, sum)) => *sum = sum.saturating_add(*count),
                None => class.buckets.push((*bound, *count)),
            }
        }
        class.buckets.sort_by_key(|(bound, _)| bound.unwrap_or(u64::MAX));
    }
    classes.into_values().collect()
}

/// One row per communicator, kind and size class.
pub(crate) fn listing(scene: &Scene<'_>) -> Listing {
    // One name may stand for several: the ranks tell which one it is.
    let is_one = !scene.has_several();
    let numbers = scene.job.numbers();
    let of_which = |class: &Class<'_>| match is_one {
        true => name(class.name, class.comm),
        false => format!("{} {}", name(class.name, class.comm), words::ranks(&class.ranks(&numbers))),
    };
    let mut columns = vec![
        Column::new("operation"),
        Column::new("up to"),
        Column::new("count"),
        Column::new("mean"),
        Column::new("p50 <").goes(u8::from(!is_one)),
        Column::new("p90 <").goes(2),
        Column::new("p99 <"),
        Column::new("max <"),
        Column::new("ranks' means"),
        Column::new("bytes").goes(3),
    ];
    let comm = Column::new("comm").shrinks(12);
    columns.insert(0, if is_one { comm.goes(1) } else { comm });
    let row = |(at, class): (usize, &Class<'_>)| {
        let count = class.count();
        let mean = class.sum_ns / count.max(1);
        let bound = |ns: Option<u64>| {
            ns.map_or_else(|| Cell::sorted("off scale", u64::MAX), |ns| Cell::sorted(duration(ns), ns))
        };
        let cells = vec![
            Cell::text(of_which(class)),
            Cell::text(class.kind.name()),
            class
                .class_bytes
                .map_or_else(|| Cell::sorted("more", u64::MAX), |top| Cell::sorted(bytes(top), top)),
            Cell::number(count),
            Cell::sorted(duration(mean), mean),
            bound(class.percentile(500)),
            bound(class.percentile(900)),
            bound(class.percentile(990)),
            bound(class.percentile(1000)),
            means(class),
            Cell::sorted(bytes(class.sum_bytes), class.sum_bytes),
        ];
        Row {
            key: format!("{} {} {:?}", class.comm, class.kind, class.class_bytes),
            cells,
            fields: vec![("comm", name(class.name, class.comm)), ("op", class.kind.name().into())],
            ranks: class.ranks(&numbers).iter().map(|rank| rank.0).collect(),
            blocked_on: false,
            about: About::Durations(at),
        }
    };
    let rows = shown(scene).iter().enumerate().map(row).collect();
    let empty = match scene.histograms {
        Some(_) => "no operation has been completed yet",
        None => "durations are read while this screen is shown: at this moment they were not",
    };
    Listing { columns, rows, empty: empty.into() }
}

/// The shortest and the longest of the ranks' means.
fn means(class: &Class<'_>) -> Cell {
    let longest = class.means.values().max().copied().unwrap_or(0);
    match class.means.values().min() {
        Some(shortest) if *shortest < longest => {
            Cell::sorted(format!("{} - {}", duration(*shortest), duration(longest)), longest)
        }
        _ => Cell::sorted(duration(longest), longest),
    }
}

/// The histogram of the chosen row, and the mean of each rank.
pub(crate) fn below(scene: &Scene<'_>, chosen: Option<&Row>, width: usize) -> Vec<Line<'static>> {
    let Some(Row { about: About::Durations(at), .. }) = chosen else { return Vec::new() };
    let classes = shown(scene);
    let Some(class) = classes.get(*at) else { return Vec::new() };
    let look = &scene.look;
    let rule = look.glyphs.line.to_string().repeat(width.saturating_sub(24));
    let mut lines = vec![Line::styled(format!(" how long they took {rule}"), look.palette.style(Role::Dim))];
    let most = class.buckets.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let counted = |(_, count): &&(Option<u64>, u64)| *count > 0;
    for (bound, count) in class.buckets.iter().filter(counted) {
        let bound = bound.map_or_else(|| "longer".into(), |ns| format!("< {}", duration(ns)));
        let length = (u128::from(*count) * u128::from(BAR)).div_ceil(u128::from(most.max(1)));
        let bar = look.glyphs.bars[8].to_string().repeat(usize::try_from(length).unwrap_or(0));
        lines.push(Line::from(vec![
            Span::raw(format!("{bound:>12} {count:>9} ")),
            Span::styled(bar, look.palette.style(Role::Good)),
        ]));
    }
    let mean = |(rank, mean): (&Rank, &u64)| {
        format!("rank {} {}", scene.job.job_rank(class.comm, *rank), duration(*mean))
    };
    let means: Vec<_> = class.means.iter().map(mean).collect();
    let text = format!(" mean by rank, waiting included: {}", means.join(", "));
    lines.extend(wrapped(&text, width).into_iter().map(Line::from));
    lines
}

/// A row as JSON.
pub(crate) fn json(scene: &Scene<'_>, at: usize) -> Option<serde_json::Value> {
    let classes = shown(scene);
    let class = classes.get(at)?;
    Some(serde_json::json!({
        "comm": class.comm, "name": class.name, "kind": class.kind.name(), "class_bytes": class.class_bytes,
        "sum_ns": class.sum_ns, "sum_bytes": class.sum_bytes, "buckets": class.buckets,
        "mean_ns_by_rank": class.means,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(rank: u32, buckets: &[(Option<u64>, u64)]) -> Histogram {
        let sum_ns = buckets.iter().map(|(bound, count)| bound.unwrap_or(10_000) * count).sum();
        Histogram {
            comm: CommId(1),
            name: "world".into(),
            rank: Rank(rank),
            kind: CollKind::AllReduce,
            class_bytes: Some(1024),
            sum_ns,
            sum_bytes: 7,
            buckets: buckets.to_vec(),
        }
    }

    #[test]
    fn percentiles_are_over_all_ranks_and_each_has_its_mean() {
        let all = [
            histogram(0, &[(Some(100), 98), (Some(1000), 1)]),
            histogram(1, &[(Some(200), 0), (None, 1)]),
            histogram(2, &[]),
        ];
        let [class] = classes(&all).try_into().ok().unwrap();
        assert_eq!(class.count(), 100);
        assert_eq!(class.means, BTreeMap::from([(Rank(0), 109), (Rank(1), 10_000)]));
        assert_eq!(
            [500, 980, 990, 1000].map(|of| class.percentile(of)),
            [Some(100), Some(100), Some(1000), None]
        );
        assert!(classes(&[histogram(0, &[(Some(1), 0)])]).is_empty());
    }
}
