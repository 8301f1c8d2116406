//! The groups of a large training job: every rank is in one communicator of each kind.

use std::fmt;

use ccl::{Communicator, Config, Result, Settings, UniqueId, create_id};
use clap::ValueEnum;

/// The kinds of groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub enum Group {
    /// All ranks.
    World,
    /// Ranks that share the layers of a stage.
    Tensor,
    /// Ranks that train the same weights on other data.
    Data,
    /// The stages of a pipeline.
    Pipeline,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::World => "world",
            Self::Tensor => "tensor",
            Self::Data => "data",
            Self::Pipeline => "pipeline",
        })
    }
}

/// The bytes of a unique id.
const ID: usize = 128;

/// The kinds of groups of which a job has several.
const PARALLEL: [Group; 3] = [Group::Tensor, Group::Data, Group::Pipeline];

/// How many ranks the groups of each kind have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Ranks of a tensor parallel group: neighbours.
    pub tensor: u32,
    /// Ranks of a data parallel group.
    pub data: u32,
    /// Stages of a pipeline.
    pub pipeline: u32,
}

/// Where a rank is in the grid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    tensor: u32,
    data: u32,
    stage: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor {}, data {}, stage {}", self.tensor, self.data, self.stage)
    }
}

impl Shape {
    /// The number of ranks.
    #[must_use]
    pub const fn nranks(&self) -> u32 {
        self.tensor * self.data * self.pipeline
    }

    /// The position of a rank.
    #[must_use]
    pub const fn position(&self, rank: u32) -> Position {
        Position {
            tensor: rank % self.tensor,
            data: rank / self.tensor % self.data,
            stage: rank / self.tensor / self.data,
        }
    }

    /// The ranks of a rank's group of one kind, in order.
    #[must_use]
    pub fn members(&self, group: Group, rank: u32) -> Vec<u32> {
        let own = self.position(rank);
        let is_member = |other: &u32| {
            let position = self.position(*other);
            let same =
                (position.tensor == own.tensor, position.data == own.data, position.stage == own.stage);
            match group {
                Group::World => true,
                Group::Tensor => same.1 && same.2,
                Group::Data => same.0 && same.2,
                Group::Pipeline => same.0 && same.1,
            }
        };
        (0..self.nranks()).filter(is_member).collect()
    }
}

/// The communicators of one rank.
#[derive(Debug)]
pub struct Groups {
    world: Option<Communicator>,
    parallel: Vec<Communicator>,
}

impl Groups {
    /// Makes a rank's group of each kind. All ranks of `world` call this.
    ///
    /// `world` is divided once for each kind, and stays. With `ids` each group gets a unique id of
    /// its own instead, which its first rank creates and `world` carries, as PyTorch's store does.
    /// The world then ends, and nothing holds the groups together but the processes.
    ///
    /// # Errors
    /// The world has another number of ranks than the grid, and errors of ccl.
    pub fn make(
        world: Communicator,
        shape: Shape,
        ids: bool,
    ) -> std::result::Result<Self, Box<dyn std::error::Error>> {
        let (me, nranks) = (world.rank().0, world.nranks());
        if shape.nranks() != nranks {
            return Err(format!("the grid has {} ranks, and the job {nranks}", shape.nranks()).into());
        }
        let mut parallel = Vec::new();
        for group in PARALLEL {
            let members = shape.members(group, me);
            let make = if ids { from_id } else { from_world };
            parallel.push(make(&world, &members, group)?);
        }
        if ids {
            world.finish()?;
            return Ok(Self { world: None, parallel });
        }
        Ok(Self { world: Some(world), parallel })
    }

    /// Whether there is a group of this kind.
    #[must_use]
    pub const fn has(&self, group: Group) -> bool {
        !matches!(group, Group::World) || self.world.is_some()
    }

    /// The rank's group of this kind.
    ///
    /// # Panics
    /// There is none: see [`has`](Self::has).
    #[must_use]
    pub fn of(&self, group: Group) -> &Communicator {
        match PARALLEL.iter().position(|kind| *kind == group) {
            Some(at) => &self.parallel[at],
            None => self.world.as_ref().expect("a job with a world"),
        }
    }

    /// Says in all of them where the program is.
    pub fn tag(&self, text: &str) {
        self.world.iter().chain(&self.parallel).for_each(|comm| comm.tag(text));
    }

    /// Leaves all of them, in the order in which they were made.
    ///
    /// # Errors
    /// As [`Communicator::finish`].
    pub fn finish(self) -> Result<()> {
        self.parallel.into_iter().chain(self.world).try_for_each(Communicator::finish)
    }
}

/// A communicator of these ranks of the world, as its part. Their first rank is its colour.
fn from_world(world: &Communicator, members: &[u32], group: Group) -> Result<Communicator> {
    let part = world.split(members.first().copied(), 0, named(group))?;
    Ok(part.expect("a rank with a colour gets a communicator"))
}

fn named(group: Group) -> Config {
    Config { name: group.to_string(), ..Config::default() }
}

/// A communicator of these ranks of the world, from an id that the first of them creates.
fn from_id(world: &Communicator, members: &[u32], group: Group) -> Result<Communicator> {
    let me = world.rank().0;
    let own = if members.first() == Some(&me) { Some(create_id(&Settings::of_process()?)?) } else { None };
    // Those who create none have nothing to say.
    let mut said = [0u8; ID];
    if let Some((id, _)) = &own {
        said = id.to_bytes();
    }
    let mut all = vec![0u8; ID * world.nranks() as usize];
    world.all_gather(&said, &mut all)?;
    let first = members.first().map_or(0, |first| *first as usize) * ID;
    said.copy_from_slice(&all[first..first + ID]);
    let id = UniqueId::from_bytes(&said)?;
    let rank = members.iter().position(|member| *member == me).unwrap_or_default() as u32;
    Communicator::init(&id, rank, members.len() as u32, named(group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_in_one_group_of_each_kind() {
        let shape = Shape { tensor: 2, data: 3, pipeline: 2 };
        assert_eq!(shape.nranks(), 12);
        assert_eq!(shape.position(9), Position { tensor: 1, data: 1, stage: 1 });
        assert_eq!(shape.members(Group::Tensor, 9), [8, 9]);
        assert_eq!(shape.members(Group::Data, 9), [7, 9, 11]);
        assert_eq!(shape.members(Group::Pipeline, 9), [3, 9]);
        assert_eq!(shape.members(Group::World, 9).len(), 12);
    }
}
