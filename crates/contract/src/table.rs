//! The one table of settings. Errors quote its forms, `docs/settings.md` is printed from it.

/// A setting: a variable, and the line of the quota file that stands for it.
#[derive(Debug, PartialEq, Eq)]
pub struct Setting {
    /// The variable.
    pub name: &'static str,
    /// The key in the quota file: the same without `RATION_`, in lower case.
    pub key: &'static str,
    /// What it may be, for people; examples are in backquotes.
    pub form: &'static str,
    /// What holds without it.
    pub default: &'static str,
    /// What it does.
    pub about: &'static str,
}

/// Another project's name for a setting.
#[derive(Debug, PartialEq, Eq)]
pub struct Alias {
    /// The variable for all GPUs; with `_0`, `_1`, … appended, that for one.
    pub name: &'static str,
    /// The setting that it stands for.
    pub stands_for: &'static Setting,
    /// What it may be.
    pub form: &'static str,
    /// What is to be known about it.
    pub about: &'static str,
}

/// The memory cap.
pub static MEMORY: Setting = Setting {
    name: "RATION_MEMORY",
    key: "memory",
    form: "`8GiB`, `4096Mi`, `8G`, bytes, or `25%` of the GPU; per GPU `0=8GiB,1=25%` or `GPU-<uuid>=8GiB`",
    default: "no cap",
    about: "the most device memory that the processes of the container hold together, contexts and modules included",
};

/// Request and limit of compute in one.
pub static COMPUTE: Setting = Setting {
    name: "RATION_COMPUTE",
    key: "compute",
    form: "`30%`; per GPU `0=30%,1=50%` or `GPU-<uuid>=30%`",
    default: "no limit, and nothing guaranteed",
    about: "the share of GPU time: request and limit in one",
};

/// The guaranteed share.
pub static COMPUTE_REQUEST: Setting = Setting {
    name: "RATION_COMPUTE_REQUEST",
    key: "compute_request",
    form: "`30%`, or `0%` for no guarantee; per GPU `0=30%,1=50%` or `GPU-<uuid>=30%`",
    default: "`RATION_COMPUTE`, else the limit where one below 100% is set, else nothing guaranteed",
    about: "the share of GPU time that is guaranteed when others want the GPU too; at most the limit",
};

/// The ceiling.
pub static COMPUTE_LIMIT: Setting = Setting {
    name: "RATION_COMPUTE_LIMIT",
    key: "compute_limit",
    form: "`30%`; per GPU `0=30%,1=50%` or `GPU-<uuid>=30%`",
    default: "`RATION_COMPUTE`, else 100%",
    about: "the share of GPU time that is never exceeded, not even when nobody else wants the GPU",
};

/// Who waits for whom.
pub static PRIORITY: Setting = Setting {
    name: "RATION_PRIORITY",
    key: "priority",
    form: "`latency`, `normal` or `batch`",
    default: "`normal`",
    about: "who waits for whom when several want the GPU: `latency` waits least, `batch` most",
};

/// Whose slice it is.
pub static NAME: Setting = Setting {
    name: "RATION_NAME",
    key: "name",
    form: "1 to 253 printable ASCII characters without spaces, no `#` first, such as `namespace/pod/container`",
    default: "derived from the container, the same for all of its processes",
    about: "whose slice this is: processes with the same name share one cap and one share",
};

/// Where containers meet.
pub static DIR: Setting = Setting {
    name: "RATION_DIR",
    key: "dir",
    form: "a path from the root, such as `/run/ration`, without spaces",
    default: "`/run/ration`, else a place of the user's own",
    about: "the directory with the shared memory in which containers on one machine meet",
};

/// Where a container is by itself.
pub static OWN_DIR: Setting = Setting {
    name: "RATION_OWN_DIR",
    key: "own_dir",
    form: "a path from the root, such as `/run/ration-own`, without spaces",
    default: "made in the directory that `RATION_DIR` names, for this user and this name",
    about: "the directory for this container's own shared memory, where it was made for it: then nothing is written to the other, and \
            all users in the container are held to its limits together",
};

/// What to do when limits cannot be enforced.
pub static STRICT: Setting = Setting {
    name: "RATION_STRICT",
    key: "strict",
    form: "`1` or `0`; also `true`, `yes`, `on` and `false`, `no`, `off`",
    default: "`0`",
    about: "`1`: GPU work is refused where it cannot be held to its limits together with the container's other processes; \
            `0`: each process is then held to them by itself, and that is said once",
};

/// All settings, in the order of the documentation.
pub static SETTINGS: [&Setting; 9] =
    [&MEMORY, &COMPUTE, &COMPUTE_REQUEST, &COMPUTE_LIMIT, &PRIORITY, &NAME, &DIR, &OWN_DIR, &STRICT];

/// HAMi's memory cap.
pub static HAMI_MEMORY: Alias = Alias {
    name: "CUDA_DEVICE_MEMORY_LIMIT",
    stands_for: &MEMORY,
    form: "`8g`, `4096m`, `1048576k` (powers of 1024, either case), or bytes",
    about: "`0`, which HAMi takes for no limit, is refused",
};

/// HAMi's compute limit.
pub static HAMI_COMPUTE: Alias = Alias {
    name: "CUDA_DEVICE_SM_LIMIT",
    stands_for: &COMPUTE_LIMIT,
    form: "a whole number of per cent, `0` to `100`",
    about: "`0` and `100` are no limit; `0` for one GPU is what is set for all, as with HAMi",
};

/// All aliases.
pub static ALIASES: [&Alias; 2] = [&HAMI_MEMORY, &HAMI_COMPUTE];

/// How many GPUs an [`Alias`] can name one by one: its variables are looked up, not listed.
pub const ALIAS_GPUS: u32 = 64;

/// A text of this table without its backquotes.
pub(crate) fn plain(text: &str) -> String {
    text.replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_names_in_lower_case_without_the_prefix() {
        for setting in SETTINGS {
            assert_eq!(setting.name, format!("RATION_{}", setting.key.to_uppercase()));
        }
    }
}
