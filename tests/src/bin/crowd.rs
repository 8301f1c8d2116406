//! One process of a job with many ranks: several ranks as threads. Run it with `ccl-inspect run`.
//!
//! `crowd FOLDER PER`: PER ranks in each process. They meet by an id that process 0 writes into
//! FOLDER. All but the last rank of the job wait in a barrier; the last one calls nothing until
//! there is a file `go` in FOLDER. Then all of them end.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a tool of the tests may panic, and prints")]

use std::path::Path;
use std::time::Duration;

use ccl::{Communicator, Config, Settings, UniqueId, clock, config, create_id};

/// The id of the job; process 0 makes it, and holds its root.
fn id_of(folder: &Path, process: u32) -> (UniqueId, Option<impl Sized>) {
    let file = folder.join("id");
    if process == 0 {
        let (id, root) = create_id(&Settings::of_process().unwrap()).unwrap();
        let part = folder.join("part");
        std::fs::write(&part, id.to_bytes()).unwrap();
        std::fs::rename(part, file).unwrap();
        return (id, Some(root));
    }
    loop {
        if let Ok(bytes) = std::fs::read(&file) {
            return (UniqueId::from_bytes(&bytes.try_into().unwrap()).unwrap(), None);
        }
        clock::sleep(Duration::from_millis(5));
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, per] = words.as_slice() else { panic!("usage: crowd FOLDER PER") };
    let number = |name| config::environment(name).unwrap().parse::<u32>().unwrap();
    let (process, processes, per) = (number("RANK"), number("WORLD_SIZE"), per.parse::<u32>().unwrap());
    let (id, root) = id_of(Path::new(folder), process);
    let nranks = processes * per;
    let ranks = process * per..(process + 1) * per;
    let take_part = |rank: u32| {
        let comm = Communicator::init(&id, rank, nranks, Config::default()).unwrap();
        comm.barrier().unwrap();
        if rank == 0 {
            println!("all are there");
        }
        while rank == nranks - 1 && !Path::new(folder).join("go").exists() {
            clock::sleep(Duration::from_millis(50));
        }
        comm.barrier().unwrap();
        comm.finish().unwrap();
    };
    std::thread::scope(|scope| {
        for rank in ranks {
            std::thread::Builder::new().spawn_scoped(scope, move || take_part(rank)).unwrap();
        }
    });
    drop(root);
}
