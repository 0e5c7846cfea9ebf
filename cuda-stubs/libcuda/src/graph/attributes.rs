//! Attributes of kernel nodes: kept and told, as far as a node has them.

use std::collections::BTreeMap;

use super::graph_of;
use crate::abi::*;
use crate::api::{In, Out, Outcome};
use crate::work::Work;

/// Kernel nodes have these; others belong to streams or to launches.
const KNOWN: [u32; 9] = [
    CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
    CU_LAUNCH_ATTRIBUTE_PRIORITY,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
    CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE,
    CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
];

const BYTES: usize = size_of::<CUlaunchAttributeValue>();

/// What was set on a node, as the bytes of the C union.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Attributes {
    set: BTreeMap<u32, [u8; BYTES]>,
}

impl Attributes {
    /// What the launch itself says.
    pub(crate) fn of(work: &Work) -> Attributes {
        let mut new = Attributes::default();
        if let Work::Kernel(launch) = work {
            if launch.cooperative {
                new.put_int(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1);
            }
            if let Some(priority) = launch.priority {
                new.set_priority(priority);
            }
        }
        new
    }

    fn put_int(&mut self, id: u32, value: i32) {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&value.to_le_bytes());
        self.set.insert(id, bytes);
    }

    fn int(&self, id: u32) -> i32 {
        let bytes = self.set.get(&id).map_or([0; 4], |b| [b[0], b[1], b[2], b[3]]);
        i32::from_le_bytes(bytes)
    }

    pub(crate) fn set_priority(&mut self, priority: i32) {
        self.put_int(CU_LAUNCH_ATTRIBUTE_PRIORITY, priority.clamp(-5, 0));
    }

    /// As CUDA counts: more negative goes first.
    pub(crate) fn priority(&self) -> i32 {
        self.int(CU_LAUNCH_ATTRIBUTE_PRIORITY)
    }

    pub(crate) fn is_cooperative(&self) -> bool {
        self.int(CU_LAUNCH_ATTRIBUTE_COOPERATIVE) != 0
    }

    fn get(&self, id: u32) -> [u8; BYTES] {
        let mut fresh = [0; BYTES];
        if id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP {
            fresh[1] = 1; // remote traffic has a domain of its own
        }
        self.set.get(&id).copied().unwrap_or(fresh)
    }

    fn put(&mut self, id: u32, value: [u8; BYTES]) -> Outcome {
        match id {
            CU_LAUNCH_ATTRIBUTE_PRIORITY => {
                self.set_priority(i32::from_le_bytes([value[0], value[1], value[2], value[3]]));
            }
            CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE if value != [0; BYTES] => {
                return Err(crate::api::unmodelled!("a kernel node that device code updates"));
            }
            _ => {
                self.set.insert(id, value);
            }
        }
        Ok(())
    }
}

fn known(id: u32) -> Outcome<u32> {
    if KNOWN.contains(&id) { Ok(id) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// Looks at or changes the attributes of a kernel node.
fn with<T>(node: CUgraphNode, f: impl FnOnce(&mut Attributes) -> Outcome<T>) -> Outcome<T> {
    let graph = graph_of(node)?;
    let mut inner = graph.lock();
    let node = inner.node_mut(node as usize)?;
    if !matches!(node.work, Work::Kernel(_)) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    f(&mut node.attributes)
}

api! {
    export fn cuGraphKernelNodeGetAttribute(node: CUgraphNode, id: CUkernelNodeAttrID, value: Out<[u8; BYTES]>) {
        let id = known(id)?;
        value.set(with(node, |attributes| Ok(attributes.get(id)))?)
    }
    export fn cuGraphKernelNodeSetAttribute(node: CUgraphNode, id: CUkernelNodeAttrID, value: In<[u8; BYTES]>) {
        let (id, value) = (known(id)?, value.get()?);
        with(node, |attributes| attributes.put(id, value))
    }
    export fn cuGraphKernelNodeCopyAttributes(to: CUgraphNode, from: CUgraphNode) {
        let copied = with(from, |attributes| Ok(attributes.clone()))?;
        with(to, |attributes| {
            *attributes = copied;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_keep_what_was_set_and_start_as_the_driver_has_them() {
        let mut attributes = Attributes::default();
        assert_eq!((attributes.priority(), attributes.is_cooperative()), (0, false));
        assert_eq!(attributes.get(CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP)[..2], [0, 1]);
        let mut value = [0; BYTES];
        value[..4].copy_from_slice(&(-9i32).to_le_bytes());
        assert!(attributes.put(CU_LAUNCH_ATTRIBUTE_PRIORITY, value).is_ok());
        assert_eq!(attributes.priority(), -5, "as far as priorities go");
        assert!(known(CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY).is_err(), "a stream's, no node's");
    }
}
