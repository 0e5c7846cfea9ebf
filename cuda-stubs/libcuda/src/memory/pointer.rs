//! What the driver knows of a pointer.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::pool::{CHUNK, PoolRegion};
use super::space::{self, Kind, Region};
use super::vmm;
use crate::abi::*;
use crate::api::{In, Out, Outcome};
use crate::context::current;
use crate::process::process;

/// Writes one attribute of a region. Each has a type of its own.
fn answer(region: &Region, attribute: u32, address: u64, data: *mut c_void) -> Outcome {
    let word = |value: u64| Out::from_ptr(data.cast::<u64>()).set(value);
    let int = |value: u32| Out::from_ptr(data.cast::<u32>()).set(value);
    let truth = |value: bool| Out::from_ptr(data.cast::<u32>()).set(u32::from(value)); // four bytes, as the driver does
    let managed = matches!(region.kind, Kind::Managed(_));
    let linear = matches!(region.kind, Kind::Linear { .. });
    let device_only = !managed && !region.on_host();
    match attribute {
        // Pools and physical memory belong to a device, not to a context.
        CU_POINTER_ATTRIBUTE_CONTEXT if matches!(region.kind, Kind::Pool(_) | Kind::Graph(_) | Kind::Mapped(_)) => {
            word(0)
        }
        CU_POINTER_ATTRIBUTE_CONTEXT => word(region.context as u64),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
            int(if region.on_host() { CU_MEMORYTYPE_HOST } else { CU_MEMORYTYPE_DEVICE })
        }
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => word(address),
        CU_POINTER_ATTRIBUTE_HOST_POINTER if device_only => Err(CUDA_ERROR_INVALID_VALUE),
        CU_POINTER_ATTRIBUTE_HOST_POINTER => word(address),
        CU_POINTER_ATTRIBUTE_P2P_TOKENS if region.on_host() => Err(CUDA_ERROR_INVALID_VALUE),
        CU_POINTER_ATTRIBUTE_P2P_TOKENS => {
            // Memory that another device may use from now on: the driver makes copies of it synchronous.
            region.sync_memops.store(true, Ordering::Relaxed);
            Out::from_ptr(data.cast::<CUDA_POINTER_ATTRIBUTE_P2P_TOKENS>()).set(Default::default())
        }
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => int(u32::from(region.sync_memops.load(Ordering::Relaxed))),
        CU_POINTER_ATTRIBUTE_BUFFER_ID => word(region.id),
        CU_POINTER_ATTRIBUTE_IS_MANAGED => truth(managed),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => int(region.device.ordinal as u32),
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => truth(linear),
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => word(range(region).0),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE => word(range(region).1),
        CU_POINTER_ATTRIBUTE_MAPPED => truth(is_mapped(region)),
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => word(handle_types(region)),
        CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => truth(linear),
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => int(access(region)),
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => word(match &region.kind {
            Kind::Pool(PoolRegion { pool }) => pool.handle as u64,
            _ => 0,
        }),
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE => word(mapping(region, address).1),
        CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => word(mapping(region, address).0),
        CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => word(region.block.id),
        CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => truth(linear),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// What the driver calls the range: for mapped memory the reservation that it is mapped into.
fn range(region: &Region) -> (u64, u64) {
    match region.kind {
        Kind::Mapped(_) => vmm::reservation_of(region.base).unwrap_or((region.base, region.len)),
        _ => (region.base, region.len),
    }
}

/// What it calls the mapping: the block, or in a pool the chunk.
fn mapping(region: &Region, address: u64) -> (u64, u64) {
    match region.kind {
        Kind::Pool(_) => (region.block.base + (address - region.block.base) / CHUNK * CHUNK, CHUNK),
        _ => (region.block.base, region.block.len),
    }
}

fn is_mapped(region: &Region) -> bool {
    match &region.kind {
        Kind::Graph(graph) => graph.is_backed(),
        _ => true,
    }
}

fn access(region: &Region) -> u32 {
    match &region.kind {
        Kind::Mapped(mapping) if !mapping.is_accessible() => CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE,
        _ => CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE,
    }
}

fn handle_types(region: &Region) -> u64 {
    match &region.kind {
        Kind::Pool(PoolRegion { pool }) => u64::from(pool.handle_types),
        Kind::Mapped(mapping) => u64::from(mapping.physical.form.handle_types),
        _ => 0,
    }
}

/// What `cuPointerGetAttributes` says where there is no answer: zeroes, and of plain memory its own address.
fn blank(attribute: u32, address: u64, known: bool, data: *mut c_void) -> Outcome {
    let word = |value: u64| Out::from_ptr(data.cast::<u64>()).set(value);
    match attribute {
        CU_POINTER_ATTRIBUTE_HOST_POINTER if !known => word(address),
        CU_POINTER_ATTRIBUTE_CONTEXT
        | CU_POINTER_ATTRIBUTE_DEVICE_POINTER
        | CU_POINTER_ATTRIBUTE_HOST_POINTER
        | CU_POINTER_ATTRIBUTE_BUFFER_ID
        | CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
        | CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
        | CU_POINTER_ATTRIBUTE_MAPPING_SIZE
        | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR
        | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => word(0),
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | CU_POINTER_ATTRIBUTE_RANGE_SIZE => Ok(()), // left as they were
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Out::from_ptr(data.cast::<i32>()).set(CU_DEVICE_INVALID),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        | CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | CU_POINTER_ATTRIBUTE_ACCESS_FLAGS
        | CU_POINTER_ATTRIBUTE_IS_MANAGED
        | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | CU_POINTER_ATTRIBUTE_MAPPED
        | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => Out::from_ptr(data.cast::<u32>()).set(0),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn get_all(count: u32, attributes: In<CUpointer_attribute>, data: In<*mut c_void>, address: u64) -> Outcome {
    current()?;
    let region: Option<Arc<Region>> = space::find(address);
    for (attribute, to) in attributes.array(count as usize)?.into_iter().zip(data.array(count as usize)?) {
        if attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS {
            return Err(CUDA_ERROR_INVALID_VALUE); // not to be had in a batch
        }
        let answered = region.as_deref().is_some_and(|region| answer(region, attribute, address, to).is_ok());
        if !answered {
            blank(attribute, address, region.is_some(), to)?;
        }
    }
    Ok(())
}

api! {
    export fn cuPointerGetAttribute(data: *mut c_void, attribute: CUpointer_attribute, pointer: CUdeviceptr) {
        process()?;
        let region = space::find(pointer).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        answer(&region, attribute, pointer, data)
    }
    export fn cuPointerGetAttributes(count: u32, attributes: In<CUpointer_attribute>, data: In<*mut c_void>, pointer: CUdeviceptr) {
        get_all(count, attributes, data, pointer)
    }
    export fn cuPointerSetAttribute(value: In<u32>, attribute: CUpointer_attribute, pointer: CUdeviceptr) {
        process()?;
        let region = space::find(pointer).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        region.sync_memops.store(value.get()? != 0, Ordering::Relaxed);
        Ok(())
    }
}
