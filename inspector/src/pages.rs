//! `ccl-inspect completions` and `ccl-inspect man`: made from the declared arguments.

use clap::Command;
use clap_complete::Shell;

use crate::exit;

/// Print completions for a shell
#[derive(clap::Args, Debug)]
pub(crate) struct Completions {
    /// For bash: source <(ccl-inspect completions bash)
    #[arg(value_name = "SHELL", value_parser = shell)]
    shell: Shell,
}

/// Print the manual page of ccl-inspect, or of one of its verbs
#[derive(clap::Args, Debug)]
pub(crate) struct Man {
    /// To read it: ccl-inspect man snapshot | man -l -
    verb: Option<String>,
}

/// The shells for which completions are tested.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

fn shell(text: &str) -> Result<Shell, String> {
    SHELLS
        .into_iter()
        .find(|shell| shell.to_string() == text)
        .ok_or_else(|| "it is none of bash, zsh, fish".to_string())
}

impl Completions {
    /// Prints the completions of this program.
    ///
    /// # Errors
    /// The exit status and why they could not be printed.
    pub(crate) fn run(&self, program: &Command) -> Result<u8, (u8, String)> {
        let mut program = shown(program);
        let mut script = Vec::new();
        let name = program.get_name().to_string();
        clap_complete::generate(self.shell, &mut program, name, &mut script);
        if self.shell == Shell::Bash {
            script = one_name(&String::from_utf8_lossy(&script)).into_bytes();
        }
        print(&script)
    }
}

/// The bash script with one name for the program.
///
/// In one of two places, clap_complete (4.6.11) takes the hyphen of `ccl-inspect` for the beginning
/// of a verb; without this change the options of the verbs are not found.
fn one_name(script: &str) -> String {
    script.replace("ccl__subcmd__inspect", "ccl__inspect")
}

impl Man {
    /// Prints the page of this program, or of one of its verbs.
    ///
    /// # Errors
    /// The exit status and why it could not be printed.
    pub(crate) fn run(&self, program: &Command) -> Result<u8, (u8, String)> {
        let mut program = shown(program);
        // Gives the verbs their full names.
        program.build();
        let page_of = match &self.verb {
            None => program,
            Some(verb) => {
                let found = program.get_subcommands().find(|command| command.get_name() == verb).cloned();
                found.ok_or_else(|| (exit::USAGE, format!("there is no verb {verb}")))?
            }
        };
        let mut page = Vec::new();
        clap_mangen::Man::new(page_of)
            .render(&mut page)
            .map_err(|e| (exit::ERROR, format!("making the page: {e}")))?;
        print(&page)
    }
}

/// The program without the verbs that only the program itself calls.
fn shown(program: &Command) -> Command {
    let verbs = program.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned();
    Command::new("ccl-inspect")
        .version(env!("CARGO_PKG_VERSION"))
        .about(program.get_about().cloned().unwrap_or_default())
        .after_help(exit::HELP)
        .subcommand_required(true)
        .subcommands(verbs)
}

fn print(bytes: &[u8]) -> Result<u8, (u8, String)> {
    exit::say_own(&String::from_utf8_lossy(bytes))?;
    Ok(exit::OK)
}
