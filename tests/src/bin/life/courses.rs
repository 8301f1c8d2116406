//! Shrinking, growing, revoking, and splits that fail.

use std::time::Duration;

use ccl::{Communicator, Config, Error, Rank, UniqueId, clock};
use ccl_tests::job::Line;
use ccl_tests::life::{ADDED, Life, REASON};

use super::{Outcome, all_reduce, deviate, die, die_after, report, say, wrong};

/// Calls until the communicator fails; `begins` is called when the iteration comes in which a rank
/// deviates.
fn until_it_fails(life: &Life, comm: &Communicator, begins: &mut dyn FnMut()) -> Error {
    let Rank(rank) = comm.rank();
    for at in 1.. {
        if at == life.at {
            begins();
        }
        if let Err(error) = all_reduce(comm, rank, life.count) {
            return error;
        }
    }
    unreachable!("a job that does not fail goes on");
}

fn delay(life: &Life) -> Duration {
    Duration::from_micros(life.delay_us)
}

pub(super) fn shrink(life: &Life, world: Communicator, second: Option<(u32, u64)>, drops: bool) -> Outcome {
    let Rank(rank) = world.rank();
    let failed = until_it_fails(life, &world, &mut || {
        if rank == life.victim {
            die_after(delay(life));
        }
    });
    say(&Line::error(rank, &failed));
    let second = second.map(|(second, us)| {
        if second == rank {
            die_after(Duration::from_micros(us));
        }
        second
    });
    let mut made = world.shrink(&[], Config::default());
    let mut world = Some(world);
    loop {
        let comm = match made {
            Ok(comm) => comm,
            Err(error) => {
                say(&Line::error(rank, &error));
                return Ok(());
            }
        };
        if drops {
            world = None;
        }
        // Who is to die has this communicator fail.
        let failed = loop {
            match all_reduce(&comm, rank, life.count) {
                Ok(ranks) if second.is_some_and(|second| ranks.contains(&second)) => {}
                Ok(_) => break None,
                Err(error) => break Some(error),
            }
        };
        match failed {
            None => {
                report(&comm, rank, life.count)?;
                comm.finish()?;
                drop(world);
                return Ok(());
            }
            Some(error) => {
                say(&Line::error(rank, &error));
                made = comm.shrink(&[], Config::default());
            }
        }
    }
}

pub(super) fn grow(life: &Life, world: Communicator, teller: u32, outlives: bool) -> Outcome {
    let Rank(rank) = world.rank();
    all_reduce(&world, rank, life.count)?;
    let invitation = world.invite()?;
    if rank == teller {
        say(&Line::Invites { id: invitation.id().to_hex() });
    }
    let grown = world.grow(&invitation, ADDED, Config::default())?;
    report(&world, rank, life.count)?;
    let mut world = Some(world);
    if !outlives {
        world.take().map_or(Ok(()), Communicator::finish)?;
    }
    use_grown(life, rank, grown)?;
    world.map_or(Ok(()), Communicator::finish)?;
    Ok(())
}

/// A process that joins the ranks of a communicator.
pub(super) fn join(life: &Life, rank: u32) -> Outcome {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let id = UniqueId::from_hex(line.trim())?;
    let config = Config { name: "grown".into(), settings: None };
    use_grown(life, rank, Communicator::init(&id, rank, life.nranks + ADDED, config)?)
}

fn use_grown(life: &Life, rank: u32, grown: Communicator) -> Outcome {
    if grown.rank() != Rank(rank) {
        return wrong(format!("process {rank} is rank {} of the larger communicator", grown.rank()));
    }
    report(&grown, rank, life.count)?;
    // Old and new ranks together, in the reverse order.
    let Some(half) = grown.split(Some(rank % 2), -(rank as i32), Config::default())? else {
        return wrong("a rank with a colour got no communicator");
    };
    report(&half, rank, life.count)?;
    half.finish()?;
    grown.finish()?;
    Ok(())
}

pub(super) fn revoke(life: &Life, world: Communicator, exclude: &[u32], stay_ms: u64) -> Outcome {
    let Rank(rank) = world.rank();
    let failed = std::thread::scope(|scope| {
        until_it_fails(life, &world, &mut || {
            if rank == life.victim {
                scope.spawn(|| {
                    clock::sleep(delay(life));
                    deviate();
                    world.revoke(REASON);
                });
            }
        })
    });
    say(&Line::error(rank, &failed));
    if exclude.contains(&rank) {
        clock::sleep(Duration::from_millis(stay_ms));
        return Ok(());
    }
    let exclude: Vec<Rank> = exclude.iter().copied().map(Rank).collect();
    match world.shrink(&exclude, Config::default()) {
        Ok(left) => {
            report(&left, rank, life.count)?;
            left.finish()?;
        }
        Err(error) => say(&Line::error(rank, &error)),
    }
    Ok(())
}

pub(super) fn split(life: &Life, world: Communicator, (dies, inside): (bool, bool), colours: u32) -> Outcome {
    let Rank(rank) = world.rank();
    // Who is slow may still be in it when the victim, which has left it, ends the parent.
    if let Err(error) = all_reduce(&world, rank, life.count) {
        say(&Line::error(rank, &error));
        return Ok(());
    }
    let is_victim = rank == life.victim;
    let deviates = || {
        clock::sleep(delay(life));
        deviate();
        if dies {
            die();
        }
        world.abort(REASON);
    };
    if is_victim && !inside {
        deviates();
        return Ok(());
    }
    let made = std::thread::scope(|scope| {
        if is_victim {
            scope.spawn(deviates);
        }
        world.split(Some(rank % colours), 0, Config::default())
    });
    let child = match made {
        Ok(Some(child)) => child,
        Ok(None) => return wrong("a rank with a colour got no communicator"),
        Err(error) => {
            say(&Line::error(rank, &error));
            return Ok(());
        }
    };
    use_child(life, rank, dies, child);
    // The parent has failed, or fails in a moment.
    match world.barrier() {
        Ok(()) => return wrong("the parent goes on"),
        Err(error) => say(&Line::error(rank, &error)),
    }
    Ok(())
}

/// Uses a child until it fails, if the victim has a part in it and dies; otherwise finishes it.
fn use_child(life: &Life, rank: u32, dies: bool, child: Communicator) {
    let error = loop {
        match all_reduce(&child, rank, life.count) {
            Ok(ranks) if dies && ranks.contains(&life.victim) => {}
            Ok(ranks) => {
                say(&Line::Reduced { comm: child.name().to_string(), ranks });
                break child.finish().err();
            }
            Err(error) => break Some(error),
        }
    };
    if let Some(error) = error {
        say(&Line::error(rank, &error));
    }
}
