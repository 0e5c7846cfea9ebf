//! Texture and surface objects: descriptions that are checked and kept. Nothing samples them, as kernels read no memory here.

use std::sync::Arc;

use super::array;
use super::space::{self, When};
use crate::abi::*;
use crate::api::{In, Out, Outcome};
use crate::context::{Context, current};
use crate::handles::{Registry, Tag};
use crate::process::process;

static TEXTURES: Registry<Texture> = Registry::new(Tag::Texture);
static SURFACES: Registry<Surface> = Registry::new(Tag::Surface);

/// What `CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT` and `..._PITCH_ALIGNMENT` say.
pub(super) const ALIGNMENT: u64 = 512;
pub(super) const PITCH_ALIGNMENT: u64 = 32;
const TEXTURE_FLAGS: u32 = CU_TRSF_READ_AS_INTEGER
    | CU_TRSF_NORMALIZED_COORDINATES
    | CU_TRSF_SRGB
    | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION
    | CU_TRSF_SEAMLESS_CUBEMAP;

/// A description of the client's, with pointers in it that only name things and are never followed.
struct Kept<T>(T);

// SAFETY: plain data that is written once and then only copied out; the pointers in it are handles and addresses of the device.
unsafe impl<T: Copy> Send for Kept<T> {}
// SAFETY: as above.
unsafe impl<T: Copy> Sync for Kept<T> {}

struct Texture {
    context: usize,
    resource: Kept<CUDA_RESOURCE_DESC>,
    texture: Kept<CUDA_TEXTURE_DESC>,
    view: Option<Kept<CUDA_RESOURCE_VIEW_DESC>>,
}

struct Surface {
    context: usize,
    resource: Kept<CUDA_RESOURCE_DESC>,
}

fn check_linear(address: u64, bytes: u64) -> Outcome {
    if bytes == 0 || !address.is_multiple_of(ALIGNMENT) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    space::resolve(address, bytes, When::Now).map(|_| ())
}

fn check_resource(form: &CUDA_RESOURCE_DESC) -> Outcome {
    if form.flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the type says which member of the union was written, and all are plain data.
    unsafe {
        match form.resType {
            CU_RESOURCE_TYPE_ARRAY => array::get(form.res.array.hArray).map(|_| ()),
            CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => array::get_mipmap(form.res.mipmap.hMipmappedArray).map(|_| ()),
            CU_RESOURCE_TYPE_LINEAR => {
                let of = form.res.linear;
                array::element_bytes(of.format, of.numChannels)?;
                check_linear(of.devPtr, of.sizeInBytes as u64)
            }
            CU_RESOURCE_TYPE_PITCH2D => {
                let of = form.res.pitch2D;
                let row = array::element_bytes(of.format, of.numChannels)?.checked_mul(of.width as u64);
                let pitch = of.pitchInBytes as u64;
                if row.is_none_or(|row| row == 0 || row > pitch)
                    || !pitch.is_multiple_of(PITCH_ALIGNMENT)
                    || of.height == 0
                {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                let before = pitch.checked_mul(of.height as u64 - 1).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                check_linear(of.devPtr, before.saturating_add(row.unwrap_or(0)))
            }
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}

fn check_texture(form: &CUDA_TEXTURE_DESC) -> Outcome {
    let bad = form.addressMode.iter().any(|mode| *mode > CU_TR_ADDRESS_MODE_BORDER)
        || form.filterMode > CU_TR_FILTER_MODE_LINEAR
        || form.mipmapFilterMode > CU_TR_FILTER_MODE_LINEAR
        || form.flags & !TEXTURE_FLAGS != 0;
    if bad { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
}

fn create(
    out: Out<CUtexObject>,
    resource: In<CUDA_RESOURCE_DESC>,
    texture: In<CUDA_TEXTURE_DESC>,
    view: In<CUDA_RESOURCE_VIEW_DESC>,
) -> Outcome {
    let context = current()?;
    out.required()?;
    let (resource, texture, view) = (resource.get()?, texture.get()?, view.maybe());
    check_resource(&resource)?;
    check_texture(&texture)?;
    let viewable = matches!(resource.resType, CU_RESOURCE_TYPE_ARRAY | CU_RESOURCE_TYPE_MIPMAPPED_ARRAY);
    if view.is_some_and(|view| !viewable || view.format > CU_RES_VIEW_FORMAT_UNSIGNED_BC7) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let texture =
        Texture { context: context.handle, resource: Kept(resource), texture: Kept(texture), view: view.map(Kept) };
    out.set(TEXTURES.insert(texture) as CUtexObject)
}

fn create_surface(out: Out<CUsurfObject>, resource: In<CUDA_RESOURCE_DESC>) -> Outcome {
    let context = current()?;
    out.required()?;
    let resource = resource.get()?;
    check_resource(&resource)?;
    if resource.resType != CU_RESOURCE_TYPE_ARRAY {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the type says that this member of the union was written.
    let array = array::get(unsafe { resource.res.array.hArray })?;
    if array.form.Flags & CUDA_ARRAY3D_SURFACE_LDST == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.set(SURFACES.insert(Surface { context: context.handle, resource: Kept(resource) }) as CUsurfObject)
}

fn texture(handle: CUtexObject) -> Outcome<Arc<Texture>> {
    process()?;
    TEXTURES.get(handle as usize).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// A context is gone, and with it its textures and surfaces.
pub(crate) fn forget_context(context: &Context) {
    drop(TEXTURES.remove_all(|texture| texture.context == context.handle));
    drop(SURFACES.remove_all(|surface| surface.context == context.handle));
    super::texture_reference::forget_context(context);
}

api! {
    export fn cuTexObjectCreate(object: Out<CUtexObject>, resource: In<CUDA_RESOURCE_DESC>, texture: In<CUDA_TEXTURE_DESC>, view: In<CUDA_RESOURCE_VIEW_DESC>) {
        create(object, resource, texture, view)
    }
    export fn cuTexObjectDestroy(object: CUtexObject) {
        process()?;
        TEXTURES.remove(object as usize).map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
    export fn cuTexObjectGetResourceDesc(form: Out<CUDA_RESOURCE_DESC>, object: CUtexObject) { form.set(texture(object)?.resource.0) }
    export fn cuTexObjectGetTextureDesc(form: Out<CUDA_TEXTURE_DESC>, object: CUtexObject) { form.set(texture(object)?.texture.0) }
    export fn cuTexObjectGetResourceViewDesc(form: Out<CUDA_RESOURCE_VIEW_DESC>, object: CUtexObject) {
        form.set(texture(object)?.view.as_ref().ok_or(CUDA_ERROR_INVALID_VALUE)?.0)
    }
    export fn cuSurfObjectCreate(object: Out<CUsurfObject>, resource: In<CUDA_RESOURCE_DESC>) { create_surface(object, resource) }
    export fn cuSurfObjectDestroy(object: CUsurfObject) {
        process()?;
        SURFACES.remove(object as usize).map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
    export fn cuSurfObjectGetResourceDesc(form: Out<CUDA_RESOURCE_DESC>, object: CUsurfObject) {
        process()?;
        form.set(SURFACES.get(object as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?.resource.0)
    }
}
