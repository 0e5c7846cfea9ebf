//! Texture references, the older form of textures: settings that are kept and given back.

use std::sync::Arc;

use parking_lot::Mutex;

use super::array;
use super::space::{self, When};
use super::texture::{ALIGNMENT, PITCH_ALIGNMENT};
use crate::abi::*;
use crate::api::{In, Out, Outcome};
use crate::context::{Context, current};
use crate::handles::{Registry, Tag};
use crate::process::process;

static REFERENCES: Registry<Reference> = Registry::new(Tag::TextureReference);

struct Reference {
    context: usize,
    settings: Mutex<Settings>,
}

#[derive(Debug, Clone, Copy)]
struct Settings {
    bound: Bound,
    format: (CUarray_format, u32),
    address_mode: [CUaddress_mode; 3],
    filter: CUfilter_mode,
    mipmap_filter: CUfilter_mode,
    level_bias: f32,
    level_clamp: (f32, f32),
    max_anisotropy: u32,
    border: [f32; 4],
    flags: u32,
}

/// What it reads from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Nothing,
    Array(usize),
    Mipmap(usize),
    Address(u64),
}

impl Settings {
    const FRESH: Settings = Settings {
        bound: Bound::Nothing,
        format: (CU_AD_FORMAT_FLOAT, 1),
        address_mode: [CU_TR_ADDRESS_MODE_WRAP; 3],
        filter: CU_TR_FILTER_MODE_POINT,
        mipmap_filter: CU_TR_FILTER_MODE_POINT,
        level_bias: 0.0,
        level_clamp: (0.0, 0.0),
        max_anisotropy: 1,
        border: [0.0; 4],
        flags: 0,
    };
}

fn get(handle: CUtexref) -> Outcome<Arc<Reference>> {
    process()?;
    REFERENCES.get(handle as usize).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn change(handle: CUtexref, f: impl FnOnce(&mut Settings)) -> Outcome {
    f(&mut get(handle)?.settings.lock());
    Ok(())
}

fn settings(handle: CUtexref) -> Outcome<Settings> {
    Ok(*get(handle)?.settings.lock())
}

/// Binds memory in a row; returns how far the address is behind an aligned one.
fn bind(handle: CUtexref, address: u64, bytes: u64) -> Outcome<u64> {
    let reference = get(handle)?;
    if address == 0 {
        reference.settings.lock().bound = Bound::Nothing;
        return Ok(0);
    }
    space::resolve(address, bytes.max(1), When::Now)?;
    reference.settings.lock().bound = Bound::Address(address);
    Ok(address % ALIGNMENT)
}

fn bind_rows(handle: CUtexref, height: usize, format: (CUarray_format, u32), address: u64, pitch: u64) -> Outcome {
    let reference = get(handle)?;
    array::element_bytes(format.0, format.1)?;
    if !address.is_multiple_of(ALIGNMENT) || !pitch.is_multiple_of(PITCH_ALIGNMENT) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    space::resolve(address, pitch.saturating_mul(height as u64).max(1), When::Now)?;
    let mut settings = reference.settings.lock();
    (settings.bound, settings.format) = (Bound::Address(address), format);
    Ok(())
}

fn address_of(handle: CUtexref) -> Outcome<u64> {
    match settings(handle)?.bound {
        Bound::Address(address) => Ok(address),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// A context is gone, and with it its references.
pub(super) fn forget_context(context: &Context) {
    drop(REFERENCES.remove_all(|reference| reference.context == context.handle));
}

api! {
    export fn cuTexRefCreate(reference: Out<CUtexref>) {
        let context = current()?;
        reference.required()?;
        let new = Reference { context: context.handle, settings: Mutex::new(Settings::FRESH) };
        reference.set(REFERENCES.insert(new) as CUtexref)
    }
    export fn cuTexRefDestroy(reference: CUtexref) {
        process()?;
        REFERENCES.remove(reference as usize).map(|_| ()).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
    export fn cuTexRefSetArray(reference: CUtexref, array: CUarray, flags: u32) {
        let form = array::get(array)?.form;
        if flags != CU_TRSA_OVERRIDE_FORMAT {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        change(reference, |s| (s.bound, s.format) = (Bound::Array(array as usize), (form.Format, form.NumChannels)))
    }
    export fn cuTexRefSetMipmappedArray(reference: CUtexref, mipmap: CUmipmappedArray, flags: u32) {
        let form = array::get_mipmap(mipmap)?.form;
        if flags != CU_TRSA_OVERRIDE_FORMAT {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        change(reference, |s| (s.bound, s.format) = (Bound::Mipmap(mipmap as usize), (form.Format, form.NumChannels)))
    }
    export fn cuTexRefSetAddress_v2(offset: Out<usize>, reference: CUtexref, pointer: CUdeviceptr, bytes: usize) {
        let behind = bind(reference, pointer, bytes as u64)?;
        offset.maybe(behind as usize);
        Ok(())
    }
    export fn cuTexRefSetAddress(offset: Out<u32>, reference: CUtexref, pointer: CUdeviceptr_v1, bytes: u32) {
        let behind = bind(reference, u64::from(pointer), u64::from(bytes))?;
        offset.maybe(behind as u32);
        Ok(())
    }
    export fn cuTexRefSetAddress2D_v3(reference: CUtexref, form: In<CUDA_ARRAY_DESCRIPTOR>, pointer: CUdeviceptr, pitch: usize) {
        let form = form.get()?;
        bind_rows(reference, form.Height, (form.Format, form.NumChannels), pointer, pitch as u64)
    }
    export fn cuTexRefSetAddress2D_v2(reference: CUtexref, form: In<CUDA_ARRAY_DESCRIPTOR>, pointer: CUdeviceptr, pitch: usize) {
        let form = form.get()?;
        bind_rows(reference, form.Height, (form.Format, form.NumChannels), pointer, pitch as u64)
    }
    export fn cuTexRefSetAddress2D(reference: CUtexref, form: In<CUDA_ARRAY_DESCRIPTOR_v1>, pointer: CUdeviceptr_v1, pitch: u32) {
        let form = form.get()?;
        bind_rows(reference, form.Height as usize, (form.Format, form.NumChannels), u64::from(pointer), u64::from(pitch))
    }
    export fn cuTexRefSetFormat(reference: CUtexref, format: CUarray_format, channels: i32) {
        let channels = u32::try_from(channels).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        array::element_bytes(format, channels)?;
        change(reference, |s| s.format = (format, channels))
    }
    export fn cuTexRefSetAddressMode(reference: CUtexref, dimension: i32, mode: CUaddress_mode) {
        let dimension = usize::try_from(dimension).ok().filter(|d| *d < 3).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if mode > CU_TR_ADDRESS_MODE_BORDER {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        change(reference, |s| s.address_mode[dimension] = mode)
    }
    export fn cuTexRefSetFilterMode(reference: CUtexref, mode: CUfilter_mode) { change(reference, |s| s.filter = mode) }
    export fn cuTexRefSetMipmapFilterMode(reference: CUtexref, mode: CUfilter_mode) { change(reference, |s| s.mipmap_filter = mode) }
    export fn cuTexRefSetMipmapLevelBias(reference: CUtexref, bias: f32) { change(reference, |s| s.level_bias = bias) }
    export fn cuTexRefSetMipmapLevelClamp(reference: CUtexref, least: f32, most: f32) { change(reference, |s| s.level_clamp = (least, most)) }
    export fn cuTexRefSetMaxAnisotropy(reference: CUtexref, most: u32) { change(reference, |s| s.max_anisotropy = most) }
    export fn cuTexRefSetBorderColor(reference: CUtexref, color: In<[f32; 4]>) {
        let color = color.get()?;
        change(reference, |s| s.border = color)
    }
    export fn cuTexRefSetFlags(reference: CUtexref, flags: u32) { change(reference, |s| s.flags = flags) }
    export fn cuTexRefGetAddress_v2(pointer: Out<CUdeviceptr>, reference: CUtexref) { pointer.set(address_of(reference)?) }
    export fn cuTexRefGetAddress(pointer: Out<CUdeviceptr_v1>, reference: CUtexref) { pointer.set(address_of(reference)? as u32) }
    export fn cuTexRefGetArray(array: Out<CUarray>, reference: CUtexref) {
        match settings(reference)?.bound {
            Bound::Array(handle) => array.set(handle as CUarray),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
    export fn cuTexRefGetMipmappedArray(mipmap: Out<CUmipmappedArray>, reference: CUtexref) {
        match settings(reference)?.bound {
            Bound::Mipmap(handle) => mipmap.set(handle as CUmipmappedArray),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
    export fn cuTexRefGetAddressMode(mode: Out<CUaddress_mode>, reference: CUtexref, dimension: i32) {
        let dimension = usize::try_from(dimension).ok().filter(|d| *d < 3).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        mode.set(settings(reference)?.address_mode[dimension])
    }
    export fn cuTexRefGetFilterMode(mode: Out<CUfilter_mode>, reference: CUtexref) { mode.set(settings(reference)?.filter) }
    export fn cuTexRefGetFormat(format: Out<CUarray_format>, channels: Out<i32>, reference: CUtexref) {
        let (of, count) = settings(reference)?.format;
        format.maybe(of);
        channels.maybe(count as i32);
        Ok(())
    }
    export fn cuTexRefGetMipmapFilterMode(mode: Out<CUfilter_mode>, reference: CUtexref) { mode.set(settings(reference)?.mipmap_filter) }
    export fn cuTexRefGetMipmapLevelBias(bias: Out<f32>, reference: CUtexref) { bias.set(settings(reference)?.level_bias) }
    export fn cuTexRefGetMipmapLevelClamp(least: Out<f32>, most: Out<f32>, reference: CUtexref) {
        let (from, to) = settings(reference)?.level_clamp;
        least.maybe(from);
        most.maybe(to);
        Ok(())
    }
    export fn cuTexRefGetMaxAnisotropy(most: Out<i32>, reference: CUtexref) { most.set(settings(reference)?.max_anisotropy as i32) }
    export fn cuTexRefGetBorderColor(color: Out<[f32; 4]>, reference: CUtexref) { color.set(settings(reference)?.border) }
    export fn cuTexRefGetFlags(flags: Out<u32>, reference: CUtexref) { flags.set(settings(reference)?.flags) }
}
