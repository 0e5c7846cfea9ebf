//! Several GPUs on one simulated machine.

mod support;
use support::{Machine, compile};

#[test]
fn two_gpus_have_memory_time_and_names_of_their_own() {
    // In slow motion, so that the long kernel outlasts whatever else the machine does meanwhile.
    let settings = [("RATION_SIM_GPUS", "2"), ("RATION_SIM_MEMORY", "80GiB,24GiB"), ("RATION_SIM_SPEED", "0.2")];
    let machine = Machine::with(&settings);
    machine.run(&compile("gpus"), &[]);
    let record = machine.record();
    assert_ne!(record.gpus[0].uuid, record.gpus[1].uuid);
    let process = record.processes.iter().find(|p| !p.observer).expect("the program left its record");
    assert_eq!((process.gpus[&0].kernels, process.gpus[&1].kernels), (1, 2));
    let busy = |gpu: usize| record.gpus[gpu].busy_ns as f64 / 1e6;
    assert!((40.0..41.0).contains(&busy(0)) && (2.0..3.0).contains(&busy(1)), "{} and {} ms", busy(0), busy(1));
}

#[test]
fn visible_devices_choose_and_order_them() {
    let machine = Machine::with(&[
        ("RATION_SIM_GPUS", "2"),
        ("RATION_SIM_MEMORY", "24GiB,80GiB"),
        ("RATION_SIM_SPEED", "0.2"),
        ("CUDA_VISIBLE_DEVICES", "1,0"),
    ]);
    // The program wants the large one first, and so it is.
    machine.run(&compile("gpus"), &[]);
}
