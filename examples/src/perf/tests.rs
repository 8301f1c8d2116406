//! Whole runs, whose ranks are threads of the test.

use ccl::Collective;
use ccl::config::Key;
use clap::Parser;

use super::*;

/// Settings with which nothing is made in the user's folders.
fn unobserved() -> Settings {
    let mut settings = Settings::default();
    settings.set(Key::Observe, "0").expect("a valid value");
    settings
}

/// The report of rank 0, which prints nothing.
fn run(line: &str) -> Outcome<Report> {
    let options = Options::parse_from(std::iter::once("ccl-perf").chain(line.split_whitespace()));
    options.verify(false).map_err(Usage)?;
    ranks::in_threads(options.nthreads, &unobserved(), |comm| {
        let report = measure(&comm, &options, false);
        comm.finish()?;
        report
    })
}

#[test]
fn every_collective_type_and_operator_is_right() {
    let report = run("all -t 3 -d all -o all -b 1 -e 3K -f 9 -n 2 -w 1 -c 2").unwrap();
    let types = datum::TYPES.len();
    let (sizes, reducing, copying) = ([1, 9, 81, 729].len(), 4 * ReduceOp::ALL.len(), 8);
    assert_eq!(report.rows().len(), sizes * types * (reducing + copying));
    assert_eq!(report.wrong(), Some(0));
    for row in report.rows() {
        let fine =
            |it: Figures| it.wrong == Some(0) && it.time_us > 0.0 && (it.busbw > 0.0) == (row.size > 0);
        assert!(figures(row).count() > 0 && figures(row).all(fine), "{}", row.line());
        assert_eq!(row.in_place.is_none(), row.name == "send_recv");
        assert_eq!(row.out_of_place.is_none(), row.name == "broadcast");
        let has_root = ["broadcast", "reduce", "gather", "scatter"].contains(&row.name);
        assert!(row.size <= 729 && (row.root == Some(0)) == has_root);
    }
}

#[test]
fn buffers_may_be_shifted_and_calls_be_together_or_prepared() {
    let entries = entries::table::<u8>().len();
    for (more, expect) in [
        ("-u 3 -r 2", entries),
        ("-m 5 -u 1 -r 1", entries),
        ("-G 2 -u 2 -o avg", entries - 1),
        ("-m 3 -G 2 -o mulsum -r 2", entries - 1),
    ] {
        let report = run(&format!("all -t 3 -d half -b 60 -e 6K -f 101 -n 2 -c 2 {more}")).unwrap();
        assert_eq!((report.wrong(), report.rows().len()), (Some(0), 2 * expect), "{more}");
        for row in report.rows() {
            let placed = (row.out_of_place.is_some(), row.in_place.is_some());
            assert_eq!(placed, (row.name != "broadcast", row.name != "send_recv"), "{more}");
        }
    }
}

/// Averages of short floats are exact with a power of two of ranks only.
#[test]
fn averages_are_right_with_any_number_of_ranks() {
    for nranks in [1, 2, 4, 5] {
        let line = format!("all_reduce -t {nranks} -d all -o avg -b 8 -e 1K -f 16 -n 1 -w 0 -c 2");
        assert_eq!(run(&line).unwrap().wrong(), Some(0), "{line}");
    }
}

/// The check can fail: a bit that was flipped on purpose is found, whatever the collective.
#[test]
fn a_planted_fault_is_found() {
    let options = ["-d float", "-d f8e5m2 --family random", "-d uint64 -r 1", "-m 3", "-G 1", "-o avg"];
    for name in entries::names() {
        for more in options.iter().filter(|more| name != "send_recv" || **more != "-G 1") {
            let report = run(&format!("{name} -t 3 -b 1K -e 2K -n 2 -w 0 --plant {more}")).unwrap();
            let wrong: Vec<u64> = report.rows().iter().flat_map(figures).filter_map(|it| it.wrong).collect();
            assert_eq!((report.wrong(), wrong[0]), (Some(1), 1), "{name} {more}: {wrong:?}");
        }
    }
}

fn figures(row: &Row) -> impl Iterator<Item = Figures> {
    [row.out_of_place, row.in_place].into_iter().flatten()
}

#[test]
fn nothing_is_checked_if_that_is_asked_for() {
    let report = run("all -t 2 -b 8 -e 64 -n 2 -c 0 --plant").unwrap();
    assert!(report.rows().iter().flat_map(figures).all(|it| it.wrong.is_none()));
}

#[test]
fn one_rank_is_a_job_too() {
    let report = run("all -b 8 -e 64 -n 2 -o all").unwrap();
    assert_eq!(report.wrong(), Some(0));
    assert!(report.rows().iter().any(|row| row.name == "send_recv"));
}

#[test]
fn options_that_do_not_fit_are_refused() {
    for (line, expect) in [
        ("send_recv -t 2 -G 1", "-G: send_recv is a group of two calls, and groups are not prepared"),
        ("broadcast -t 2 -r 2", "-r 2: there is no such rank among 2"),
        ("reduce -b 8 -e 4", "-b 8 is more than -e 4"),
    ] {
        let error = run(line).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string() == expect, "{line}: {error}");
    }
}

/// The wrong elements that two checks find, in place or not, where `faulty` replaces the entry of
/// that name. Inputs of any bits are hardly ever right by chance.
fn wrong_of(name: &str, placement: Placement, faulty: fn(&mut Entry<i32>)) -> u64 {
    let line = ["ccl-perf", name, "-n", "1", "-w", "0", "-c", "2", "--family", "exact"];
    let options = Options::parse_from(line);
    let mut entry = entries::table().into_iter().find(|entry| entry.name == name).expect("an entry");
    faulty(&mut entry);
    let measured = ranks::in_threads(3, &unobserved(), |comm| {
        let own = Caller::new(entry.sharing, placement, comm.rank().0, 3, 100);
        let case = Case::new(&comm, &options, &entry, placement, Caller { root: 1, ..own });
        let measured = case.expect("a call").run(&mut false)?;
        comm.finish()?;
        Ok(measured)
    });
    measured.unwrap().wrong.expect("a call that is checked")
}

/// Two checks of three ranks find what is wrong with each of 100 elements.
#[test]
fn faulty_calls_are_found() {
    let check = |name, placement, faulty, expect| {
        assert_eq!(wrong_of(name, placement, faulty), expect, "{name}");
    };
    let (two, one) = (Placement::OutOfPlace, Placement::InPlace);
    entries::names().for_each(|name| check(name, if name == "broadcast" { one } else { two }, |_| {}, 0));
    // Nothing is written.
    check("all_reduce", two, |it| it.two = Some(|_, _, _| [Some(Collective::barrier()), None]), 600);
    check("broadcast", one, |it| it.one = Some(|_, _| Collective::barrier()), 400);
    // Only the root has the result.
    let gathers = |it: &mut Entry<i32>| {
        it.two = Some(|at, input, output| [Some(Collective::gather(input, output, at.root())), None]);
    };
    check("all_gather", two, gathers, 1200);
    // The other blocks are not kept.
    let reduces_all = |it: &mut Entry<i32>| {
        it.one = Some(|at, buffer| Collective::all_reduce_in_place(buffer, at.reduction::<i32>()));
    };
    check("reduce_scatter", one, reduces_all, 1200);
    check("reduce_scatterv", one, reduces_all, 1200);
    // Ranks that get no result have one.
    let all_get_it = |it: &mut Entry<i32>| {
        it.two = Some(|at, input, output| {
            [Some(Collective::all_reduce(input, output, at.reduction::<i32>())), None]
        });
    };
    check("reduce", two, all_get_it, 400);
    // Blocks are taken from the wrong place, and go the wrong way.
    let first_blocks = |it: &mut Entry<i32>| {
        it.two = Some(|_, input, output| [Some(Collective::all_gather(&input[..100], output)), None]);
    };
    check("alltoall", two, first_blocks, 1200);
    let backwards = |it: &mut Entry<i32>| {
        it.two = Some(|at, input, output| {
            [Collective::send(input, at.previous()), Collective::recv(output, at.next())].map(Some)
        });
    };
    check("send_recv", two, backwards, 600);
    // Equal blocks where they differ.
    let equal = |it: &mut Entry<i32>| it.one = Some(|_, buffer| Collective::all_to_all_in_place(buffer));
    assert!(wrong_of("alltoallv", one, equal) > 600);
}
