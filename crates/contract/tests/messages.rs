//! What people read when a setting is wrong, word for word.

use ration_contract::{Error, Settings};

/// Variable, value, message.
const VARIABLES: &[(&str, &str, &str)] = &[
    (
        "RATION_MEMORY",
        "8 parsecs",
        "RATION_MEMORY=\"8 parsecs\": \"parsecs\" is no unit; \
         accepted: 8GiB, 4096Mi, 8G, bytes, or 25% of the GPU; per GPU 0=8GiB,1=25% or GPU-<uuid>=8GiB; \
         write 8GiB, or 8MiB, or 8% of the GPU's memory",
    ),
    (
        "RATION_MEMORY",
        "4096m",
        "RATION_MEMORY=\"4096m\": \"m\" is no unit: capital and small letters differ; \
         accepted: 8GiB, 4096Mi, 8G, bytes, or 25% of the GPU; per GPU 0=8GiB,1=25% or GPU-<uuid>=8GiB; \
         write 4096MiB (powers of 1024) or 4096M (powers of 1000)",
    ),
    (
        "RATION_MEMORY",
        "8",
        "RATION_MEMORY=\"8\": 8 bytes are less than 1MiB, which no program can use; \
         accepted: 8GiB, 4096Mi, 8G, bytes, or 25% of the GPU; per GPU 0=8GiB,1=25% or GPU-<uuid>=8GiB; \
         write the unit too, such as 8GiB or 512MiB",
    ),
    (
        "RATION_MEMORY",
        "0",
        "RATION_MEMORY=\"0\": no memory at all is no slice; \
         accepted: 8GiB, 4096Mi, 8G, bytes, or 25% of the GPU; per GPU 0=8GiB,1=25% or GPU-<uuid>=8GiB; \
         write how much, or leave it out for no cap",
    ),
    (
        "RATION_MEMORY",
        "",
        "RATION_MEMORY=\"\": it is empty; \
         accepted: 8GiB, 4096Mi, 8G, bytes, or 25% of the GPU; per GPU 0=8GiB,1=25% or GPU-<uuid>=8GiB; \
         write a value, or unset it to have the default",
    ),
    (
        "RATION_MEMORY",
        "150%",
        "RATION_MEMORY=\"150%\": \"150%\" is more than the whole GPU; \
         accepted: 8GiB, 4096Mi, 8G, bytes, or 25% of the GPU; per GPU 0=8GiB,1=25% or GPU-<uuid>=8GiB; \
         write at most 100%",
    ),
    (
        "RATION_MEMORY",
        "unlimited",
        "RATION_MEMORY=\"unlimited\": \"unlimited\" does not begin with a number; \
         accepted: 8GiB, 4096Mi, 8G, bytes, or 25% of the GPU; per GPU 0=8GiB,1=25% or GPU-<uuid>=8GiB; \
         write a number and a unit, such as 8GiB, or a percentage, such as 25%",
    ),
    (
        "RATION_MEMORY",
        "8GiB,4GiB",
        "RATION_MEMORY=\"8GiB,4GiB\": two values do not say for which GPU they are; \
         accepted: 8GiB, 4096Mi, 8G, bytes, or 25% of the GPU; per GPU 0=8GiB,1=25% or GPU-<uuid>=8GiB; \
         name the GPUs in the list: 0=...,1=...",
    ),
    (
        "RATION_MEMORY",
        "GPU-0123456789=8GiB",
        "RATION_MEMORY=\"GPU-0123456789=8GiB\": \"GPU-0123456789\" is no UUID of a GPU: a dash is missing; \
         accepted: 8GiB, 4096Mi, 8G, bytes, or 25% of the GPU; per GPU 0=8GiB,1=25% or GPU-<uuid>=8GiB; \
         copy it from `nvidia-smi -L`, or as much of its beginning as is needed",
    ),
    (
        "RATION_COMPUTE",
        "30",
        "RATION_COMPUTE=\"30\": \"30\" has no % sign; \
         accepted: 30%; per GPU 0=30%,1=50% or GPU-<uuid>=30%; \
         write a share as per cent of the GPU's time, such as 30%",
    ),
    (
        "RATION_COMPUTE_LIMIT",
        "0%",
        "RATION_COMPUTE_LIMIT=\"0%\": nothing of a GPU is no slice; \
         accepted: 30%; per GPU 0=30%,1=50% or GPU-<uuid>=30%; \
         write more than 0%, or leave it out for no limit",
    ),
    (
        "RATION_PRIORITY",
        "high",
        "RATION_PRIORITY=\"high\": \"high\" is none of the choices; \
         accepted: latency, normal or batch; \
         write latency, normal or batch",
    ),
    (
        "RATION_NAME",
        "my pod",
        "RATION_NAME=\"my pod\": \" \" may not be in a name; \
         accepted: 1 to 253 printable ASCII characters without spaces, no # first, such as namespace/pod/container; \
         use letters, digits and signs such as / - _ . :",
    ),
    (
        "RATION_DIR",
        "ration",
        "RATION_DIR=\"ration\": it does not begin with /, so it would be another place in every working directory; \
         accepted: a path from the root, such as /run/ration, without spaces; \
         write the path from the root",
    ),
    (
        "RATION_STRICT",
        "please",
        "RATION_STRICT=\"please\": \"please\" is none of the choices; \
         accepted: 1 or 0; also true, yes, on and false, no, off; \
         write 1 or 0",
    ),
    (
        "CUDA_DEVICE_MEMORY_LIMIT_1",
        "8GiB",
        "CUDA_DEVICE_MEMORY_LIMIT_1=\"8GiB\": \"8GiB\" is no whole number; \
         accepted: 8g, 4096m, 1048576k (powers of 1024, either case), or bytes; \
         write it as 4096m or 8g, or set RATION_MEMORY, which takes GiB, % and more",
    ),
    (
        "CUDA_DEVICE_SM_LIMIT",
        "120",
        "CUDA_DEVICE_SM_LIMIT=\"120\": \"120\" is more than the whole GPU; \
         accepted: a whole number of per cent, 0 to 100; \
         write a number from 0 to 100, or set RATION_COMPUTE, which takes 12.5% and more",
    ),
];

/// The quota file, message.
const FILES: &[(&str, &str)] = &[
    (
        "# nothing yet\n",
        "quota file: it sets nothing; accepted: lines key = value with the keys \
         memory, compute, compute_request, compute_limit, priority, name, dir, own_dir, strict; \
         write at least one setting, or do not mount the file",
    ),
    (
        "\nmemory 8GiB\n",
        "quota file, line 2: \"memory 8GiB\": it has no =; accepted: lines key = value with the keys \
         memory, compute, compute_request, compute_limit, priority, name, dir, own_dir, strict; \
         write it as key = value",
    ),
    (
        "RATION_MEMORY = 8GiB",
        "quota file, line 1: RATION_MEMORY = \"8GiB\": \"RATION_MEMORY\" is no setting; \
         accepted: lines key = value with the keys \
         memory, compute, compute_request, compute_limit, priority, name, dir, own_dir, strict; \
         write memory",
    ),
    (
        "memory = 8GiB\nmemory = 9GiB",
        "quota file, line 2: memory = \"9GiB\": it is set twice, before this as \"8GiB\"; \
         accepted: 8GiB, 4096Mi, 8G, bytes, or 25% of the GPU; per GPU 0=8GiB,1=25% or GPU-<uuid>=8GiB; \
         remove one of the two",
    ),
    (
        "compute_request = 60%\ncompute_limit = 30%",
        "quota file, line 1: compute_request = \"60%\": the request, 60%, is above the limit, 30%; \
         accepted: 30%, or 0% for no guarantee; per GPU 0=30%,1=50% or GPU-<uuid>=30%; \
         lower the request, or raise the limit",
    ),
];

fn only(errors: Result<Settings, Vec<Error>>) -> String {
    let errors = errors.expect_err("it is wrong");
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors[0].to_string()
}

#[test]
fn messages_name_the_setting_its_value_what_is_accepted_and_what_to_do() {
    for (variable, value, message) in VARIABLES {
        let get = |name: &str| (name == *variable).then(|| (*value).to_owned());
        assert_eq!(only(Settings::read(&get, None)), *message);
    }
    for (file, message) in FILES {
        assert_eq!(only(Settings::read(&|_| None, Some(file))), *message);
    }
}
