//! What to do next: one table, by what is wrong.

use crate::diagnose::standing::INIT;
use crate::snapshot::{Class, Culprit, Next, RankSnapshot, Reason, Side, Snapshot, Verdict};

use super::process;

/// The most culprits for which commands are given.
const MAX_CULPRITS: usize = 3;

/// A command for each culprit, with `{pid}` where its pid stands.
type Step = (&'static str, &'static str);

const FROZEN: &[Step] = &[(
    "cat /proc/{pid}/cgroup",
    "names the frozen control group: docker unpause, or write THAWED to its freezer.state or 0 to its cgroup.freeze",
)];

/// Where a debugger holds a process.
const TRACED: &[Step] =
    &[("grep TracerPid /proc/{pid}/status", "names the debugger that holds it: let it continue or detach")];

/// For a machine with more threads that are ready to run than processors.
const CROWDED: &[Step] = &[
    ("top -H -p {pid}", "shows what its threads get of the processors"),
    ("top -b -n 1", "shows what else uses them, and how many want to run (nproc says how many there are)"),
];

/// Where ranks met in init that do not fit together.
const MEETING: &[Step] = &[
    ("ccl-inspect ps", "lists the jobs and ranks here, also those that met this one by mistake"),
    ("ccl-inspect dump {job} -o job.tar.zst", "keeps the evidence"),
];

/// Where a queue pair's other side does not answer.
const QUEUE_PAIRS: &[Step] = &[
    ("rdma link show", "shows whether the ports are up"),
    ("rdma statistic show", "shows what each device sent again, missed and gave up"),
    ("ccl-inspect doctor", "tries to send and receive on each port"),
];

/// Where all processes have ended.
const OVER: &[Step] = &[
    ("ccl-inspect explain {job}", "shows what each rank called last"),
    ("ccl-inspect stragglers {job}", "shows who was late before that"),
];

/// Whether a command is for a process that lives, or for its connections.
fn is_for_living(command: &str) -> bool {
    const TOOLS: [&str; 8] = [
        "ccl-inspect ps",
        "ccl-inspect snapshot",
        "ccl-inspect stack",
        "gdb ",
        "kill ",
        "py-spy ",
        "ss ",
        "top ",
    ];
    command.contains("/proc/{pid}") || TOOLS.iter().any(|tool| command.starts_with(tool))
}

/// For each thing that keeps a living process from going on, the commands that help most, and what
/// each tells or does.
const fn of_process(reason: Reason) -> &'static [Step] {
    match reason {
        Reason::Stopped => &[
            ("kill -CONT {pid}", "lets it go on"),
            ("grep -E 'State|TracerPid' /proc/{pid}/status", "shows whether a debugger holds it"),
        ],
        Reason::Frozen => FROZEN,
        Reason::Silent => &[
            ("grep -H . /proc/{pid}/task/*/wchan", "shows where in the kernel each of its threads sleeps"),
            ("ccl-inspect stack {job}", "shows where the processes are"),
        ],
        Reason::Starved => &[
            ("cat /proc/{pid}/cgroup", "names the control group whose cpu.max or cpu.cfs_quota_us limits it"),
            ("top -H -p {pid}", "shows what its threads get of the processors"),
        ],
        Reason::NoDescriptors => &[
            ("ls -l /proc/{pid}/fd", "shows what it has open"),
            (
                "grep files /proc/{pid}/limits",
                "shows its limit: raise it where the ranks are started (ulimit -n, LimitNOFILE=)",
            ),
            ("cat /proc/sys/fs/file-nr", "shows how many files are open on the machine, and its limit"),
            ("ulimit -n", "where the ranks are started: the limit that they get, to be raised there"),
        ],
        Reason::NoMemory => &[
            ("grep Vm /proc/{pid}/status", "shows the memory of the process"),
            ("cat /proc/meminfo", "shows the memory of the machine"),
        ],
        Reason::Uninterruptible => &[
            (
                "cat /proc/{pid}/stack",
                "as root: where in the kernel it waits, a file system that hangs for instance",
            ),
            ("dmesg | tail", "as root: shows what the kernel says of the device"),
        ],
        Reason::Dying => &[("cat /proc/{pid}/status", "shows how much memory is still to be given back")],
        _ => &[],
    }
}

/// The same for each thing that may be wrong.
const fn table(class: Class, reason: Reason) -> &'static [Step] {
    match reason {
        Reason::Oom => &[
            ("journalctl -k | grep -i oom", "shows what the kernel killed and why"),
            ("cat /proc/meminfo", "shows the memory of the machine"),
        ],
        Reason::Killed | Reason::Signalled => &[
            ("journalctl -k | grep -i -E 'oom|{pid}'", "shows whether the kernel killed it"),
            ("dmesg | grep -i -E 'killed|segfault' | tail", "as root: shows crashes and kills"),
        ],
        Reason::Exited | Reason::Panicked | Reason::Aborts => &[(
            "ccl-inspect dump {job} -o job.tar.zst",
            "keeps the evidence; then read the program's own output of that rank",
        )],
        Reason::UserCode | Reason::Elsewhere | Reason::Late | Reason::Cycle => &[
            ("ccl-inspect stack {job}", "shows where the processes are"),
            ("py-spy dump --pid {pid}", "shows its stack, if it is Python"),
        ],
        Reason::Inside => &[
            ("ccl-inspect stack {job}", "shows where the processes are"),
            ("gdb -p {pid} -batch -ex 'thread apply all bt'", "shows the native stack"),
        ],
        Reason::NeverJoined => &[
            ("ccl-inspect ps", "lists the processes that have started here"),
            ("grep -i -E 'error|rank' LOG", "in the launcher's log: why that rank has not come"),
        ],
        Reason::Throttled | Reason::Lossy => &[
            ("ss -tino state established", "shows retransmits, windows and rates of the streams"),
            ("tc -s qdisc show", "shows limits and drops of the interfaces"),
        ],
        Reason::Unreachable | Reason::Lost => &[
            ("ss -tino state connected", "shows the states, retransmits and windows of the streams"),
            ("ip -s link", "shows errors and drops of the interfaces"),
        ],
        Reason::Kind
        | Reason::Dtype
        | Reason::Operator
        | Reason::Root
        | Reason::Count
        | Reason::Calls
        | Reason::Finished => &[("ccl-inspect explain {job}", "shows the call of each rank")],
        Reason::NotRead => match class {
            Class::Unread => &[("ccl-inspect snapshot {pid}", "reads the ranks of that host")],
            _ => &[],
        },
        reason => of_process(reason),
    }
}

/// The next commands of a verdict, the most useful first.
pub(super) fn steps(job: &Snapshot, verdict: &Verdict) -> Vec<Next> {
    let is_over = job.is_over();
    let is_traced = |one: &Culprit| process::of(job, one.rank).is_some_and(|rank| rank.letter == Some('t'));
    let is_meeting = verdict.op == INIT && verdict.side == Side::Application;
    let has_called = job.ranks.iter().flat_map(|rank| &rank.comms).any(|row| row.last_called() > 0);
    let comm = job.ranks.iter().flat_map(|rank| &rank.comms).filter(|row| row.id == verdict.comm);
    let has_pairs = comm.flat_map(|row| &row.links).any(|link| !link.queue_pairs.is_empty());
    let table = match verdict.reason {
        Reason::Unreachable if has_pairs => QUEUE_PAIRS,
        Reason::Calls | Reason::Aborts if is_meeting => MEETING,
        Reason::Late if verdict.side == Side::Machine => CROWDED,
        Reason::Stopped if verdict.culprits.iter().take(MAX_CULPRITS).all(is_traced) => TRACED,
        reason => table(verdict.class, reason),
    };
    let table = table.iter();
    let fits = |(command, _): &&Step| !is_over || is_meeting || !is_for_living(command);
    let mut table: Vec<&Step> = table.filter(fits).collect();
    if table.is_empty() && is_over {
        table.extend(OVER.iter().take(if has_called { OVER.len() } else { 1 }));
    }
    let mut steps: Vec<Next> = Vec::new();
    for (command, what) in table {
        let mut those = verdict.culprits.iter().take(MAX_CULPRITS).peekable();
        if !command.contains("{pid}") || those.peek().is_none() {
            let is_whole = !command.contains("{pid}");
            let host =
                verdict.culprits.first().filter(|_| !command.contains("{job}")).map(|one| one.host.clone());
            let command = command.replace("{job}", &job.job.to_string());
            steps.extend(is_whole.then(|| Next {
                host: host.unwrap_or_default(),
                command,
                what: (*what).into(),
            }));
            continue;
        }
        for culprit in those.filter(|culprit| culprit.pid != 0) {
            let (host, pid) = (culprit.host.clone(), pid(job, culprit).to_string());
            let command = command.replace("{pid}", &pid).replace("{job}", &job.job.to_string());
            steps.push(Next { host, command, what: (*what).into() });
        }
    }
    steps
}

/// The pid under which a culprit is known on its host, outside of its pid namespace.
fn pid(job: &Snapshot, culprit: &Culprit) -> u32 {
    let outer = |rank: &RankSnapshot| Some(rank.outer_pid).filter(|pid| *pid != 0);
    process::of(job, culprit.rank).and_then(outer).unwrap_or(culprit.pid)
}
