//! The ranks that have not joined, for inits that wait. The screens of the start show this besides
//! their lists.

use ccl::diagnose::render_not_joined;
use ccl::snapshot::{Missing, NotJoined};
use ccl::types::Rank;
use ratatui::text::Line;

use super::wrapped;
use crate::tui::listing::{About, Cell};
use crate::tui::palette::Role;
use crate::tui::scene::Scene;

/// The missing ranks, how that is known, and when init gives up, as `snapshot` prints them.
pub(crate) fn lines(scene: &Scene<'_>, width: usize) -> Vec<Line<'static>> {
    let shown = scene.job.not_joined.iter().filter(|one| scene.shows(one.comm));
    let sentences = shown.flat_map(|one| {
        let style = scene.look.palette.style(scene.role_of_wait(one.since_ns, 0));
        let words = wrapped(&render_not_joined(scene.job, one), width);
        words.into_iter().map(move |line| Line::styled(line, style))
    });
    sentences.collect()
}

/// The state of a rank that an init lacks.
///
/// If the root does not answer, it is not known whether the rank that opens it runs.
pub(crate) const fn word(one: &NotJoined) -> &'static str {
    if one.count.is_some() { "not joined" } else { "no answer" }
}

/// The same for a rank that was not read; `None` if no init lacks it.
pub(crate) fn word_of(scene: &Scene<'_>, missing: &Missing) -> Option<&'static str> {
    let mut of_all = scene.job.not_joined.iter().filter(|one| one.is_of(known(scene)));
    of_all.find(|one| one.ranks.contains(&missing.rank)).map(word)
}

/// How many ranks of the job are known.
fn known(scene: &Scene<'_>) -> usize {
    scene.job.ranks.len() + scene.job.missing.len()
}

/// The ranks that an init lacks and that have no row themselves: rank, process state, and item.
pub(crate) fn absent<'a>(scene: &Scene<'a>) -> impl Iterator<Item = (&'a NotJoined, Rank, Cell, About)> {
    let scene = *scene;
    scene.job.not_joined.iter().filter(move |one| scene.shows(one.comm)).flat_map(move |one| {
        let members = scene.of_comm(one.comm);
        let shows = move |rank: &&Rank| members.iter().any(|member| member.comm.rank == **rank);
        let is_of_all = one.is_of(known(&scene));
        one.ranks.iter().filter(move |rank| !shows(rank)).map(move |rank| {
            let is_it = |of_job: Rank| is_of_all && of_job == *rank;
            let read = scene.job.ranks.iter().enumerate().find(|(_, read)| is_it(read.rank));
            let unread = || scene.job.missing.iter().position(|missing| is_it(missing.rank));
            let (process, about) = match read {
                Some((at, read)) => (scene.state(read), About::Rank(at)),
                None => (
                    Cell::text(format!("? {}", word(one))).role(Role::Waits),
                    unread().map_or(About::Itself, About::Missing),
                ),
            };
            (one, *rank, process, about)
        })
    })
}
