//! Runs instances in the simulator: the same plans, engine, cells and diagnosis, without processes.

use std::collections::BTreeMap;
use std::time::Duration;

use ccl::engine::Cause;
use ccl::seed::Seed;
use ccl::simulate::{LaneFault, Processes};
use ccl::transport::faulty::Fault;
use ccl::{ChannelId, CollKind, Datatype, Rank, ReduceOp, Request};

use super::{Drawn, How, KINDS, Says};

/// How long a rank works that has forgotten a call, in ticks of the clock of recorders: others have
/// waited for it for long when it goes on.
const FORGETS: Duration = Duration::from_secs(2);
/// Elements of the tensors.
const COUNT: u64 = 64;
/// How many steps the others could make after the victim's last one: more than it takes until all
/// of them wait.
const FURTHER: u64 = 8;

/// Runs an instance: what was said, in a few words, and everything that was wrong.
///
/// # Errors
/// Why it could not be run.
pub fn carry_out(drawn: &Drawn) -> Result<(String, Vec<String>), String> {
    let mut grid = Grid::new(drawn);
    let failed = grid.run();
    let snapshot = grid.processes.snapshot().map_err(|e| e.to_string())?;
    // The simulator has nobody who agrees on a cause and tells all: the first failure ends the run.
    let (said, mut wrong) = match failed {
        Some((group, cause, about)) => {
            let is_about = about.contains(&drawn.victim);
            let wrong = (!is_about).then(|| format!("it is about {about:?}: {cause:?}"));
            let says = if matches!(cause, Cause::Mismatch { .. }) { Says::Differs } else { Says::Died };
            (format!("{says} {group}"), wrong.into_iter().collect())
        }
        None => drawn.judge(&snapshot),
    };
    if said != drawn.expected() {
        wrong.push(format!("said {said:?}, not {:?}", drawn.expected()));
    }
    if !wrong.is_empty() {
        wrong.push(ccl::diagnose::render_text(&snapshot));
    }
    Ok((said, wrong))
}

/// A call: in which group, and what; `None` if the rank works instead.
type Call = (&'static str, Option<Request>);

struct Grid<'a> {
    drawn: &'a Drawn,
    processes: Processes,
    /// Each rank's group of each kind: the communicator, and its rank in it.
    groups: Vec<BTreeMap<&'static str, (usize, Rank)>>,
}

impl<'a> Grid<'a> {
    fn new(drawn: &'a Drawn) -> Self {
        let nranks = drawn.nranks();
        let processes = Processes::new(nranks, drawn.seed);
        let groups = (0..nranks).map(|_| BTreeMap::new()).collect();
        let mut grid = Self { drawn, processes, groups };
        let whole = (!drawn.ids).then(|| grid.connect("world", 0, None));
        for kind in KINDS {
            for rank in 0..nranks {
                if !grid.groups[rank as usize].contains_key(kind) {
                    grid.connect(kind, rank, whole);
                }
            }
        }
        grid
    }

    /// Connects a rank's group of this kind.
    fn connect(&mut self, kind: &'static str, rank: u32, whole: Option<usize>) -> usize {
        let drawn = self.drawn;
        let members = drawn.members(kind, rank);
        // A lane that can be cut is one of a ring between hosts.
        let is_cut = drawn.scenario.how == How::LinkCut;
        let host = |rank: &u32| u64::from(if is_cut { *rank } else { drawn.host(*rank) });
        let hosts: Vec<u64> = members.iter().map(host).collect();
        let mut faults = Vec::new();
        if let Some(at) = members.iter().position(|member| *member == drawn.victim)
            && is_cut
            && kind == drawn.group
        {
            let (from, to) = (Rank(at as u32), Rank(((at + 1) % members.len()) as u32));
            faults.push(LaneFault {
                channel: ChannelId(0),
                from,
                to,
                fault: Fault::Cut { at: 2 * drawn.at },
            });
        }
        let comm = self.processes.connect(kind, &members, &hosts, whole, &faults);
        for (at, member) in (0..).zip(members) {
            self.groups[member as usize].insert(kind, (comm, Rank(at)));
        }
        comm
    }

    /// What a rank calls at a step; it may make none of its calls from the deviation on.
    fn calls(&self, rank: u32, step: u64) -> (Vec<Call>, bool) {
        let mut calls = Vec::new();
        let has_world = !self.drawn.ids && step.is_multiple_of(4);
        for group in ["tensor", "pipeline", "data"].into_iter().chain(has_world.then_some("world")) {
            let how = (rank == self.drawn.victim && step == self.drawn.at && group == self.drawn.group)
                .then_some(self.drawn.scenario.how);
            if self.has_forgotten(rank, step, group) {
                calls.extend(how.map(|_| (group, None)));
                continue;
            }
            match how {
                Some(How::Absent) => return (calls, true),
                Some(How::Elsewhere) => {
                    let other = if group == "data" { "tensor" } else { "data" };
                    let next = (self.rank_in(other, rank) + 1) % self.size(other);
                    calls.push((other, Some(request(CollKind::Recv, next, 1))));
                    return (calls, true);
                }
                _ if group == "pipeline" => calls.extend(self.pass(rank, how)),
                _ => calls.extend(self.add(group, how)),
            }
        }
        (calls, false)
    }

    /// Whether a rank leaves out its calls in this group.
    fn has_forgotten(&self, rank: u32, step: u64, group: &str) -> bool {
        let Drawn { victim, at, group: drawn, scenario, .. } = self.drawn;
        scenario.how == How::Forget && (rank, group) == (*victim, drawn) && step >= *at
    }

    fn rank_in(&self, group: &str, rank: u32) -> u32 {
        self.groups[rank as usize][group].1.0
    }

    fn size(&self, group: &str) -> u32 {
        self.drawn.members(group, 0).len() as u32
    }

    /// Activations go from stage to stage, and gradients back.
    fn pass(&self, rank: u32, how: Option<How>) -> Vec<Call> {
        let count = COUNT + u64::from(how == Some(How::Count));
        let (me, last) = (self.rank_in("pipeline", rank), self.size("pipeline") - 1);
        let mut calls = Vec::new();
        let mut call = |is_there: bool, kind, peer| {
            if is_there {
                calls.push(("pipeline", Some(request(kind, peer, count))));
            }
        };
        call(me > 0, CollKind::Recv, me.wrapping_sub(1));
        call(me < last, CollKind::Send, me + 1);
        call(me < last, CollKind::Recv, me + 1);
        call(me > 0, CollKind::Send, me.wrapping_sub(1));
        calls
    }

    /// The first rank of a group hands out a factor, and all add up what they have.
    fn add(&self, group: &'static str, how: Option<How>) -> [Call; 2] {
        let root = if how == Some(How::Root) { self.size(group) - 1 } else { 0 };
        let count = COUNT + u64::from(how == Some(How::Count));
        let factor = request(CollKind::Broadcast, root, 1);
        [factor, request(CollKind::AllReduce, 0, count)].map(|call| (group, Some(call)))
    }

    /// Runs until no rank goes on; the group, cause and ranks of the first failure, if there is
    /// one.
    fn run(&mut self) -> Option<(&'static str, Cause, Vec<u32>)> {
        let mut draw = Seed(self.drawn.seed).part(1);
        let program = |rank| {
            let mut program = Vec::new();
            for step in 1..=self.drawn.at + FURTHER {
                let (calls, is_last) = self.calls(rank, step);
                program.extend(calls);
                if is_last {
                    break;
                }
            }
            program.into_iter()
        };
        let mut programs: Vec<_> = (0..self.drawn.nranks()).map(program).collect();
        let mut last: Vec<Option<(usize, Rank)>> = vec![None; programs.len()];
        loop {
            let is_free =
                |at: &usize| last[*at].is_none_or(|(comm, rank)| self.processes.is_done(comm, rank));
            let mut free: Vec<usize> =
                (0..programs.len()).filter(|at| programs[*at].len() > 0).filter(is_free).collect();
            // A rank that works comes when all others wait.
            let works = |at: &usize| matches!(programs[*at].as_slice(), [(_, None), ..]);
            if !free.iter().all(works) {
                free.retain(|at| !works(at));
            }
            let at = *free.get(draw.below(free.len() as u64) as usize)?;
            let (group, Some(request)) = programs[at].next()? else {
                self.processes.pass(FORGETS);
                last[at] = None;
                continue;
            };
            let (comm, rank) = self.groups[at][group];
            last[at] = Some((comm, rank));
            if let Err((rank, failure)) = self.processes.call(comm, rank, request) {
                let members = self.drawn.members(group, at as u32);
                let about = std::iter::once(rank).chain(failure.peer);
                let about = about.filter_map(|rank| members.get(rank.index()).copied()).collect();
                return Some((group, failure.cause, about));
            }
        }
    }
}

fn request(kind: CollKind, root: u32, count: u64) -> Request {
    Request { kind, dtype: Datatype::F32, op: ReduceOp::Sum, root: Rank(root), count, uneven: false }
}
