//! The steps of one rank, as words: `all_reduce 1000; send 2 4; finish`.
//!
//! A rank of the program `steps` takes them one after another, until one fails.

use std::time::Duration;

use ccl::CollKind;

/// A step of a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A collective or barrier.
    ///
    /// `all_reduce COUNT`, `all_gather COUNT`, `reduce_scatter COUNT`, `broadcast ROOT COUNT`,
    /// `reduce ROOT COUNT`, `barrier`.
    Collective {
        /// The operation.
        kind: CollKind,
        /// Its root, if it has one.
        root: u32,
        /// Elements.
        count: usize,
    },
    /// `max COUNT`: an all-reduce with the maximum operator.
    Max {
        /// Elements.
        count: usize,
    },
    /// `integers COUNT`: an all-reduce of another type.
    Integers {
        /// Elements.
        count: usize,
    },
    /// `send RANK COUNT`.
    Send {
        /// The receiver.
        to: u32,
        /// Elements.
        count: usize,
    },
    /// `recv RANK COUNT`.
    Recv {
        /// The sender.
        from: u32,
        /// Elements.
        count: usize,
    },
    /// `loop TIMES COUNT`: this many all-reduces.
    Loop {
        /// The number of calls.
        times: u64,
        /// Elements of each.
        count: usize,
    },
    /// `background RANK COUNT`: a thread receives.
    Background {
        /// The sender.
        from: u32,
        /// Elements.
        count: usize,
    },
    /// `join`: waits for that thread.
    Join,
    /// `begin RANK COUNT`: an asynchronous receive.
    Begin {
        /// The sender.
        from: u32,
        /// Elements.
        count: usize,
    },
    /// `wait`: for the asynchronous receive.
    Wait,
    /// `fork STEP`: a forked child takes this step on the communicator of its parent.
    ///
    /// The child then ends, and the parent waits for its end.
    Fork(Box<Self>),
    /// `try STEP`: takes the step, reports its error, and goes on.
    Try(Box<Self>),
    /// `tag`.
    Tag,
    /// `finish`.
    Finish,
    /// `drop`: the communicator, without `finish()`.
    Drop,
    /// `abort`.
    Abort,
    /// `exit`: ends the process without freeing the communicator.
    Exit,
    /// `panic`.
    Panic,
    /// `hold`: until a line arrives on standard input.
    Hold,
    /// `sleep MILLISECONDS`.
    Sleep(Duration),
    /// `compute`: uses a processor for ever.
    Compute,
    /// `fill MIB`: holds this much memory from now on.
    Fill {
        /// MiB.
        mib: usize,
    },
    /// `lag MILLISECONDS TIMES COUNT`: this many all-reduces, each called this much later.
    Lag {
        /// Before each call.
        time: Duration,
        /// The number of calls.
        times: u64,
        /// Elements of each.
        count: usize,
    },
    /// `split`: all ranks make a second communicator.
    Split,
    /// `second STEP`: takes the step on that one.
    Second(Box<Self>),
    /// `ahead MILLISECONDS PPM`, `behind MILLISECONDS PPM`: the clocks of this process are ahead
    /// and too fast, or behind and too slow. It holds from the start, wherever it stands.
    Skew {
        /// Milliseconds.
        ms: i64,
        /// Parts in 10^6.
        ppm: i64,
    },
    /// `block`: blocks the service thread when [`crate::blocked::block_all`] asks for it.
    Block,
    /// `stay`: a rank whose step fails holds before it ends.
    Stay,
}

impl Step {
    /// Reads one step.
    ///
    /// # Errors
    /// The words that are not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let name = words.next().ok_or("a step of no words")?;
        let of: Option<fn(Box<Self>) -> Self> = match name {
            "fork" => Some(Self::Fork),
            "second" => Some(Self::Second),
            "try" => Some(Self::Try),
            _ => None,
        };
        if let Some(of) = of {
            let rest: Vec<&str> = words.collect();
            return Self::parse(&rest.join(" ")).map(|step| of(Box::new(step)));
        }
        let numbers: Result<Vec<u64>, _> = words.map(str::parse).collect();
        let numbers = numbers.map_err(|e| format!("{text}: {e}"))?;
        let collective =
            |kind, root: u64, count: u64| Self::Collective { kind, root: root as u32, count: count as usize };
        Ok(match (name, &numbers[..]) {
            ("all_reduce", [count]) => collective(CollKind::AllReduce, 0, *count),
            ("all_gather", [count]) => collective(CollKind::AllGather, 0, *count),
            ("reduce_scatter", [count]) => collective(CollKind::ReduceScatter, 0, *count),
            ("broadcast", [root, count]) => collective(CollKind::Broadcast, *root, *count),
            ("reduce", [root, count]) => collective(CollKind::Reduce, *root, *count),
            ("all_to_all", [count]) => collective(CollKind::AllToAll, 0, *count),
            ("gather", [root, count]) => collective(CollKind::Gather, *root, *count),
            ("scatter", [root, count]) => collective(CollKind::Scatter, *root, *count),
            ("barrier", []) => collective(CollKind::Barrier, 0, 0),
            ("max", [count]) => Self::Max { count: *count as usize },
            ("integers", [count]) => Self::Integers { count: *count as usize },
            ("send", [to, count]) => Self::Send { to: *to as u32, count: *count as usize },
            ("recv", [from, count]) => Self::Recv { from: *from as u32, count: *count as usize },
            ("loop", [times, count]) => Self::Loop { times: *times, count: *count as usize },
            ("background", [from, count]) => Self::Background { from: *from as u32, count: *count as usize },
            ("join", []) => Self::Join,
            ("begin", [from, count]) => Self::Begin { from: *from as u32, count: *count as usize },
            ("wait", []) => Self::Wait,
            ("tag", []) => Self::Tag,
            ("finish", []) => Self::Finish,
            ("drop", []) => Self::Drop,
            ("abort", []) => Self::Abort,
            ("exit", []) => Self::Exit,
            ("panic", []) => Self::Panic,
            ("hold", []) => Self::Hold,
            ("block", []) => Self::Block,
            ("stay", []) => Self::Stay,
            ("sleep", [ms]) => Self::Sleep(Duration::from_millis(*ms)),
            ("compute", []) => Self::Compute,
            ("fill", [mib]) => Self::Fill { mib: *mib as usize },
            ("lag", [ms, times, count]) => {
                Self::Lag { time: Duration::from_millis(*ms), times: *times, count: *count as usize }
            }
            ("split", []) => Self::Split,
            ("ahead", [ms, ppm]) => Self::Skew { ms: *ms as i64, ppm: *ppm as i64 },
            ("behind", [ms, ppm]) => Self::Skew { ms: -(*ms as i64), ppm: -(*ppm as i64) },
            _ => return Err(format!("{text} is no step")),
        })
    }
}

/// The steps of one rank, and the marked step, whose time matters.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Steps {
    /// In order.
    pub all: Vec<Step>,
    /// The place of the step whose words begin with `!`.
    pub marked: Option<usize>,
}

impl Steps {
    /// Reads steps, separated by semicolons; empty ones are ignored.
    ///
    /// # Errors
    /// The step that is not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut steps = Self::default();
        for words in text.split(';').map(str::trim).filter(|words| !words.is_empty()) {
            if words.starts_with('!') {
                steps.marked = Some(steps.all.len());
            }
            steps.all.push(Step::parse(words.trim_start_matches('!'))?);
        }
        Ok(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_in_order_and_nonsense_is_refused() {
        let steps = Steps::parse("all_reduce 10; ; !broadcast 2 7;fork recv 1 3").unwrap();
        let child = Step::Fork(Box::new(Step::Recv { from: 1, count: 3 }));
        let broadcast = Step::Collective { kind: CollKind::Broadcast, root: 2, count: 7 };
        let reduce = Step::Collective { kind: CollKind::AllReduce, root: 0, count: 10 };
        assert_eq!(steps, Steps { all: vec![reduce, broadcast, child], marked: Some(1) });
        for bad in ["send 1", "send x 1", "nonsense", "fork", "barrier 1"] {
            assert!(Steps::parse(bad).is_err(), "{bad}");
        }
    }
}
