//! What man pages say that `--help` does not: docs/cli.md has it at length.

/// A word or a path, and what it means.
type Entry = (&'static str, &'static str);
/// A heading, and what stands below it.
pub type Section = (&'static str, &'static [Entry]);

const PLACES: Section = (
    "FILES",
    &[
        ("/run/ration", "where the slices of all users meet, if it is there. The package makes it, with mode 1777."),
        ("/dev/shm/ration-UID", "where those of one user meet, if it is not."),
        (
            "$XDG_RUNTIME_DIR/ration, /dev/shm/ration-runs-UID",
            "what \"ration run\" notes of what runs, for \"ration set\".",
        ),
        ("/etc/ration/quota", "limits that whoever runs the machine has set. They count before all others."),
    ],
);

const ENVIRONMENT: Section = (
    "ENVIRONMENT",
    &[
        (
            "RATION_MEMORY, RATION_COMPUTE, RATION_COMPUTE_REQUEST, RATION_COMPUTE_LIMIT, RATION_PRIORITY, RATION_NAME",
            "what is not given by the options of these names.",
        ),
        ("RATION_DIR", "where slices meet, in place of those in FILES."),
        ("RATION_LOG", "how much the library says: off, error, warn, info or debug."),
    ],
);

/// The sections of a page beyond what clap knows: of a verb's, or of `ration`'s own.
pub fn of(page: &str) -> &'static [Section] {
    match page {
        "ration" => &[PLACES, ENVIRONMENT],
        "run" => &[
            (
                "EXIT STATUS",
                &[
                    ("the program's own", "if it ended by itself."),
                    ("128 and a signal's number", "if a signal ended it."),
                    ("127", "there is no such program."),
                    ("126", "it cannot be run."),
                    ("125", "\"ration run\" cannot do what it was asked for."),
                ],
            ),
            PLACES,
            ENVIRONMENT,
        ],
        "status" => &[
            (
                "EXIT STATUS",
                &[
                    ("0", "also where nothing runs."),
                    ("1", "no slice has the name that was given."),
                    ("2", "the command line is not understood."),
                ],
            ),
            PLACES,
        ],
        "set" => &[
            (
                "EXIT STATUS",
                &[
                    ("0", "it holds."),
                    ("1", "nothing was changed, and why is on standard error."),
                    ("2", "the command line is not understood."),
                ],
            ),
            PLACES,
        ],
        _ => &[],
    }
}
