//! `docs/settings.md` is printed from the table of settings.

use std::fmt::Write as _;
use std::path::Path;

use ration_contract::table::{ALIAS_GPUS, ALIASES, SETTINGS};
use ration_contract::{QUOTA_FILE, UNITS};

#[test]
fn docs_say_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
    let expected = page();
    if std::env::var_os("RATION_WRITE_DOCS").is_some() {
        std::fs::write(&path, &expected).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == expected,
        "docs/settings.md is not what crates/contract/src/table.rs says. To write it anew:\n\
         RATION_WRITE_DOCS=1 cargo test -p ration-contract --test page"
    );
}

fn page() -> String {
    let mut page = String::from(
        "# Settings\n\n\
         <!-- Printed from crates/contract/src/table.rs by \
         `RATION_WRITE_DOCS=1 cargo test -p ration-contract --test page`. Edit that one, or that test. -->\n\n\
         What a container may be asked to keep to, by variables of its processes or by a file that whoever runs the machine \
         mounts into it. `RATION_LOG` and `RATION_TRACE`, which are about looking and not about limits, are in \
         [library.md](library.md).\n\n\
         **A value that is not understood never means \"no limit\".** GPU work is refused, with a message that names the \
         setting, its value, what is accepted and what to do. Set to nothing (`RATION_MEMORY=`) is not understood either.\n\n\
         | setting | form | without it | what it does |\n|---|---|---|---|\n",
    );
    for setting in SETTINGS {
        let _ = writeln!(page, "| `{}` | {} | {} | {} |", setting.name, setting.form, setting.default, setting.about);
    }
    amounts(&mut page);
    page.push_str(
        "\n## Per GPU\n\n\
         `8GiB` is for each GPU. `0=8GiB,1=25%` names them, and a GPU that is not named has no limit; `8GiB,1=25%` is for \
         each, with exceptions. A GPU is named by\n\n\
         - its number as the program counts them, after `CUDA_VISIBLE_DEVICES`; or\n\
         - its UUID, as `nvidia-smi -L` shows it, or enough of the beginning to tell the machine's GPUs apart \
         (`GPU-8932f937=8GiB`). On a MIG device, its `MIG-…`.\n\n\
         A UUID counts before a number, and a longer beginning before a shorter one. Where the program must not choose, name \
         GPUs by UUID: with `CUDA_VISIBLE_DEVICES` it decides which is number 0.\n\n\
         ## Compute\n\n\
         `RATION_COMPUTE=30%` is a request and a limit of 30%. `RATION_COMPUTE_REQUEST` and `RATION_COMPUTE_LIMIT` set them \
         apart and count before it. As in Kubernetes, a limit alone is a request too, unless it is 100%, and a request is at \
         most the limit. How shares of compute are held is in [compute.md](compute.md).\n\n",
    );
    let _ = write!(
        page,
        "## The quota file\n\n\
         `{QUOTA_FILE}`, if it exists, counts before the environment, so that a tenant cannot raise its own quota. It has the \
         settings above in lower case and without `RATION_`:\n\n\
         ```\n\
         # team a\n\
         memory = 0=8GiB,1=25%\n\
         compute = 30%   # of both\n\
         name = team-a/trainer/main\n\
         ```\n\n\
         A `#` at the start of a line or after a space begins a comment. An unknown key, one that is set twice, and a file \
         that sets nothing are errors. What the file does not set may be set by the environment, except that a file with any \
         of the settings of compute is the only one to be asked about compute. A variable that says something else than the \
         file is named in a warning. `{{pod}}` in the file's `name` is replaced by what is in a file called `pod` beside it: an \
         injector does not know a pod's name yet when it writes the quota.\n\n\
         The file may change while programs run. Each process looks at it once a second while it launches work or asks for \
         memory, and what has changed in it of memory, compute and priority holds from then on; what is held beyond a smaller \
         cap stays held. What it says holds whatever others write into the region. A file that makes no sense any more, or is gone, changes nothing, and the former is said. A GPU that nothing was asked of \
         when a process started stays without limits for that process.\n\n\
         ## HAMi's names\n\n\
         Understood, so that the library can take the place of HAMi's. Each is for all GPUs, or, with `_0` to `_{}` appended, \
         for one, which counts first. Our own name counts before the alias; if both are set and differ, a warning says so.\n\n\
         | variable | stands for | form | |\n|---|---|---|---|\n",
        ALIAS_GPUS - 1
    );
    for alias in ALIASES {
        let _ = writeln!(page, "| `{}` | `{}` | {} | {} |", alias.name, alias.stands_for.name, alias.form, alias.about);
    }
    page.push_str(
        "\nA value that HAMi would take for no limit, because it does not understand it, is refused. So is a number that \
         begins with a 0, which HAMi reads as octal. An empty variable is as if it were not set.\n",
    );
    page
}

fn amounts(page: &mut String) {
    page.push_str(
        "\n## Amounts of memory\n\n\
         A number and a unit, as Kubernetes and the IEC write them; decimals are allowed (`1.5GiB`), and so are a power of \
         ten (`8e9`) and a percentage of what the GPU has (`12.5%`). More than the GPU has is all of it. Less than 1MiB is \
         refused: a unit was forgotten.\n\n\
         | unit | bytes |\n|---|---|\n",
    );
    for (names, bytes) in UNITS {
        let names: Vec<_> =
            names.iter().map(|name| if name.is_empty() { "none".to_owned() } else { format!("`{name}`") }).collect();
        let power = if bytes.is_power_of_two() && bytes > 1 {
            format!("2^{}", bytes.trailing_zeros())
        } else {
            format!("10^{}", bytes.ilog10())
        };
        let _ = writeln!(page, "| {} | {power} |", names.join(", "));
    }
    page.push_str(
        "\n**`8G` is 8·10⁹ bytes and `8GiB` is 8·2³⁰**, 7% more. Units with an `i` may be written in either case, the others \
         only as shown: a small `m` is a thousandth to Kubernetes, a million to some and 2²⁰ to others, so it is refused.\n",
    );
}
