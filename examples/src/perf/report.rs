//! What is shown: the columns of nccl-tests, or one JSON document.

use std::io::{self, Write};

use ccl::{CollKind, Datatype, ReduceOp};
use ccl_exporters::bandwidth;
use serde_json::{Value, json};

use super::case::Measured;
use super::datum;
use super::options::{Options, op_name};

/// One row: what was measured, and how it went.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The collective.
    pub name: &'static str,
    /// The size in bytes as nccl-tests counts it: of all blocks, where each rank has its own.
    pub size: u64,
    /// The elements of one block.
    pub count: u64,
    /// The type of elements.
    pub dtype: Datatype,
    /// How they were combined; `None` if they were not.
    pub op: Option<ReduceOp>,
    /// The root; `None` if there is none.
    pub root: Option<u32>,
    /// With an input and an output; `None` if there is no such call.
    pub out_of_place: Option<Figures>,
    /// With one buffer for both.
    pub in_place: Option<Figures>,
}

/// What was measured of one way to call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figures {
    /// Microseconds of one operation.
    pub time_us: f64,
    /// GB/s, as nccl-tests defines it.
    pub algbw: f64,
    /// GB/s, as nccl-tests defines it.
    pub busbw: f64,
    /// Wrong elements of all ranks; `None` if nothing was checked.
    pub wrong: Option<u64>,
}

impl Figures {
    /// The figures of a request of `bytes`.
    pub(super) fn of(measured: &Measured, kind: CollKind, nranks: u32, bytes: u64) -> Self {
        // In picoseconds: short calls take few nanoseconds.
        let (bytes, ps) = (bytes.saturating_mul(1_000), (measured.ns * 1e3).round() as u64);
        Self {
            time_us: measured.ns / 1e3,
            algbw: bandwidth::algbw(kind, nranks, bytes, ps).unwrap_or_default(),
            busbw: bandwidth::busbw(kind, nranks, bytes, ps).unwrap_or_default(),
            wrong: measured.wrong,
        }
    }

    fn json(self) -> Value {
        json!({ "time_us": self.time_us, "algbw": self.algbw, "busbw": self.busbw, "wrong": self.wrong })
    }
}

impl Row {
    fn figures(&self) -> impl Iterator<Item = Figures> {
        [self.out_of_place, self.in_place].into_iter().flatten()
    }

    fn op_name(&self) -> &'static str {
        self.op.map_or("none", op_name)
    }

    fn root_number(&self) -> i64 {
        self.root.map_or(-1, i64::from)
    }

    /// What is measured: `all_reduce float sum of 1024 bytes`.
    #[must_use]
    pub fn what(&self) -> String {
        let op = self.op.map_or_else(String::new, |op| format!(" {}", op_name(op)));
        format!("{} {}{op} of {} bytes", self.name, datum::name(self.dtype), self.size)
    }

    /// The row as a line of the table.
    #[must_use]
    pub fn line(&self) -> String {
        let (op, root) = (self.op_name(), self.root_number());
        let name = datum::name(self.dtype);
        let own = format!("{:>12}  {:>12}  {name:>8}  {op:>6}  {root:>6}", self.size, self.count);
        format!("{own}{}{}", columns(self.out_of_place), columns(self.in_place))
    }

    fn json(&self) -> Value {
        json!({
            "collective": self.name, "size": self.size, "count": self.count,
            "type": datum::name(self.dtype), "redop": self.op_name(), "root": self.root_number(),
            "out_of_place": self.out_of_place.map(Figures::json),
            "in_place": self.in_place.map(Figures::json),
        })
    }
}

fn columns(figures: Option<Figures>) -> String {
    let Some(Figures { time_us, algbw, busbw, wrong }) = figures else {
        return format!("  {0:>8}  {0:>6}  {0:>6}  {0:>6}", "N/A");
    };
    let wrong = wrong.map_or_else(|| "N/A".into(), |wrong| wrong.to_string());
    format!("  {time_us:>8.2}  {algbw:>6.2}  {busbw:>6.2}  {wrong:>6}")
}

const HEADING: &str = "\
#                                                              out-of-place                        in-place
#       size         count      type   redop    root      time   algbw   busbw  #wrong      time   algbw   busbw  #wrong
#        (B)    (elements)                                (us)  (GB/s)  (GB/s)              (us)  (GB/s)  (GB/s)
";

/// The rows of a run, and where they are shown.
#[derive(Debug)]
pub struct Report {
    nranks: u32,
    settings: Value,
    shows: bool,
    rows: Vec<Row>,
}

impl Report {
    /// Begins a report, whose lines are printed at once if it `shows` them.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub fn begin(options: &Options, nranks: u32, shows: bool) -> io::Result<Self> {
        let report = Self { nranks, settings: options.settings(), shows, rows: Vec::new() };
        let settings = report.settings.as_object().into_iter().flatten();
        let settings = settings.map(|(name, value)| format!(" {name}={value}"));
        report.print(&format!("# ccl-perf: {nranks} ranks;{}\n", settings.collect::<String>()))?;
        Ok(report)
    }

    /// The rows so far.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Begins the rows of a collective.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn head(&self, name: &str) -> io::Result<()> {
        self.print(&format!("#\n# {name}\n{HEADING}"))
    }

    /// Says why a collective has no rows.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn leave_out(&self, why: &str) -> io::Result<()> {
        self.print(&format!("#\n# left out: {why}\n"))
    }

    /// Adds a row.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn add(&mut self, row: Row) -> io::Result<()> {
        self.print(&format!("{}\n", row.line()))?;
        self.rows.push(row);
        Ok(())
    }

    /// Ends the table.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn end(&self) -> io::Result<()> {
        let wrong = match self.wrong() {
            None => "N/A".into(),
            Some(0) => "0 OK".into(),
            Some(wrong) => format!("{wrong} FAILED"),
        };
        let mean = self.mean_busbw();
        self.print(&format!("# Out of bounds values : {wrong}\n# Avg bus bandwidth    : {mean:.5}\n#\n"))
    }

    /// The rows as one JSON document.
    #[must_use]
    pub fn document(&self) -> String {
        format!("{:#}\n", self.json())
    }

    fn json(&self) -> Value {
        json!({
            "program": "ccl-perf", "version": env!("CARGO_PKG_VERSION"), "nranks": self.nranks,
            "settings": self.settings, "wrong": self.wrong(), "mean_busbw": self.mean_busbw(),
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }

    /// Wrong elements of all rows and ranks; `None` if nothing was checked.
    #[must_use]
    pub fn wrong(&self) -> Option<u64> {
        let checked = self.rows.iter().flat_map(Row::figures).filter_map(|figures| figures.wrong);
        checked.reduce(|wrong, more| wrong + more)
    }

    fn mean_busbw(&self) -> f64 {
        let all: Vec<f64> = self.rows.iter().flat_map(Row::figures).map(|figures| figures.busbw).collect();
        // The sum of none is -0.
        0.0 + all.iter().sum::<f64>() / all.len().max(1) as f64
    }

    fn print(&self, text: &str) -> io::Result<()> {
        if self.shows { io::stdout().write_all(text.as_bytes()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(wrong: Option<u64>) -> Row {
        let measured = Measured { ns: 500.0, wrong };
        Row {
            name: "all_reduce",
            size: 1_000,
            count: 250,
            dtype: Datatype::F32,
            op: Some(ReduceOp::Sum),
            root: None,
            out_of_place: Some(Figures::of(&measured, CollKind::AllReduce, 4, 1_000)),
            in_place: None,
        }
    }

    #[test]
    fn columns_stand_below_their_heading() {
        let line = row(Some(3)).line();
        let expect = "        1000           250     float     sum      -1      0.50    2.00    3.00       3       N/A     N/A     N/A     N/A";
        assert_eq!(line, expect);
        let heading = HEADING.lines().nth(1).unwrap();
        assert_eq!(heading.len(), line.len());
        assert_eq!(row(None).what(), "all_reduce float sum of 1000 bytes");
        for word in ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"] {
            let end = heading.find(word).unwrap() + word.len();
            assert!(line.is_char_boundary(end) && !line[..end].ends_with(' '), "{word}");
        }
    }

    #[test]
    fn the_document_has_settings_rows_and_sums() {
        let options = clap::Parser::parse_from(["ccl-perf", "all_reduce", "-c", "2"]);
        let mut report = Report::begin(&options, 4, false).unwrap();
        assert_eq!(report.json()["wrong"], Value::Null);
        report.add(row(Some(3))).unwrap();
        report.add(row(None)).unwrap();
        let json = report.json();
        assert_eq!((&json["wrong"], &json["mean_busbw"]), (&json!(3), &json!(3.0)));
        assert_eq!(json["settings"]["check"], 2);
        assert_eq!(json["rows"][0]["out_of_place"]["wrong"], 3);
        assert_eq!(json["rows"][1]["out_of_place"]["wrong"], Value::Null);
        assert_eq!((&json["rows"][1]["in_place"], &json["rows"][1]["root"]), (&Value::Null, &json!(-1)));
    }
}
