//! Crates outside the workspace use ccl by its path, on a machine with only gcc and Rust.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ccl::config::environment;
use ccl_tests::nvtx::ranges;
use ccl_tests::programs::{library, text};

/// Everything a user's machine needs: Rust, and the tools of gcc.
const TOOLS: &[&str] = &["cargo", "rustc", "gcc", "cc", "ld", "as", "ar"];

/// All that a program may need to start, beside the dynamic linker itself.
const LIBRARIES: &[&str] = &["libc.so.6", "libm.so.6", "libgcc_s.so.1"];

fn find(tool: &str) -> PathBuf {
    let path = environment("PATH").expect("PATH is set");
    let found = path.split(':').map(|folder| Path::new(folder).join(tool)).find(|at| at.is_file());
    found.unwrap_or_else(|| panic!("{tool} is not in PATH"))
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository")
}

fn hello() -> String {
    std::fs::read_to_string(repository().join("examples/src/bin/hello.rs")).expect("hello.rs")
}

/// The libraries without which a program does not start.
fn needed(program: &Path) -> Vec<String> {
    let read = Command::new("readelf").arg("-d").arg(program).output().expect("readelf, which comes with ld");
    let text = text(&read);
    let lines = text.lines().filter(|line| line.contains("(NEEDED)"));
    lines.filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']').to_string())).collect()
}

/// The packages that a crate was built from.
fn packages(folder: &Path) -> Vec<String> {
    let lock = std::fs::read_to_string(folder.join("Cargo.lock")).expect("Cargo.lock");
    let names = lock.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    names.map(str::to_string).collect()
}

/// What a crate was built from, and what its program said.
struct Ran {
    packages: Vec<String>,
    output: Output,
}

/// Builds a crate with these dependencies and this program, and runs it with these variables.
fn run(name: &str, dependencies: &str, main: &str, environment_of_it: &[(&str, &Path)]) -> Ran {
    let fresh = tempfile::tempdir().expect("a folder of temporary files");
    let write = |name: &str, text: &str| {
        let path = fresh.path().join(name);
        std::fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    };
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n{dependencies}"
    );
    write("Cargo.toml", &manifest);
    write("src/main.rs", main);
    // The versions that the workspace was tested with, which are on this machine.
    std::fs::copy(repository().join("Cargo.lock"), fresh.path().join("Cargo.lock")).expect("Cargo.lock");

    let tools = fresh.path().join("tools");
    std::fs::create_dir(&tools).expect("a folder");
    for tool in TOOLS {
        std::os::unix::fs::symlink(find(tool), tools.join(tool)).expect("a link");
    }
    let mut cargo = Command::new(tools.join("cargo"));
    // Kept between runs, so that only the first run builds everything.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fresh_crate");
    cargo.current_dir(fresh.path()).env_clear().env("PATH", &tools).env("CARGO_TARGET_DIR", target);
    for name in ["HOME", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"] {
        cargo.envs(environment(name).map(|value| (name, value)));
    }
    let built = cargo.args(["build", "--offline"]).output().expect("cargo starts");
    assert!(built.status.success(), "{}", text(&built));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fresh_crate/debug").join(name);
    let needed = needed(&program);
    let allowed = |name: &String| LIBRARIES.contains(&name.as_str()) || name.starts_with("ld-linux");
    assert!(needed.iter().any(|name| name == "libc.so.6") && needed.iter().all(allowed), "{needed:?}");
    let mut command = Command::new(program);
    command.env("CCL_RUNTIME_DIR", fresh.path()).envs(environment_of_it.iter().copied());
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("hello from rank 0 of 1: the sum is 1"), "{}", text(&output));
    Ran { packages: packages(fresh.path()), output }
}

#[test]
fn a_fresh_crate_says_hello() {
    let hello = hello();
    let kept: Vec<&str> = hello.lines().filter(|line| !line.contains("ccl_exporters")).collect();
    assert_eq!(kept.len() + 1, hello.lines().count(), "hello has one line for the exporters");
    let dependencies =
        format!("ccl = {{ package = \"ccl-core\", path = {:?} }}\n", repository().join("core"));
    let ran = run("fresh", &dependencies, &kept.join("\n"), &[]);
    let floors: Vec<&String> = ran.packages.iter().filter(|name| name.contains("ibverbs")).collect();
    assert!(floors.is_empty(), "a feature that is off brings {floors:?}");
}

/// With the lines from README.md.
#[test]
fn a_fresh_crate_has_nvtx_and_ibverbs_without_libclang_and_libibverbs() {
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("README.md");
    for line in [
        "[patch.crates-io]\n",
        "\nibverbs-sys = { path = \"ccl/core/ffi/ibverbs-sys\" }",
        "\nnvtx-sys = { path = \"ccl/core/ffi/nvtx-sys\" }",
    ] {
        assert!(readme.contains(line), "README.md has {line}");
    }
    let at = |path: &str| repository().join(path);
    let dependencies = format!(
        "ccl = {{ package = \"ccl-core\", path = {:?}, features = [\"ibverbs\"] }}\n\
         ccl-exporters = {{ path = {:?}, features = [\"nvtx\"] }}\nibverbs = \"=0.9.2\"\n\
         [patch.crates-io]\nibverbs-sys = {{ path = {:?} }}\nnvtx-sys = {{ path = {:?} }}\n",
        at("core"),
        at("exporters"),
        at("core/ffi/ibverbs-sys"),
        at("core/ffi/nvtx-sys")
    );
    let folder = tempfile::tempdir().expect("a folder of temporary files");
    let (tool, file) = (library("nvtx_recorder"), folder.path().join("nvtx"));
    let environment = [("NVTX_INJECTION64_PATH", tool.as_path()), (nvtx_recorder::FILE, file.as_path())];
    // On most machines an error, which is what they are to say.
    let devices = "println!(\"devices: {:?}\", ibverbs::devices().map(|list| list.len()));";
    let main = hello().replacen("{\n", &format!("{{\n{devices}\n"), 1);
    let ran = run("fresh-floors", &dependencies, &main, &environment);
    assert!(text(&ran.output).contains("devices: "), "{}", text(&ran.output));
    let written = std::fs::read_dir(folder.path()).expect("the folder").flatten().next();
    let written = std::fs::read(written.expect("what the tool wrote").path()).expect("a file");
    let seen = ranges(&nvtx_recorder::read(&written).expect("few enough")).expect("balanced");
    let names: Vec<&str> = seen.iter().map(|range| range.name.as_str()).collect();
    assert_eq!(names, ["init Rendezvous", "init Connect", "init Barrier", "AllReduce", "finish"]);
}
