//! A graph as a picture: a file for Graphviz.

use std::ffi::{OsStr, c_char};
use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;

use super::store::{Inner, Node};
use super::{GraphWork, graph, node_type};
use crate::abi::*;
use crate::api::In;
use crate::launch::KernelLaunch;
use crate::work::Work;

/// What the driver calls each kind in its own pictures, by number.
const KINDS: [&str; 14] = [
    "KERNEL",
    "MEMCPY",
    "MEMSET",
    "HOST",
    "GRAPH",
    "EMPTY",
    "EVENT_WAIT",
    "EVENT_RECORD",
    "EXT_SEMAS_SIGNAL",
    "EXT_SEMAS_WAIT",
    "MEM_ALLOC",
    "MEM_FREE",
    "BATCH_MEM_OP",
    "CONDITIONAL",
];

fn draw(text: &mut String, graph: &Inner, number: &mut usize, flags: u32) -> fmt::Result {
    *number += 1;
    let id = *number;
    writeln!(text, "subgraph cluster_{id} {{\nlabel=\"graph_{id}\" graph[style=\"dashed\"];")?;
    for (index, node) in graph.nodes().iter().enumerate() {
        let shape = if matches!(node.work, Work::Kernel(_)) { "octagon" } else { "box" };
        writeln!(text, "\"graph_{id}_node_{index}\"[shape=\"{shape}\" label=\"{index}\\n{}\"];", label(node, flags))?;
    }
    for (index, node) in graph.nodes().iter().enumerate() {
        for (to, _) in &node.dependents {
            if let Ok(to) = graph.place(*to) {
                writeln!(text, "\"graph_{id}_node_{index}\" -> \"graph_{id}_node_{to}\";")?;
            }
        }
    }
    for (index, node) in graph.nodes().iter().enumerate() {
        for inside in node.nested() {
            writeln!(text, "\"graph_{id}_node_{index}\" -> \"graph_{}\"[style=\"dotted\"];", *number + 1)?;
            writeln!(text, "\"graph_{}\"[shape=\"plaintext\"];", *number + 1)?;
            draw(text, &inside.lock(), number, flags)?;
        }
    }
    writeln!(text, "}}")
}

fn label(node: &Node, flags: u32) -> String {
    let verbose = flags & CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE != 0;
    let says = |flag: u32| verbose || flags & flag != 0;
    let kind = KINDS.get(node_type(&node.work) as usize).copied().unwrap_or("UNKNOWN");
    let mut text = match &node.work {
        Work::Kernel(launch) => escaped(&launch.function.kernel.name.to_string_lossy()),
        _ => kind.to_owned(),
    };
    let mut add = |more: fmt::Arguments<'_>| {
        let _ = write!(text, "\\n{more}"); // to a string
    };
    match &node.work {
        Work::Kernel(launch) if says(CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS) => {
            add(format_args!("{}", shape(launch)));
        }
        Work::Set(set) => add(format_args!("({},{})", set.value, set.width)),
        Work::Copy(copy) if says(CU_GRAPH_DEBUG_DOT_FLAGS_MEMCPY_NODE_PARAMS) => {
            add(format_args!("{} x {} x {} bytes", copy.width, copy.height, copy.depth));
        }
        Work::Host(call) if says(CU_GRAPH_DEBUG_DOT_FLAGS_HOST_NODE_PARAMS) => {
            add(format_args!("{:#x}({:#x})", call.function as usize, call.data));
        }
        Work::RecordEvent(event) | Work::WaitEvent(event) if says(CU_GRAPH_DEBUG_DOT_FLAGS_EVENT_NODE_PARAMS) => {
            add(format_args!("event {:#x}", event.handle));
        }
        Work::Graph(GraphWork::Allocate(a)) if says(CU_GRAPH_DEBUG_DOT_FLAGS_MEM_ALLOC_NODE_PARAMS) => {
            add(format_args!("{} bytes at {:#x}", a.bytes, a.at()));
        }
        Work::Graph(GraphWork::Free(at)) if says(CU_GRAPH_DEBUG_DOT_FLAGS_MEM_FREE_NODE_PARAMS) => {
            add(format_args!("{at:#x}"));
        }
        Work::Graph(GraphWork::Conditional(c)) if says(CU_GRAPH_DEBUG_DOT_FLAGS_CONDITIONAL_NODE_PARAMS) => {
            add(format_args!("{:?} on {:#x}", c.kind, c.handle));
        }
        _ => {}
    }
    if says(CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES) {
        add(format_args!("node {:#x}", node.handle));
    }
    text
}

fn shape(launch: &KernelLaunch) -> String {
    let threads: u64 = launch.block.iter().map(|n| u64::from(*n)).product();
    let blocks: u64 = launch.grid.iter().map(|n| u64::from(*n)).product();
    format!("<<<{blocks},{threads},{}>>>", launch.shared)
}

fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"")
}

api! {
    export fn cuGraphDebugDotPrint(handle: CUgraph, path: In<c_char>, flags: u32) {
        let graph = graph(handle)?;
        let path = path.text()?;
        let mut text = String::from("digraph dot {\n");
        draw(&mut text, &graph.lock(), &mut 0, flags).map_err(|_| CUDA_ERROR_UNKNOWN)?;
        text.push_str("}\n");
        std::fs::write(OsStr::from_bytes(path.to_bytes()), text).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)
    }
}
