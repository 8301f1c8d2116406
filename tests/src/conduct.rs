//! Runs instances of scripts on processes: what is done to the processes, what they print, and how
//! soon.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ccl::clock::{self, Ns};
use rustix::process::Signal;

use crate::hosts::Hosts;
use crate::job::{Job, Line, Setting, Transport};
use crate::matrix::Matrix;
use crate::orders::Orders;
use crate::said::{Ended, judge, sentence, wanted};
use crate::scripts::{Instance, Network};
use crate::steps::{Step, Steps};

/// The deadline of calls unless a script sets another: much longer than any limit of a script.
const TIMEOUT_S: u64 = 30;

/// The result of an instance.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Shown {
    /// What each rank had to say and what it said, for the matrix.
    pub said: Vec<(String, String)>,
    /// The times from when an error could be known to when it was reported.
    pub latencies: Vec<Duration>,
    /// Everything that is not as it must be.
    pub wrong: Vec<String>,
}

/// Runs an instance; `hosts` is for the network of that name.
///
/// # Errors
/// Why it could not be run.
pub fn carry_out(instance: &Instance, hosts: Option<&Hosts>) -> Result<Shown, String> {
    let (words, steps): (Vec<_>, Vec<_>) = instance.steps()?.into_iter().unzip();
    let transport = match instance.network {
        Network::SharedMemory => Transport::Shm,
        Network::Sockets => Transport::Socket,
        Network::Namespaces => Transport::Mixed,
    };
    let mut setting = match (instance.network, hosts) {
        (Network::Namespaces, Some(hosts)) => hosts.setting(instance.nranks, Orders::default()),
        (Network::Namespaces, None) => return Err("there are no namespaces".into()),
        _ => Setting::new(instance.nranks, transport, Orders::default()),
    };
    setting.steps = words;
    setting.variables.push(("CCL_TIMEOUT".into(), TIMEOUT_S.to_string()));
    let own = |rank| {
        let own = instance.of(&instance.script.settings, rank).into_iter().flatten();
        own.map(|(name, value)| (name.clone(), instance.fill(value))).collect()
    };
    setting.own_variables = (0..instance.nranks).map(own).collect();
    let job = setting.start();
    Conductor { instance, steps, job, held: BTreeMap::new(), signalled: BTreeMap::new() }.conduct()
}

struct Conductor<'a> {
    instance: &'a Instance,
    steps: Vec<Steps>,
    job: Job,
    /// How often each rank was continued.
    held: BTreeMap<u32, usize>,
    /// When each rank was killed.
    signalled: BTreeMap<u32, Ns>,
}

impl Conductor<'_> {
    fn conduct(mut self) -> Result<Shown, String> {
        for command in &self.instance.script.conduct {
            let command = self.instance.fill(command);
            self.carry_out(&command).map_err(|why| format!("{command}: {why}"))?;
        }
        let mut ended = Vec::new();
        for (rank, worker) in (0..).zip(&mut self.job.workers) {
            let status = worker.wait()?;
            let status = (!status.success()).then(|| status.to_string());
            ended.push(Ended { rank, said: worker.said(), status });
        }
        self.judge(&ended)
    }

    fn carry_out(&mut self, command: &str) -> Result<(), String> {
        let (verb, whom) = command.split_once(' ').ok_or("it names nobody")?;
        if verb == "pause" {
            clock::sleep(Duration::from_millis(whom.parse().map_err(|e| format!("{whom}: {e}"))?));
            return Ok(());
        }
        let ranks = self.instance.cast.get(whom).ok_or_else(|| format!("{whom} is no role"))?;
        for rank in ranks {
            let worker = &mut self.job.workers[*rank as usize];
            let steps = &self.steps[*rank as usize];
            match verb {
                "await" => {
                    self.reaches(*rank, steps.marked.ok_or("it has no marked step")?)?;
                    // It announces the step before it takes it: a moment later it is inside.
                    clock::sleep(Duration::from_millis(20 + self.instance.chance % 20));
                }
                "holds" | "go" => {
                    let nth = self.held.entry(*rank).or_default();
                    let mut holds = (0..).zip(&steps.all).filter(|(_, step)| **step == Step::Hold);
                    let (at, _) = holds.nth(*nth).ok_or("it does not hold")?;
                    *nth += usize::from(verb == "go");
                    self.reaches(*rank, at)?;
                    if verb == "holds" {
                        continue;
                    }
                    self.job.workers[*rank as usize].go();
                    self.reaches(*rank, at + 1)?;
                    clock::sleep(Duration::from_millis(self.instance.chance % 20));
                }
                "ended" => drop(worker.wait()?),
                "kill" => {
                    self.signalled.insert(*rank, clock::now());
                    worker.signal(Signal::KILL);
                }
                "stop" => {
                    worker.signal(Signal::STOP);
                    worker.wait_stopped();
                }
                "cont" => worker.signal(Signal::CONT),
                _ => return Err(format!("{verb} is no verb")),
            }
        }
        Ok(())
    }

    /// Waits until a rank takes this step, or has ended before.
    fn reaches(&self, rank: u32, step: usize) -> Result<(), String> {
        self.job.workers[rank as usize].takes(step)
    }

    fn judge(&self, ended: &[Ended]) -> Result<Shown, String> {
        let mut shown = Shown::default();
        let mut sentences: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for one in ended {
            let expected = self.instance.expected(one.rank)?;
            if expected.says == "anything" {
                continue;
            }
            let (said, wrong) = judge(self.instance, &expected, one);
            shown.wrong.extend(wrong);
            shown.said.push((wanted(&expected), said));
            let Some(Line::Error { at_ns, text, .. }) = one.error() else { continue };
            sentences.entry(expected.says.clone()).or_default().push(sentence(text));
            let groups: Vec<&String> = expected.about.iter().chain(expected.sides.keys()).collect();
            if let Some(known) = self.known(ended, &groups, one) {
                let took = Ns(*at_ns).since(known);
                if took > Duration::from_millis(self.instance.script.within_ms) {
                    shown.wrong.push(format!("rank {} speaks after {took:?}: {text}", one.rank));
                }
                shown.latencies.push(took);
            }
        }
        for mut said in sentences.into_values() {
            said.sort();
            said.dedup();
            if said.len() > 1 {
                shown.wrong.push(format!("they do not say the same: {said:#?}"));
            }
        }
        Ok(shown)
    }

    /// When a rank could know what it reports.
    ///
    /// All roles that the report names had done their part, and the rank had called.
    fn known(&self, ended: &[Ended], roles: &[&String], who: &Ended) -> Option<Ns> {
        let of_role = |role: &&String| {
            let ranks = self.instance.cast.get(*role)?;
            ranks.iter().filter_map(|rank| self.did(&ended[*rank as usize])).min()
        };
        let parts: Option<Vec<Ns>> = roles.iter().map(of_role).collect();
        let called = steps_of(who).map(|(_, at)| at).max()?;
        Some(parts?.into_iter().max()?.max(called))
    }

    /// When a rank had done its part.
    ///
    /// It was killed, went beyond its marked step, or reached that step and stayed there.
    fn did(&self, one: &Ended) -> Option<Ns> {
        let killed = self.signalled.get(&one.rank).copied();
        let marked = self.steps[one.rank as usize].marked;
        let steps = || steps_of(one).filter(|(at, _)| marked.is_some_and(|marked| *at >= marked));
        killed.or_else(|| steps().nth(1).or_else(|| steps().next()).map(|(_, at)| at))
    }
}

/// The steps that a rank took, and when.
fn steps_of(one: &Ended) -> impl Iterator<Item = (usize, Ns)> {
    one.said.iter().filter_map(|line| match line {
        Line::Step { at, at_ns } => Some((*at, Ns(*at_ns))),
        _ => None,
    })
}

/// The results of many instances as text, and everything that was not as it must be.
#[must_use]
pub fn carry_out_all(suite: &str, instances: &[Instance], hosts: Option<&Hosts>) -> (String, Vec<String>) {
    let begun = clock::now();
    let (mut matrix, mut wrong, mut latencies) = (Matrix::default(), Vec::new(), Vec::new());
    for (instance, shown) in instances.iter().zip(carry_out_each(instances, hosts)) {
        match shown {
            Ok(shown) => {
                shown.said.into_iter().for_each(|(expected, said)| matrix.add(expected, said));
                latencies.extend(shown.latencies);
                wrong.extend(shown.wrong.iter().map(|what| format!("{instance}: {what}")));
            }
            Err(why) => {
                matrix.add("anything", "it could not be carried out");
                wrong.push(format!("{instance}: {why}"));
            }
        }
    }
    latencies.sort_unstable();
    let of = |part: usize| latencies.get(latencies.len().saturating_sub(1) * part / 100);
    let late = latencies.iter().filter(|took| **took > Duration::from_secs(1)).count();
    let text = format!(
        "{suite}: {} instances in {:?}\n{matrix}\n{suite}: {} errors; from when it could be known to the error: median {:?}, \
         95 % {:?}, worst {:?}; {late} took more than 1 s",
        instances.len(),
        clock::now().since(begun),
        latencies.len(),
        of(50),
        of(95),
        of(100),
    );
    (text, wrong)
}

/// Runs every instance, a few at a time: most of their time is spent waiting.
fn carry_out_each(instances: &[Instance], hosts: Option<&Hosts>) -> Vec<Result<Shown, String>> {
    const AT_ONCE: usize = 3;
    let next = AtomicUsize::new(0);
    let take = || {
        let mut shown = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(instance) = instances.get(at) else { return shown };
            shown.push((at, carry_out(instance, hosts)));
        }
    };
    let mut shown: Vec<(usize, Result<Shown, String>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(take)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    shown.sort_by_key(|(at, _)| *at);
    shown.into_iter().map(|(_, shown)| shown).collect()
}
