//! What docs/guide.md and README tell a new user to type, typed, and what came of it held against what stands there.
//!
//! `RATION_WRITE_DOCS=1 cargo nextest run -p ration --test guide` writes what came of it into the guide, and the picture.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[path = "caps/container.rs"]
mod container;
#[path = "cli/desk.rs"]
mod desk;
#[path = "guide/picture.rs"]
mod picture;
#[path = "cli/screen.rs"]
mod screen;
mod support;

use container::Session;
use desk::{Desk, PATIENCE};
use screen::Screen;
use support::preload::shim;
use support::tries::until_good;
use support::{compile, sim_dir};

/// How long the guide's programs work.
const SECONDS: &str = "15";

/// A shell in which the guide's commands mean what they mean to its reader: `ration` is the built one, `python3` does what the guide's
/// programs do.
struct Shell {
    session: Session,
    bin: PathBuf,
    desk: Desk,
}

impl Shell {
    fn new() -> Shell {
        let desk = Desk::new();
        let bin = desk.regions.0.with_extension("bin");
        fs::create_dir_all(&bin).expect("shared memory is writable");
        symlink(compile("guide"), bin.join("python3")).expect("a link can be made");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = desk.machine.command("bash");
        command.args(["--noprofile", "--norc"]).env("PATH", format!("{}:{path}", bin.display()));
        command.env("RATION_DIR", &desk.regions.0).env("XDG_RUNTIME_DIR", &desk.notes).env("GUIDE_SECONDS", SECONDS);
        command.env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere").env_remove("KUBERNETES_SERVICE_HOST").env("NO_COLOR", "1");
        for name in
            ["RATION_MEMORY", "RATION_COMPUTE", "RATION_NAME", "RATION_OWN_DIR", "RATION_WRITE_DOCS", "LD_PRELOAD"]
        {
            command.env_remove(name);
        }
        let mut session = Session::start(&mut command, PATIENCE * 2);
        // The simulated GPU's stand-in for the kernel module has to be behind the library.
        let (ration, library, module) = (desk::ration(), shim(), sim_dir().join("libsim-kernel.so"));
        let (ration, library, module) = (ration.display(), library.display(), module.display());
        session.tell(&format!(
            "ration() {{ if [[ $1 == run ]]; then LD_PRELOAD={library}:{module} {ration} run --library {library} \"${{@:2}}\"; \
             elif [[ $1 == doctor ]]; then LD_PRELOAD={module} {ration} doctor --library {library}; else {ration} \"$@\"; fi; }}; exec 2>&1"
        ));
        Shell { session, bin, desk }
    }

    /// Types a command, and says what it printed.
    fn types(&mut self, command: &str) -> Vec<String> {
        self.session.tell(&format!("{command}\necho \"= that was $?\""));
        let mut lines = Vec::new();
        loop {
            let line = self
                .session
                .line()
                .expect("it goes on")
                .unwrap_or_else(|| panic!("{command} ended the shell: {lines:?}"));
            if line.starts_with("= that was ") {
                return lines;
            }
            lines.push(line);
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.bin);
    }
}

/// The same for all figures, and for however far lines and columns reach by them.
fn masked(line: &str) -> String {
    let mut text = String::new();
    for sign in line.chars() {
        match sign {
            '0'..='9' | '.' if text.ends_with('#') => {}
            '0'..='9' => text.push('#'),
            '─' if text.ends_with('─') => {}
            ' ' if text.ends_with(' ') => {}
            _ => text.push(sign),
        }
    }
    text.trim().to_owned()
}

/// Whether lines are those that were to be expected. `…` by itself stands for any lines.
fn fits(expected: &[String], got: &[String]) -> bool {
    match expected.split_first() {
        None => got.is_empty(),
        Some((first, rest)) if first.trim() == "…" => (0..=got.len()).any(|skipped| fits(rest, &got[skipped..])),
        Some((first, rest)) => got.first().is_some_and(|line| masked(line) == masked(first)) && fits(rest, &got[1..]),
    }
}

/// A command of a page, and the lines below it.
#[derive(Debug, Clone)]
struct Step {
    command: String,
    /// The number of the command's line.
    at: usize,
    expected: Vec<String>,
}

/// The steps of a page's blocks, without those that are tried elsewhere.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut is_inside, mut elsewhere) = (false, false);
    for (at, line) in page.lines().enumerate() {
        if !is_inside {
            elsewhere |= line.starts_with("<!-- ci/test ");
            is_inside = line == "```console";
        } else if line == "```" {
            (is_inside, elsewhere) = (false, false);
        } else if elsewhere {
            // Not here.
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), at, expected: Vec::new() });
        } else {
            steps.last_mut().expect("a block begins with a command").expected.push(line.to_owned());
        }
    }
    assert!(!is_inside, "a block has no end");
    steps
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// What the clock and others on the machine may do to a command's answer is gone when it is asked again.
const AGAIN: u32 = 5;

#[test]
fn the_guide_is_true() {
    let file = path("docs/guide.md");
    let page = fs::read_to_string(&file).expect("there is a guide");
    let steps = steps(&page);
    assert!(steps.len() > 10, "{steps:?}");
    let writes = std::env::var_os("RATION_WRITE_DOCS").is_some();
    let (mut shell, mut lines, mut moved) = (Shell::new(), page.lines().map(str::to_owned).collect::<Vec<_>>(), 0);
    for step in steps {
        let mut got = shell.types(&step.command);
        // What only asks can be asked again.
        let only_asks = ["ration doctor", "ration top"].iter().any(|it| step.command.starts_with(it));
        for _ in 0..if writes || !only_asks { 0 } else { AGAIN } {
            if fits(&step.expected, &got) {
                break;
            }
            got = shell.types(&step.command);
        }
        if writes && !fits(&step.expected, &got) {
            let begin = step.at + 1 + moved;
            lines.splice(begin..begin + step.expected.len(), got.clone());
            moved = (moved + got.len()).wrapping_sub(step.expected.len());
        }
        if writes {
            continue;
        }
        let (got, expected) = (got.join("\n"), step.expected.join("\n"));
        assert!(
            fits(&step.expected, &got.lines().map(str::to_owned).collect::<Vec<_>>()),
            "docs/guide.md, line {}: $ {}\n{got}\n\ninstead of\n\n{expected}\n\nWrite it anew with \
             RATION_WRITE_DOCS=1 cargo nextest run -p ration --test guide",
            step.at + 1,
            step.command
        );
    }
    if writes {
        fs::write(&file, lines.join("\n") + "\n").expect("the guide can be written");
    }
    shell.desk.is_clean();
}

/// README's first commands are the guide's, and so is what it shows of `ration top`.
#[test]
fn readme_says_the_same() {
    let read = |name| fs::read_to_string(path(name)).expect("it is there");
    let (readme, guide) = (read("README.md"), read("docs/guide.md"));
    let first = readme.split_once("## Install").and_then(|(_, rest)| rest.split_once("\n## ")).expect("it says how").0;
    let commands: Vec<_> = first.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    assert!(commands.len() >= 5, "{commands:?}");
    for command in commands {
        let command = command.split("  #").next().unwrap_or_default().trim_end();
        assert!(
            command == "ration top" || guide.contains(&format!("$ {command}\n")),
            "the guide does not have: {command}"
        );
    }
    assert!(first.contains("(docs/top.svg)") && guide.contains("(top.svg)"));
}

/// What `ration top` shows of three containers, as a picture.
fn draw() -> String {
    let mut shell = Shell::new();
    for (name, settings, program) in [
        ("train", "--memory 8GiB --compute 30%", "train.py"),
        ("serve", "--memory 20GiB --compute 60% --priority latency", "serve.py"),
        ("notebook", "--memory 4GiB --compute-request 10%", "train.py"),
    ] {
        shell.types(&format!("ration run --name {name} {settings} -- python3 {program} >/dev/null 2>&1 &"));
    }
    let mut command = shell.desk.machine.command(desk::ration());
    command.args(["top", "--sort", "name"]).env("RATION_DIR", &shell.desk.regions.0);
    let mut screen = Screen::start(&mut command, 100, 12);
    screen.until("all are there", |it| it.text().contains("3 containers"));
    let begun = Instant::now();
    screen.until("what they had is known", |it| {
        let text = it.text();
        begun.elapsed() > Duration::from_secs(7) && text.matches('%').count() > 15 && !text.contains(" - ")
    });
    let drawn = screen.look(picture::svg);
    screen.press("q");
    assert!(screen.end().success());
    shell.types("wait");
    drawn
}

/// The picture shows what `ration top` shows.
#[test]
fn the_picture_is_true() {
    let file = path("docs/top.svg");
    let words = |svg: &str| {
        let texts = svg.lines().filter_map(|line| line.split_once('>')?.1.strip_suffix("</text>").map(str::to_owned));
        // How long bars are says as little as figures do.
        let texts = texts.map(|text| text.trim_matches(|sign: char| "abc░·[] ".contains(sign)).to_owned());
        texts.map(|text| masked(&text)).filter(|text| !text.is_empty()).collect::<Vec<_>>()
    };
    let attempt = || {
        let drawn = draw();
        if std::env::var_os("RATION_WRITE_DOCS").is_some() {
            fs::write(&file, &drawn).expect("it can be written");
        }
        (words(&drawn), words(&fs::read_to_string(&file).unwrap_or_default()))
    };
    let Some((now, then)) = until_good(attempt, |(now, then)| now == then) else { return };
    assert_eq!(
        now, then,
        "docs/top.svg is another's. Draw it anew with RATION_WRITE_DOCS=1 cargo nextest run -p ration --test guide"
    );
}

#[test]
fn masks_hide_figures_and_nothing_else() {
    assert_eq!(masked("a  12.5/8 GiB ── 3%"), "a #/# GiB ─ #%");
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(fits(&lines("ok 1\n…\nok 3.1"), &lines("ok 2\nx\ny\nok 30")));
    assert!(
        fits(&lines("…\nok"), &lines("ok"))
            && !fits(&lines("ok"), &lines("ok\nx"))
            && !fits(&lines("ok"), &lines("no"))
    );
    let found =
        steps("```console\n$ a\nb\n```\n<!-- ci/test x does it -->\n```console\n$ c\n```\n```console\n$ d\n```\n");
    assert_eq!(found.iter().map(|it| it.command.as_str()).collect::<Vec<_>>(), ["a", "d"]);
    assert_eq!((found[0].at, found[0].expected.len()), (1, 1));
}
