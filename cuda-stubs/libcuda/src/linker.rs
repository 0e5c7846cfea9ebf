//! The linker: joins images of the text form into one.

use std::ffi::{CString, c_char, c_void};

use parking_lot::Mutex;

use crate::abi::*;
use crate::api::{In, Out, Outcome};
use crate::context::current;
use crate::handles::{Registry, Tag};
use crate::image::Image;
use crate::process::process;

struct Link {
    text: Mutex<String>,
    /// What `cuLinkComplete` handed out; it lives until the link is destroyed.
    result: Mutex<Option<CString>>,
}

static LINKS: Registry<Link> = Registry::new(Tag::Link);

fn create(out: Out<CUlinkState>) -> Outcome {
    current()?;
    out.required()?;
    let link = Link { text: Mutex::default(), result: Mutex::default() };
    out.set(LINKS.insert(link) as CUlinkState)
}

fn add(state: CUlinkState, data: &[u8]) -> Outcome {
    process()?;
    let link = LINKS.get(state as usize).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    let terminated = [data, b"\0"].concat();
    Image::from_pointer(terminated.as_ptr().cast())?;
    let text = String::from_utf8_lossy(data);
    let mut all = link.text.lock();
    all.push_str(text.trim_end_matches('\0'));
    all.push('\n');
    Ok(())
}

fn add_file(state: CUlinkState, path: In<c_char>) -> Outcome {
    let path = path.text()?.to_string_lossy().into_owned();
    add(state, &std::fs::read(path).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?)
}

api! {
    export fn cuLinkCreate(_count: u32, _options: In<CUjit_option>, _values: In<*mut c_void>, state: Out<CUlinkState>) { create(state) }
    export fn cuLinkCreate_v2(_count: u32, _options: In<CUjit_option>, _values: In<*mut c_void>, state: Out<CUlinkState>) { create(state) }
    export fn cuLinkAddData(state: CUlinkState, _kind: u32, data: In<u8>, size: usize, _name: In<c_char>, _count: u32, _options: In<CUjit_option>, _values: In<*mut c_void>) {
        add(state, &data.array(size)?)
    }
    export fn cuLinkAddData_v2(state: CUlinkState, _kind: u32, data: In<u8>, size: usize, _name: In<c_char>, _count: u32, _options: In<CUjit_option>, _values: In<*mut c_void>) {
        add(state, &data.array(size)?)
    }
    export fn cuLinkAddFile(state: CUlinkState, _kind: u32, path: In<c_char>, _count: u32, _options: In<CUjit_option>, _values: In<*mut c_void>) { add_file(state, path) }
    export fn cuLinkAddFile_v2(state: CUlinkState, _kind: u32, path: In<c_char>, _count: u32, _options: In<CUjit_option>, _values: In<*mut c_void>) { add_file(state, path) }
    export fn cuLinkComplete(state: CUlinkState, image: Out<*mut c_void>, size: Out<usize>) {
        process()?;
        let link = LINKS.get(state as usize).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        image.required()?;
        let text = CString::new(link.text.lock().as_str()).map_err(|_| CUDA_ERROR_INVALID_IMAGE)?;
        size.maybe(text.as_bytes_with_nul().len());
        let mut result = link.result.lock();
        let kept = result.insert(text);
        image.set(kept.as_ptr().cast_mut().cast())
    }
    export fn cuLinkDestroy(state: CUlinkState) {
        process()?;
        LINKS.remove(state as usize).map(|_| ()).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}
